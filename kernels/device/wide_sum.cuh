// 64-bit sums in shared memory by 32-bit atomics. Shared memory has no 64-bit atomic add: the
// compiler generates a compare-and-swap loop (CUDA C++ Programming Guide, "Atomic Functions"; seen
// in the machine code).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

// A sum modulo 2^64. Exact, so its order does not matter: the thread whose addition overflows the
// low word sees that, and carries one.
struct WideSum {
    std::uint32_t low;
    std::uint32_t high;

    // REQUIRES: no addition is in progress.
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
