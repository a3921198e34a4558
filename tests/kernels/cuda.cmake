# The same suites on a GPU or, in the emulated preset, on the GPU in software; and the tests of parts that only the CUDA ops have.
set(PITSTOP_CUDA_TESTS
    $<TARGET_OBJECTS:pitstop_kernel_suites> cuda_backends.cpp cuda_attention_test.cpp cuda_dependent_attention_test.cpp cuda_dependent_launch_test.cpp cuda_exchange_test.cpp cuda_expert_tables_test.cpp cuda_failure_test.cpp cuda_low_rank_rows_test.cpp cuda_range_test.cpp cuda_step_rows_test.cpp
    cuda_word_runs_test.cpp)
if(PITSTOP_EMULATED_GPU)
    pitstop_test(kernels_gpu_test LABEL emulated TIMEOUT 600 SOURCES ${PITSTOP_CUDA_TESTS} LIBS pitstop_kernels)
    target_compile_definitions(kernels_gpu_test PRIVATE PITSTOP_EMULATED)
    # Tests how the answers of cuBLASLt are used. Only the emulated library gives the answers that a test chooses.
    pitstop_test(kernels_cublas_test LABEL emulated SOURCES cublas_test.cpp LIBS pitstop_kernels)
    # NCCL's communicators: each rank is a process with a GPU.
    pitstop_test(kernels_nccl_test LABEL emulated
        SOURCES nccl_test.cpp ${PROJECT_SOURCE_DIR}/tests/emulated_gpu/in_process.cpp LIBS pitstop_kernels)
    # Runs some asynchronous copies and products at once, instead of as late as possible (tests/emulated_gpu/blocks.h).
    add_test(NAME kernels_gpu_copies_test COMMAND kernels_gpu_test --gtest_filter=*Attention*:UnequalRows.*:*Linear*:*DependentLaunch*)
    set_tests_properties(kernels_gpu_copies_test PROPERTIES
        LABELS emulated TIMEOUT 600 ENVIRONMENT PITSTOP_EMULATOR_COPIES=random)
    pitstop_own_machine(kernels_gpu_copies_test)
    # A pipeline of stages under twenty schedules: the result must not depend on which warp is ahead, or on when its copies arrive.
    add_test(NAME kernels_gpu_seeds_test
        COMMAND python3 ${PROJECT_SOURCE_DIR}/tests/emulated_gpu/seeds.py 20 $<TARGET_FILE:kernels_gpu_test>
                --gtest_filter=CudaAttention.LongPrefills*)
    set_tests_properties(kernels_gpu_seeds_test PROPERTIES
        LABELS emulated TIMEOUT 600
        ENVIRONMENT "PITSTOP_EMULATOR_COPIES=random;PITSTOP_REQUIRE_GPU=1;PITSTOP_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
    pitstop_own_machine(kernels_gpu_seeds_test)
elseif(PITSTOP_WITH_CUDA)
    pitstop_test(kernels_gpu_test LABEL gpu SOURCES ${PITSTOP_CUDA_TESTS} LIBS pitstop_kernels)
    # Checks ptxas's machine code of the kernels, for the architecture that has wgmma and early starts.
    if("90a-real" IN_LIST CMAKE_CUDA_ARCHITECTURES)
        add_test(NAME kernels_machine_code_test
            COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/machine_code.py $<TARGET_OBJECTS:pitstop_kernels_cuda>
            COMMAND_EXPAND_LISTS)
        set_tests_properties(kernels_machine_code_test PROPERTIES LABELS kernel TIMEOUT 300 SKIP_RETURN_CODE 77)
    endif()
    # Compares registers and occupancy with KERNELS.md, which has the numbers of one version of the compiler.
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 13.0 AND CUDAToolkit_VERSION VERSION_LESS 13.1)
        add_test(NAME kernels_resources_test
            COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/kernel_resources.py --nvcc=${CMAKE_CUDA_COMPILER} --
                    -std=c++20 -O3 -DFMT_SHARED -I${PROJECT_SOURCE_DIR} --expt-relaxed-constexpr --diag-suppress=554)
        set_tests_properties(kernels_resources_test PROPERTIES LABELS kernel TIMEOUT 300)
    endif()
endif()
