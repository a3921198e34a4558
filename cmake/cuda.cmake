# Sets PITSTOP_WITH_CUDA. AUTO takes the toolkit where it is found, 12.4 or newer; ON insists. EMULATED takes
# tests/emulated_gpu in place of CUDA: the same sources, compiled as C++, on a GPU in software.
# The CUDA runtime is linked statically, cuBLASLt is found at run time (kernels/runtime/cublas_lt.h), the
# driver by the runtime: what is built here starts where there is no GPU and no CUDA library.
set(PITSTOP_WITH_CUDA OFF)
set(PITSTOP_CUDA_VERSION_MIN 12.4)
if(NOT PITSTOP_CUDA MATCHES "^(AUTO|ON|OFF|EMULATED)$")
    message(FATAL_ERROR "PITSTOP_CUDA is '${PITSTOP_CUDA}'; it takes AUTO, ON, OFF or EMULATED")
endif()

# Machine code for A100-like and Hopper GPUs; wgmma and setmaxnreg need the "a" of 90a, whose PTX
# runs nowhere else, hence the PTX of plain 90 for whatever is newer.
if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual)
endif()
# Code that a Hopper GPU would load without wgmma: machine code of plain 90, PTX that no 90a stands before, and the lists
# whose entries are chosen later.
if(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)(90|90-real|native|all|all-major)(;|$)" OR
   (CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)([1-8][0-9]|90)(-virtual)?(;|$)" AND
    NOT CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90a(-real|-virtual)?(;|$)"))
    message(FATAL_ERROR "CMAKE_CUDA_ARCHITECTURES is '${CMAKE_CUDA_ARCHITECTURES}': a Hopper GPU would load code without "
                        "wgmma. Name 90a-real, or only -real architectures if there is no Hopper GPU")
endif()

if(PITSTOP_CUDA MATCHES "^(AUTO|ON)$")
    if(NOT CMAKE_CUDA_COMPILER)
        find_program(PITSTOP_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
                     PATH_SUFFIXES bin)
        if(PITSTOP_NVCC)
            set(CMAKE_CUDA_COMPILER ${PITSTOP_NVCC})
        endif()
    endif()
    if(CMAKE_CUDA_COMPILER)
        find_package(CUDAToolkit QUIET)
    endif()
    if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND AND NOT CUDAToolkit_VERSION VERSION_LESS PITSTOP_CUDA_VERSION_MIN)
        set(PITSTOP_WITH_CUDA ON)
    elseif(PITSTOP_CUDA STREQUAL "ON")
        message(FATAL_ERROR "PITSTOP_CUDA is ON, but no CUDA toolkit ${PITSTOP_CUDA_VERSION_MIN} or newer was found "
                            "(nvcc: '${CMAKE_CUDA_COMPILER}', version: '${CUDAToolkit_VERSION}'); "
                            "put nvcc on PATH or set CUDA_HOME")
    else()
        message(STATUS "CUDA: no toolkit ${PITSTOP_CUDA_VERSION_MIN} or newer; building for the CPU alone")
    endif()
endif()

if(PITSTOP_WITH_CUDA AND NOT PITSTOP_CUDA STREQUAL "EMULATED")
    message(STATUS "CUDA: toolkit ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
    if(PITSTOP_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
        set(CMAKE_CUDA_COMPILER_LAUNCHER ${PITSTOP_CCACHE})
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo -Xcompiler=-g1")
    # CMake 3.25 does not know that this compiler has C++20, which CMAKE_CXX_STANDARD asks it for.
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    # constexpr functions of the host (ids, bf16, philox, mix64) are callable on the device.
    add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
    # 554: View2<const T> converting to itself, which View2's conversion to const says for a const T.
    target_compile_options(pitstop_warnings INTERFACE
        $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra --diag-suppress=554>
        $<$<AND:$<BOOL:${PITSTOP_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings>)
endif()

if(PITSTOP_CUDA STREQUAL "EMULATED")
    set(PITSTOP_WITH_CUDA ON)
    set(PITSTOP_EMULATED_GPU ON)
    message(STATUS "CUDA: emulated")
endif()
