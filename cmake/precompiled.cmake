# Headers that nearly every source reads, parsed once: the standard library's, fmt's and spdlog's. Not JSON's: it has
# every source instantiate it, 0.6 s each, used or not. docs/testing.md says what is saved.
#
# A source is told of them by name, in a folder of its search path, and not, as REUSE_FROM would have it, by the whole path:
# GCC finds what it precompiled there all the same; clang-tidy, which reads the same command lines and cannot read GCC's
# file, does not meet it; and ccache hashes the text, so that build folders share what they compile.
#
# Each file still includes what it uses: for Clang there is nothing in it, so that clang-tidy says what is missing.
option(PITSTOP_PRECOMPILED_HEADERS "parse the headers that most sources read once (GCC)" ON)

# Whether the sources of a target may have them. A new target's is what PITSTOP_PRECOMPILED is.
define_property(TARGET PROPERTY PITSTOP_PRECOMPILED INITIALIZE_FROM_VARIABLE PITSTOP_PRECOMPILED)
set(PITSTOP_PRECOMPILED ON)

if(PITSTOP_PRECOMPILED_HEADERS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(headers
        algorithm array atomic charconv chrono cmath condition_variable cstdint cstring deque functional limits map memory
        mutex optional set span string string_view thread tuple unordered_map utility variant vector
        fmt/format.h spdlog/spdlog.h)
    list(TRANSFORM headers REPLACE "(.+)" "#include <\\1>")
    list(JOIN headers "\n" includes)
    set(folder ${PROJECT_BINARY_DIR}/precompiled)
    file(CONFIGURE OUTPUT ${folder}/precompiled.h CONTENT "#ifndef __clang__\n${includes}\n#endif\n" @ONLY)
    file(CONFIGURE OUTPUT ${folder}/precompiled.cpp CONTENT "" @ONLY)  # CMake precompiles for a source alone
    add_library(pitstop_precompiled OBJECT ${folder}/precompiled.cpp)
    target_include_directories(pitstop_precompiled PRIVATE ${folder})
    target_precompile_headers(pitstop_precompiled PRIVATE <precompiled.h>)
    target_link_libraries(pitstop_precompiled PRIVATE fmt::fmt spdlog::spdlog)
    add_custom_target(pitstop_precompiled_ready DEPENDS $<TARGET_OBJECTS:pitstop_precompiled>)
    add_dependencies(pitstop_warnings pitstop_precompiled_ready)
    set(may $<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:$<TARGET_PROPERTY:PITSTOP_PRECOMPILED>>>)
    foreach(option
            -I${folder} -I${PROJECT_BINARY_DIR}/CMakeFiles/pitstop_precompiled.dir "SHELL:-include cmake_pch.hxx"
            -Winvalid-pch -Wno-error=invalid-pch)
        target_compile_options(pitstop_warnings INTERFACE "$<BUILD_INTERFACE:$<${may}:${option}>>")
    endforeach()
endif()
