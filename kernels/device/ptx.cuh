// The instructions that CUDA C++ has no name for, one function each, with their fragment layouts.
// Source: PTX ISA 8.x, sections named at each. Everything here assembles on sm_80.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

// Packs two bf16 into one register, `low` in the lower half. Rounds to nearest even; keeps
// denormals; a NaN becomes 0x7fff.
__device__ inline std::uint32_t pack_bf16x2(float low, float high) {
    std::uint32_t pair = 0;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Computes 2^x, with 2 ulp over the full range; exact 1 for 0 and 0 for -inf ("ex2.approx.ftz").
__device__ inline float exp2_approx(float x) {
    float y = 0.f;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Converts an address in shared memory to the form of the instructions below.
__device__ inline std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Returns the pointer, and tells the compiler that it points to global memory. For a pointer that
// was kept in shared memory the compiler does not know that, and would read by slower instructions
// ("ld", not "ld.global").
template <class T>
__device__ const T* in_global(const T* pointer) {
    __builtin_assume(__isGlobal(pointer));
    return pointer;
}

// Copies 16 bytes from global to shared memory without a register, bypassing L1. Reads only the
// first `src_bytes`; the rest becomes zero ("cp.async"). `to` and `from` 16-byte aligned; with
// src_bytes 0 `from` is not read.
__device__ inline void copy16_async(void* to, const void* from, std::uint32_t src_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from),
                 "r"(src_bytes)
                 : "memory");
}
// Closes a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's latest groups are in flight. Other threads' copies
// are visible after a barrier with them.
template <int kPending>
__device__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads four 8x8 matrices of 16-bit elements ("ldmatrix"). Lane l passes the address of row l % 8
// of matrix l / 8 (16 bytes, aligned); afterwards r[i] of lane l has elements [l / 4][2 * (l % 4)]
// and the next of matrix i.
__device__ inline void load_matrices(std::uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// Loads the same, each matrix transposed on the way: lane l gets [2 * (l % 4)][l / 4] and [2 * (l %
// 4) + 1][l / 4].
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Computes d += a b for one warp, a [16, 16] and b [16, 8] bf16, d [16, 8] fp32 ("mma.m16n8k16").
// With g = lane / 4 and c = 2 * (lane % 4):
//   a[0] = A[g][c, c+1]      a[1] = A[g+8][c, c+1]
//   a[2] = A[g][c+8, c+9]    a[3] = A[g+8][c+8, c+9]
//   b[0] = B[c, c+1][g]      b[1] = B[c+8, c+9][g]
//   d[0] = D[g][c]    d[1] = D[g][c+1]    d[2] = D[g+8][c]    d[3] = D[g+8][c+1]
__device__ inline void mma_16x8x16(
    float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1
) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)
    );
}

// Loads 16 bytes that are read once, without keeping them in L1. Not ".nc", and with a memory
// clobber, so that a barrier orders it.
__device__ inline uint4 load16_streaming(const void* from) {
    uint4 pack;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pack.x), "=r"(pack.y), "=r"(pack.z), "=r"(pack.w)
                 : "l"(from)
                 : "memory");
    return pack;
}

}  // namespace pitstop::kernels
