# The CUDA ops of pitstop_kernels. Without CUDA, functions that report this (no_cuda.cpp, runtime/no_cuda.cpp).
set(PITSTOP_CUDA_SOURCES
    attention_decode.cu attention_general.cu attention_prefill.cu attention_prefill_wgmma.cu digest.cu draws.cu embedding.cu exchange.cu expert_linear.cu expert_linear_wgmma.cu expert_rows.cu expert_tables.cu gate_heads.cu gated_delta.cu
    gather_rows.cu linear.cu linear_gemv.cu logprobs.cu low_rank_rows.cu nonfinite.cu penalties.cu rank_records.cu rmsnorm.cu rope.cu route_rows.cu router.cu sampling.cu scatter.cu shard_copy.cu silu_mul.cu step_rows.cu word_runs.cu
    attention_cuda.cpp cublas_choices.cpp runtime/cublas_lt.cpp runtime/cuda_device.cpp runtime/device_graph_cuda.cpp runtime/device_import_cuda.cpp runtime/device_memory_cuda.cpp runtime/device_range_cuda.cpp runtime/device_users_cuda.cpp runtime/driver_cuda.cpp runtime/kernel_code_cuda.cpp linear_cublas.cpp
    ops_cuda.cpp runtime/stream_list_cuda.cpp)
# Replaces CUDA in builds without it. Every build compiles this file, because tests link it and so find errors in it.
add_library(pitstop_kernels_no_cuda OBJECT no_cuda.cpp runtime/no_cuda.cpp)
target_link_libraries(pitstop_kernels_no_cuda PRIVATE pitstop_digest pitstop_base pitstop_warnings)
target_sources(pitstop_kernels PUBLIC FILE_SET HEADERS FILES runtime/compute_capability.h runtime/cuda_device.h runtime/device_graph.h runtime/device_import.h runtime/device_memory.h runtime/device_range.h runtime/device_users.h runtime/kernel_code.h runtime/kernel_list.h linear_tuning.h runtime/stream_list.h)
if(PITSTOP_EMULATED_GPU)
    # The same sources as C++, against the emulated GPU's headers (tests/emulated_gpu).
    set_source_files_properties(${PITSTOP_CUDA_SOURCES} PROPERTIES LANGUAGE CXX)
    add_library(pitstop_kernels_emulated OBJECT ${PITSTOP_CUDA_SOURCES})
    set_target_properties(pitstop_kernels_emulated PROPERTIES UNITY_BUILD OFF)  # as for nvcc
    target_compile_options(pitstop_kernels_emulated PRIVATE -Wall -Wextra -Wno-unknown-pragmas)
    target_link_libraries(pitstop_kernels_emulated PRIVATE pitstop_emulated_cuda pitstop_digest pitstop_base)
    target_sources(pitstop_kernels PRIVATE $<TARGET_OBJECTS:pitstop_kernels_emulated>)
    target_link_libraries(pitstop_kernels PRIVATE pitstop_emulated_cuda ${CMAKE_DL_LIBS})
    add_dependencies(pitstop_kernels pitstop_emulated_cublas pitstop_emulated_nvml)
elseif(PITSTOP_WITH_CUDA)
    # A separate target: a program that links pitstop_kernels_no_cuda must not get these objects.
    add_library(pitstop_kernels_cuda OBJECT ${PITSTOP_CUDA_SOURCES})
    set_target_properties(pitstop_kernels_cuda PROPERTIES UNITY_BUILD OFF)  # CMake groups .cu files, too, from 3.31 on
    # cuBLASLt's header alone: the library is opened at run time (runtime/cublas_lt.h).
    # Private: code that uses the ops is compiled in the same way with and without CUDA.
    target_include_directories(pitstop_kernels_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(pitstop_kernels_cuda PRIVATE pitstop_digest pitstop_base pitstop_warnings)
    target_sources(pitstop_kernels PRIVATE $<TARGET_OBJECTS:pitstop_kernels_cuda>)
    target_link_libraries(pitstop_kernels PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
else()
    target_sources(pitstop_kernels PRIVATE $<TARGET_OBJECTS:pitstop_kernels_no_cuda>)
endif()
