# Run while a wheel is made: copies the programs PITSTOP_FILES, stripped, and beside them every library that they
# need at any depth and glibc does not bring: a copy of that beside another loader would not work.
cmake_minimum_required(VERSION 3.25)
set(tree ${CMAKE_INSTALL_PREFIX}/pitstop/_tree)
foreach(file IN LISTS PITSTOP_FILES)
    if(NOT EXISTS ${file})
        message(FATAL_ERROR "${file} is not built")
    endif()
    file(INSTALL ${file} DESTINATION ${tree}/bin TYPE EXECUTABLE)
    get_filename_component(name ${file} NAME)
    execute_process(COMMAND ${PITSTOP_STRIP} --strip-unneeded ${tree}/bin/${name} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
file(GET_RUNTIME_DEPENDENCIES
    EXECUTABLES ${PITSTOP_FILES}
    RESOLVED_DEPENDENCIES_VAR libraries
    PRE_EXCLUDE_REGEXES "^(ld-linux.*|linux-vdso|lib(c|m|dl|pthread|rt|resolv|util|anl|nsl))\\.so")
file(MAKE_DIRECTORY ${tree}/lib)
foreach(library IN LISTS libraries)
    get_filename_component(name ${library} NAME)
    file(REAL_PATH ${library} real)
    file(COPY_FILE ${real} ${tree}/lib/${name})
endforeach()
