// Sums 64 bits in shared memory, whose own atomics have 32: those of 64 are loops of
// compare-and-swap there (CUDA C++ Programming Guide, "Atomic Functions"; seen in their machine
// code).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

// Holds a sum modulo 2^64. It is exact, so its order decides nothing: each addition to the low word
// that passes its end is seen by whoever made it, and carries one.
struct WideSum {
    std::uint32_t low;
    std::uint32_t high;

    // REQUIRES: no addition is under way.
    [[nodiscard]] __device__ std::uint64_t value() const { return std::uint64_t{high} << 32 | low; }
};

__device__ inline void atomic_add(WideSum& sum, std::uint64_t value) {
    const auto low = static_cast<std::uint32_t>(value);
    const std::uint32_t before = atomicAdd(&sum.low, low);
    const std::uint32_t carry = before + low < low ? 1u : 0u;
    const std::uint32_t high = static_cast<std::uint32_t>(value >> 32) + carry;
    if (high != 0) atomicAdd(&sum.high, high);
}

}  // namespace pitstop::kernels
