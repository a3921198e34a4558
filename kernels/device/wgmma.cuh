// Hopper's warpgroup matrix instructions and the barriers that feed them. Source: PTX ISA 8.x,
// "Asynchronous warpgroup level matrix instructions" and "mbarrier"; the descriptors also in
// CUTLASS, include/cute/arch/mma_sm90_desc.hpp. Only for sm_90a: guard callers with
// __CUDA_ARCH_FEAT_SM90_ALL.
#pragma once

#include "kernels/device/ptx.cuh"
#include "kernels/device/wgmma_descriptor.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

inline constexpr int kWarpgroup = 128;  // threads: four warps, the first a multiple of four

// ---- ordering ----

// Must precede the first product, and any product after writes to registers of its
// operands or sums.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are in flight. The sums pass through, so that no
// use of them moves above the wait.
template <int kPending, int N>
__device__ void wgmma_wait(float (&d)[N]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Waits for products whose sums later products add to: the operands in shared memory may be
// overwritten afterwards, but the sums must not be read.
template <int kPending>
__device__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Orders earlier writes to shared memory (also by cp.async) before later reads by products.
__device__ inline void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- products: m64nNk16, bf16, sums in fp32 ----
//
// Warp w of the warpgroup has rows 16w .. 16w+15; within it the fragments are those of mma.m16n8k16
// (ptx.cuh), one after the other over N. The sums must not be touched before wgmma_wait().

// Eight of the sums, as operands.
#define PITSTOP_SUMS8(d, i)                                                                     \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])

// Computes d (+)= a b with both in shared memory (wgmma_rows_descriptor), N = 128; with `adds` 0, d
// = a b.
__device__ inline void wgmma_ss(float (&d)[64], std::uint64_t a, std::uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}"
        : PITSTOP_SUMS8(d, 0),
          PITSTOP_SUMS8(d, 8),
          PITSTOP_SUMS8(d, 16),
          PITSTOP_SUMS8(d, 24),
          PITSTOP_SUMS8(d, 32),
          PITSTOP_SUMS8(d, 40),
          PITSTOP_SUMS8(d, 48),
          PITSTOP_SUMS8(d, 56)
        : "l"(a), "l"(b), "r"(adds)
    );
}

// The same, N = 256.
__device__ inline void wgmma_ss(float (&d)[128], std::uint64_t a, std::uint64_t b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, "
        "%72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, "
        "%88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, "
        "%104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, "
        "%120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, 0, 0;\n}"
        : PITSTOP_SUMS8(d, 0),
          PITSTOP_SUMS8(d, 8),
          PITSTOP_SUMS8(d, 16),
          PITSTOP_SUMS8(d, 24),
          PITSTOP_SUMS8(d, 32),
          PITSTOP_SUMS8(d, 40),
          PITSTOP_SUMS8(d, 48),
          PITSTOP_SUMS8(d, 56),
          PITSTOP_SUMS8(d, 64),
          PITSTOP_SUMS8(d, 72),
          PITSTOP_SUMS8(d, 80),
          PITSTOP_SUMS8(d, 88),
          PITSTOP_SUMS8(d, 96),
          PITSTOP_SUMS8(d, 104),
          PITSTOP_SUMS8(d, 112),
          PITSTOP_SUMS8(d, 120)
        : "l"(a), "l"(b), "r"(adds)
    );
}

// Computes d += a b with a in registers and b's rows along K (wgmma_columns_descriptor), N = 128.
__device__ inline void wgmma_rs(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
        : PITSTOP_SUMS8(d, 0),
          PITSTOP_SUMS8(d, 8),
          PITSTOP_SUMS8(d, 16),
          PITSTOP_SUMS8(d, 24),
          PITSTOP_SUMS8(d, 32),
          PITSTOP_SUMS8(d, 40),
          PITSTOP_SUMS8(d, 48),
          PITSTOP_SUMS8(d, 56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
    );
}

// Computes d += a b with a in registers and b's rows along K (wgmma_columns_descriptor), N = 64.
__device__ inline void wgmma_rs(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
        : PITSTOP_SUMS8(d, 0), PITSTOP_SUMS8(d, 8), PITSTOP_SUMS8(d, 16), PITSTOP_SUMS8(d, 24)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
    );
}

#undef PITSTOP_SUMS8

// ---- barriers ----

// A phase of a barrier ends after `num` arrivals; waiters name the parity of the phase they wait
// for, 0 first. The barrier is in shared memory, 8-byte aligned.
__device__ inline void barrier_init(std::uint64_t* barrier, int num) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(num)
                 : "memory");
}
// Arrives, and makes this thread's writes visible to waiters.
__device__ inline void barrier_arrive(std::uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
__device__ inline void barrier_wait(std::uint64_t* barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory"
    );
}
// Synchronizes the kNum threads that name barrier `id` (1 to 15; 0 is __syncthreads').
template <int kNum>
__device__ void named_barrier(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kNum) : "memory");
}
// Arrives as one of the kNum threads, without waiting.
template <int kNum>
__device__ void named_barrier_arrive(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kNum) : "memory");
}

// Sets the registers of each thread of this warpgroup from here on: more for multiplying threads,
// fewer for copying ones. All its threads call it.
template <int kRegisters>
__device__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace pitstop::kernels
