# What the wheel has besides Python: a folder _tree in the package, with the programs, their libraries beside them,
# the launcher and the bundled models. From this build, or with PITSTOP_PREBUILT from another one as it is.
include(cmake/programs.cmake)
set(files)
if(PITSTOP_PREBUILT)
    foreach(program IN LISTS PITSTOP_PROGRAMS)
        string(REGEX REPLACE "_main$" "" name ${program})
        list(APPEND files ${PITSTOP_PREBUILT}/bin/${name})
    endforeach()
else()
    pitstop_find_libraries_beside()
    foreach(program IN LISTS PITSTOP_PROGRAMS)
        list(APPEND files $<TARGET_FILE:${program}>)
    endforeach()
endif()
install(PROGRAMS launch/pitstop DESTINATION pitstop/_tree/launch COMPONENT wheel)
install(DIRECTORY launch/lib launch/models DESTINATION pitstop/_tree/launch COMPONENT wheel
    PATTERN __pycache__ EXCLUDE)
if(EXISTS ${PROJECT_SOURCE_DIR}/build/xgrammar/LICENSE)  # it is in the programs
    install(FILES build/xgrammar/LICENSE build/xgrammar/NOTICE DESTINATION pitstop/_tree/licences/xgrammar COMPONENT wheel)
endif()
install(CODE "set(PITSTOP_FILES ${files})\nset(PITSTOP_STRIP ${CMAKE_STRIP})" COMPONENT wheel)
install(SCRIPT cmake/wheel_programs.cmake COMPONENT wheel)
