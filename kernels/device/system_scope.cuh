// Communication between threads of different GPUs: loads and stores of a word that order the memory
// around them for the whole system, a clock, and a pause.
// Source: PTX ISA 8.x, "ld", "st", "Memory Consistency Model", "%globaltimer".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

// Writes a value. A thread that reads it with load_acquire_system() sees everything that was
// written before by this thread, and by threads that it met at a barrier.
__device__ inline void store_release_system(std::uint64_t* to, std::uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ inline std::uint64_t load_acquire_system(const std::uint64_t* from) {
    std::uint64_t value = 0;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
}

// Returns the nanoseconds of a clock that advances while the thread waits, in steps of up to
// a millisecond.
__device__ inline std::uint64_t global_nanoseconds() {
    std::uint64_t now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Pauses between two looks at a word that another block or another GPU will write. Only for
// cooperative launches: otherwise the awaited block might not start before this block has ended.
__device__ inline void stand_by() { __nanosleep(20); }

}  // namespace pitstop::kernels
