# The CUDA ops' tests, twice: on a GPU, and on any machine under the emulator.
set(PITSTOP_CUDA_TESTS
    cuda_attention_test.cpp cuda_elementwise_test.cpp cuda_linear_test.cpp cuda_logprobs_test.cpp
    cuda_sampling_test.cpp)
if(PITSTOP_WITH_CUDA)
    pitstop_test(kernels_gpu_test LABEL gpu SOURCES ${PITSTOP_CUDA_TESTS} cuda_failure_test.cpp LIBS pitstop_kernels)
    # Needs cuBLASLt's header, no GPU: it has the device's functions itself, so it links no pitstop_kernels.
    pitstop_test(kernels_cublas_test LABEL kernel
        SOURCES cublas_test.cpp ${PROJECT_SOURCE_DIR}/kernels/linear.cpp ${PROJECT_SOURCE_DIR}/kernels/linear_cublas.cpp
        LIBS pitstop_base)
    target_include_directories(kernels_cublas_test SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    # Registers and occupancy as KERNELS.md has them: those of one version of the compiler.
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13.0 AND CUDAToolkit_VERSION VERSION_LESS 13.1)
        add_test(NAME kernels_resources_test
            COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/kernel_resources.py --nvcc=${CMAKE_CUDA_COMPILER} --
                    -std=c++20 -O3 -DFMT_SHARED -I${PROJECT_SOURCE_DIR} --expt-relaxed-constexpr --diag-suppress=554)
        set_tests_properties(kernels_resources_test PROPERTIES LABELS kernel TIMEOUT 300)
    endif()
endif()

# The kernels' own sources as C++, with the emulator's headers before CUDA's. Its objects come before
# pitstop_kernels, so that what they define is theirs. A member of that library may still be linked, for some
# instance of a template that it holds (std::string's); then its names are there twice, and the first are taken.
set(PITSTOP_EMULATED_SOURCES
    attention_decode.cu attention_general.cu attention_prefill.cu attention_prefill_wgmma.cu digest.cu embedding.cu
    gather_rows.cu linear.cu logprobs.cu nonfinite.cu penalties.cu rmsnorm.cu rope.cu sampling.cu shard_copy.cu silu_mul.cu
    attention_cuda.cpp device_memory_cuda.cpp ops_cuda.cpp)
list(TRANSFORM PITSTOP_EMULATED_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/kernels/)
add_library(pitstop_emulated OBJECT
    ${PITSTOP_EMULATED_SOURCES} emulator/emulator.cpp emulator/device.cpp)
set_source_files_properties(${PITSTOP_EMULATED_SOURCES} PROPERTIES LANGUAGE CXX)
add_library(pitstop_emulator_test OBJECT emulator_test.cpp)
foreach(target pitstop_emulated pitstop_emulator_test)
    target_include_directories(${target} BEFORE PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/emulator/include)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-unknown-pragmas)
    target_compile_definitions(${target} PRIVATE PITSTOP_EMULATED)
    target_link_libraries(${target} PRIVATE pitstop_base GTest::gtest)
endforeach()
# The tsan preset leaves these out: the emulator is one thread that switches stacks.
pitstop_test(kernels_emulated_test LABEL emulated
    SOURCES ${PITSTOP_CUDA_TESTS} device_index_test.cpp $<TARGET_OBJECTS:pitstop_emulator_test>
            $<TARGET_OBJECTS:pitstop_emulated>
    LIBS pitstop_kernels)
target_compile_definitions(kernels_emulated_test PRIVATE PITSTOP_EMULATED)
target_link_options(kernels_emulated_test PRIVATE LINKER:--allow-multiple-definition)
# Asynchronous copies at once instead of at the last moment (emulator/emulator.h).
add_test(NAME kernels_emulated_copies_test COMMAND kernels_emulated_test --gtest_filter=*Attention*:*Linear*)
set_tests_properties(kernels_emulated_copies_test PROPERTIES
    LABELS emulated TIMEOUT 300 ENVIRONMENT PITSTOP_EMULATOR_COPIES=at_once)
