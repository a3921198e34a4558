# cmake --install, packages and the wheel. Programs, launcher and bundled models lie together in one folder: the
# launcher finds the others from its own place.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

include(cmake/programs.cmake)
pitstop_find_libraries_beside()
set(PITSTOP_TREE_DIR ${CMAKE_INSTALL_LIBEXECDIR}/pitstop)

# runtime: what a machine needs that runs trees.
install(TARGETS ${PITSTOP_PROGRAMS} RUNTIME DESTINATION ${PITSTOP_TREE_DIR}/bin COMPONENT runtime)
install(PROGRAMS launch/pitstop DESTINATION ${PITSTOP_TREE_DIR}/launch COMPONENT runtime)
install(FILES client/python/pitstop/version.py DESTINATION ${PITSTOP_TREE_DIR}/client/python/pitstop COMPONENT runtime)
install(DIRECTORY launch/lib launch/models DESTINATION ${PITSTOP_TREE_DIR}/launch COMPONENT runtime
    PATTERN __pycache__ EXCLUDE)
if(PITSTOP_WITH_XGRAMMAR)  # it is in the programs
    install(FILES ${PITSTOP_XGRAMMAR}/LICENSE ${PITSTOP_XGRAMMAR}/NOTICE
        DESTINATION ${PITSTOP_TREE_DIR}/licences/xgrammar COMPONENT runtime)
endif()
install(CODE [[
    set(bin "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/bin")
    file(MAKE_DIRECTORY "${bin}")
    file(CREATE_LINK ../libexec/pitstop/launch/pitstop "${bin}/pitstop" SYMBOLIC)
]] COMPONENT runtime)

# python: the client, for the system's own Python.
install(DIRECTORY client/python/pitstop DESTINATION lib/python3/dist-packages COMPONENT python
    PATTERN __pycache__ EXCLUDE)

# development: find_package(pitstop), target pitstop::client; pkg-config pitstop-client.
set(PITSTOP_CLIENT_LIBRARIES pitstop_client pitstop_bus pitstop_messages pitstop_digest pitstop_base)
set(PITSTOP_INCLUDE_DIR ${CMAKE_INSTALL_INCLUDEDIR}/pitstop)
set_target_properties(pitstop_client PROPERTIES EXPORT_NAME client)
target_compile_features(pitstop_base INTERFACE cxx_std_20)  # said to those who link it elsewhere
install(TARGETS ${PITSTOP_CLIENT_LIBRARIES} pitstop_warnings pitstop_msgpack EXPORT pitstop
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
    FILE_SET HEADERS DESTINATION ${PITSTOP_INCLUDE_DIR} COMPONENT development)
set(PITSTOP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/pitstop)
install(EXPORT pitstop NAMESPACE pitstop:: DESTINATION ${PITSTOP_PACKAGE_DIR} COMPONENT development)
configure_package_config_file(cmake/pitstop-config.cmake.in ${CMAKE_BINARY_DIR}/package/pitstop-config.cmake
    INSTALL_DESTINATION ${PITSTOP_PACKAGE_DIR} PATH_VARS PITSTOP_TREE_DIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/pitstop-config-version.cmake
    COMPATIBILITY SameMinorVersion)
# Wherever it is installed: from the place of the .pc file itself.
file(RELATIVE_PATH PITSTOP_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/pitstop-client.pc.in ${CMAKE_BINARY_DIR}/package/pitstop-client.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/pitstop-config.cmake ${CMAKE_BINARY_DIR}/package/pitstop-config-version.cmake
    DESTINATION ${PITSTOP_PACKAGE_DIR} COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/package/pitstop-client.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

# Debian packages: cpack -G DEB in the build directory.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME pitstop)
set(CPACK_PACKAGE_CONTACT "pitstop")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "LLM rollout engine whose weights change while it generates")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL runtime python development)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME pitstop)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_DEPENDS "python3 (>= 3.9)")
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-pitstop)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "pitstop, python3, python3-zmq, python3-msgpack, python3-numpy")
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libpitstop-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "libzmq3-dev, cppzmq-dev, libmsgpack-cxx-dev, libspdlog-dev, libfmt-dev, nlohmann-json3-dev")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_RECOMMENDS pitstop)
include(CPack)
