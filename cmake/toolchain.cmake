# The warnings target, sanitizers, ccache and the linker. One line changes what the code means, for every target alike:
# -ffp-contract=off.
add_library(pitstop_warnings INTERFACE)
target_compile_options(pitstop_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
                              -Wold-style-cast -Woverloaded-virtual -Wimplicit-fallthrough>
    $<$<AND:$<BOOL:${PITSTOP_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)

# -ffp-contract=off: a product and a sum are fused only where the code says fma, so that a row's
# bits do not depend on how a loop around it was compiled (P6). RelWithDebInfo's -g is -g1 here:
# backtraces keep file and line, objects stay small.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

if(PITSTOP_SANITIZE STREQUAL "address")
    add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
    add_link_options(-fsanitize=address,undefined)
elseif(PITSTOP_SANITIZE STREQUAL "thread")
    add_compile_options(-fsanitize=thread)
    add_link_options(-fsanitize=thread)
elseif(NOT PITSTOP_SANITIZE STREQUAL "")
    message(FATAL_ERROR "PITSTOP_SANITIZE is '${PITSTOP_SANITIZE}'; it takes address, thread or nothing")
endif()
if(PITSTOP_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's manual: the sanitizers' code makes it see uses that are not there (in Boost.Beast's here); and GCC 12 sees overruns in
    # the standard library's strings, where their header was precompiled (its bug 105651).
    target_compile_options(pitstop_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>
                           $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds>)
endif()

find_program(PITSTOP_CCACHE ccache)
if(PITSTOP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # Paths relative to the sources, and without the build directory: the presets share what is the same in them.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
        CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${PITSTOP_CCACHE})
endif()
find_program(PITSTOP_LLD ld.lld)
if(PITSTOP_LLD)
    add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=lld>)
endif()

# A machine of GPUs in software for one test: ctest runs several at once, and none is to see what another allocates.
function(pitstop_own_machine name)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT_MODIFICATION
        PITSTOP_EMULATED_MACHINE=set:${CMAKE_CURRENT_BINARY_DIR}/${name}.machine)
endfunction()

# One test program per folder of tests: pitstop_test(<name> LABEL unit SOURCES a.cpp b.cpp LIBS x y)
function(pitstop_test name)
    cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;LIBS" ${ARGN})
    add_executable(${name} ${ARG_SOURCES})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE ${ARG_LIBS} pitstop_source_dir pitstop_warnings GTest::gtest GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${name})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 300)
    endif()
    if(PITSTOP_SANITIZE)
        math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
    endif()
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
    if(ARG_LABEL STREQUAL "emulated")
        pitstop_own_machine(${name})
    endif()
endfunction()
