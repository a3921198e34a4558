// Stands in for kernels/device/wgmma.cuh in the emulator. Operands are read from shared memory by
// the descriptors' fields: the canonical layouts with the 128-byte swizzle in CUTLASS's
// include/cute/arch/mma_sm90_desc.hpp, in elements of 16 bits,
//   rows are M or N   (row, column): row / 8 * stride + row % 8 * 64 + column
//   rows are K        (n, k):        n / 64 * leading + k / 8 * stride + k % 8 * 64 + n % 64
// and then bits 4-6 of the byte's address are XORed with its bits 7-9.
#pragma once

#include "kernels/device/ptx.cuh"
#include "kernels/device/wgmma_descriptor.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace pitstop::kernels {

inline constexpr int kWarpgroup = 128;

// From the start of the block's dynamic shared memory, which is aligned as the real one.
inline std::uint32_t shared_address(const void* pointer) {
    emulator::check_shared(pointer, 1, 16);
    return static_cast<std::uint32_t>(
        static_cast<const std::byte*>(pointer) - emulator::dynamic_shared_memory()
    );
}

}  // namespace pitstop::kernels

namespace pitstop::emulator {

struct Operand {
    std::uint32_t address, leading, stride;  // bytes

    explicit Operand(std::uint64_t descriptor)
        : address(static_cast<std::uint32_t>(descriptor & 0x3fff) << 4),
          leading(static_cast<std::uint32_t>(descriptor >> 16 & 0x3fff) << 4),
          stride(static_cast<std::uint32_t>(descriptor >> 32 & 0x3fff) << 4) {
        if (descriptor >> 62 != 1) fail("a descriptor without the 128-byte swizzle");
        if ((descriptor >> 49 & 7) != 0) fail("a descriptor with a base offset");
    }
    static float read(std::uint32_t byte) {
        const std::byte* const from =
            emulator::dynamic_shared_memory() + (byte ^ ((byte >> 7 & 7u) << 4));
        check_shared(from, 2, 2);
        check_seen_by_async_proxy(from, 2);
        bf16 value;
        std::memcpy(&value, from, sizeof value);
        return to_float(value);
    }
    [[nodiscard]] float by_rows(int row, int column) const {
        return read(
            address + static_cast<std::uint32_t>(row / 8) * stride +
            static_cast<std::uint32_t>(row % 8 * 128 + column * 2)
        );
    }
    [[nodiscard]] float by_columns(int n, int k) const {
        return read(
            address + static_cast<std::uint32_t>(n / 64) * leading +
            static_cast<std::uint32_t>(k / 8) * stride +
            static_cast<std::uint32_t>(k % 8 * 128 + n % 64 * 2)
        );
    }
};

// Row (of 64) and column of this thread's sum i.
inline int row_of(int i) {
    const int thread = current->linear % kernels::kWarpgroup;
    return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
inline int column_of(int i) { return i / 4 * 8 + current->linear % 4 * 2 + i % 2; }

// The 16 columns of A in rows g and g + 8, from the four lanes that hold them.
struct RegisterRows {
    std::uint32_t pairs[2][8];
};
inline RegisterRows gather_rows(const std::uint32_t (&a)[4]) {
    Fragment own;
    std::memcpy(own.r, a, sizeof own.r);
    return warp_instruction<Fragment, RegisterRows>(
        "wgmma",
        own,
        [](const Fragment* in, RegisterRows* out) {
            for (int lane = 0; lane < kLanes; ++lane) {
                for (int in_group = 0; in_group < 4; ++in_group) {
                    const Fragment& from = in[lane / 4 * 4 + in_group];
                    for (int i = 0; i < 4;
                         ++i)  // register i: row g + 8 (i odd), columns + 8 (i >= 2)
                        out[lane].pairs[i % 2][in_group + i / 2 * 4] = from.r[i];
                }
            }
        }
    );
}

template <int N>
void multiply_registers(float (&d)[N], const std::uint32_t (&a)[4], std::uint64_t b) {
    const RegisterRows rows = gather_rows(a);
    float* const to = d;
    const auto run = [=] {
        const Operand values(b);
        for (int i = 0; i < N; ++i) {
            double sum = double{to[i]};
            for (int k = 0; k < 16; ++k) {
                const std::uint32_t pair = rows.pairs[i / 2 % 2][k / 2];
                const bf16 p{static_cast<std::uint16_t>(pair >> 16 * (k % 2))};
                sum += double{to_float(p)} * double{values.by_columns(column_of(i), k)};
            }
            to[i] = static_cast<float>(sum);
        }
    };
    multiply_async({.run = run, .sums = {d, sizeof d}, .fragment = {a, sizeof a}});
}

}  // namespace pitstop::emulator

namespace pitstop::kernels {

inline void wgmma_fence() { emulator::fence_products(); }
inline void wgmma_commit() { emulator::commit_products(); }
template <int kPending>
void wgmma_wait() {
    emulator::wait_products(kPending);
    __syncwarp();  // the wait is ".aligned": no lane passes it before all reach it
}
template <int kPending, int N>
void wgmma_wait(float (&)[N]) {
    wgmma_wait<kPending>();
}
inline void fence_async_proxy() { emulator::fence_proxy(); }

template <int N>
void wgmma_ss(float (&d)[N], std::uint64_t a, std::uint64_t b, int adds) {
    (void)emulator::gather_rows({0, 0, 0, 0});  // all lanes are here
    float* const to = d;
    const auto run = [=] {
        const emulator::Operand queries(a);
        const emulator::Operand keys(b);
        for (int i = 0; i < N; ++i) {
            double sum = adds != 0 ? double{to[i]} : 0.0;
            for (int k = 0; k < 16; ++k) {
                sum += double{queries.by_rows(emulator::row_of(i), k)} *
                       double{keys.by_rows(emulator::column_of(i), k)};
            }
            to[i] = static_cast<float>(sum);
        }
    };
    emulator::multiply_async({.run = run, .sums = {d, sizeof d}});
}
inline void wgmma_rs(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b) {
    emulator::multiply_registers(d, a, b);
}
inline void wgmma_rs(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) {
    emulator::multiply_registers(d, a, b);
}

inline void barrier_init(std::uint64_t* barrier, int num) { emulator::barrier_init(barrier, num); }
inline void barrier_arrive(std::uint64_t* barrier) { emulator::barrier_arrive(barrier); }
inline void barrier_wait(std::uint64_t* barrier, int parity) {
    emulator::barrier_wait(barrier, parity);
}
template <int kNum>
void named_barrier(int id) {
    emulator::named_barrier(id, kNum);
}
template <int kNum>
void named_barrier_arrive(int id) {
    emulator::named_barrier_arrive(id, kNum);
}
template <int kRegisters>
void take_registers() {
    emulator::take_registers(kRegisters);
}
template <int kRegisters>
void give_registers() {
    emulator::give_registers(kRegisters);
}

}  // namespace pitstop::kernels
