# A library's sources are compiled in groups of eight, each group as one source that includes them (CMake's unity build): what
# they include is parsed once a group, which takes a third off a build from nothing; docs/testing.md has the numbers.
# Names that several sources of a folder give to things of their own must therefore differ.
#
# Not in groups are tests and benchmarks, whose time is what their templates become, and the fast CPU ops
# (kernels/CMakeLists.txt), whose loops GCC inlines by how much there is in a source.
option(PITSTOP_UNITY_BUILD "compile the sources of a library in groups" ON)

set(CMAKE_UNITY_BUILD ${PITSTOP_UNITY_BUILD})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)
if(PITSTOP_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC takes what a group includes for a header, in which an unnamed namespace would be a mistake.
    target_compile_options(pitstop_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
