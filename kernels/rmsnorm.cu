#include "kernels/rmsnorm.h"

#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

// The block size is fixed, never tuned to T: it sets the order of the sum, hence the bits (P6).
constexpr int kThreads = 256;
constexpr int kPack = 4;          // a thread's unit; pack p belongs to thread p mod 256
constexpr int kHeldPacksMax = 8;  // per thread in registers: H up to 8192

// Loads numbers 4p .. 4p+3 of a row of H: with one load if the row is aligned, else with one each,
// zeros beyond H.
template <bool kIsAligned, class T>
__device__ void load_pack(const T* row, int p, int H, float (&to)[kPack]) {
    if constexpr (kIsAligned) {
        load_floats(row + p * kPack, to);
    } else {
#pragma unroll
        for (int k = 0; k < kPack; ++k)
            to[k] = p * kPack + k < H ? load_float(row + p * kPack + k) : 0.f;
    }
}
template <bool kIsAligned, class T>
__device__ void store_pack(T* row, int p, int H, const float (&from)[kPack]) {
    if constexpr (kIsAligned) {
        store_floats(row + p * kPack, from);
    } else {
#pragma unroll
        for (int k = 0; k < kPack; ++k)
            if (p * kPack + k < H) store_float(row + p * kPack + k, from[k]);
    }
}

__device__ float add_squares(float sum_sq, const float (&numbers)[kPack]) {
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum_sq = fmaf(numbers[k], numbers[k], sum_sq);
    return sum_sq;
}

// Returns NaN if the sum of squares is infinite or NaN: rsqrt(inf) would be 0, and the row would
// look healthy.
__device__ float scale_of(float sum_sq, int H, float eps) {
    const float scale = rsqrtf(sum_sq / static_cast<float>(H) + eps);
    return is_nonfinite(sum_sq) ? __uint_as_float(0x7fffffffu) : scale;
}

template <bool kIsAligned, class Out>
__device__ void store_scaled(
    Out* y_t,
    const bf16* w,
    float w_offset,
    int p,
    int H,
    float scale,
    const float (&numbers)[kPack]
) {
    float weights[kPack];
    load_pack<kIsAligned>(w, p, H, weights);
    float scaled[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k) scaled[k] = numbers[k] * scale * (w_offset + weights[k]);
    store_pack<kIsAligned>(y_t, p, H, scaled);
}

// Adds delta's row to x's, which is in registers, and writes the sums to x. All loads precede the
// first store, because the compiler moves no load above a store.
template <int kHeldPacks>
__device__ void add_delta(
    float (&held)[kHeldPacks][kPack], const float* delta_t, float* x_t, int thread, int H
) {
    float added[kHeldPacks][kPack];
#pragma unroll
    for (int j = 0; j < kHeldPacks; ++j) {
        const int p = thread + j * kThreads;
        if (p * kPack < H) load_pack<true>(delta_t, p, H, added[j]);
    }
#pragma unroll
    for (int j = 0; j < kHeldPacks; ++j) {
        const int p = thread + j * kThreads;
        if (p * kPack >= H) continue;
#pragma unroll
        for (int k = 0; k < kPack; ++k) held[j][k] += added[j][k];
        store_pack<true>(x_t, p, H, held[j]);
    }
}

// grid [T], block [kThreads]; block t owns row t. Memory-bound: per row 4H bytes of x in, with
// delta 4H more in and 4H of x out, 2H (bf16) out; w stays in L2. With delta 14H: 8k rows of H =
// 4096 move 470 MB, 109 us at 4.3 TB/s. x, delta and y may alias, so none is __restrict__: a thread
// writes only what it alone reads. The order of the sum is the same in all variants.
//
// With kHeldPacks > 0 the row is read once and kept in registers; otherwise the second pass reads
// it from L2. All its loads, delta's too, precede the first store, because the compiler moves no
// load above a store: H = 4096 has 128 bytes per thread in flight, 160 KiB per SM at 5 blocks.
template <class Out, int kHeldPacks>  // held: aligned, H % 4 == 0, H <= kThreads * kPack * held
__global__ void __launch_bounds__(kThreads) rmsnorm_kernel(
    float* x,  // [T, H]
    std::int64_t x_stride,
    const float* delta,  // [T, H] or null
    std::int64_t delta_stride,
    const bf16* __restrict__ w,  // [H]
    float w_offset,
    Out* y,  // [T, H]
    std::int64_t y_stride,
    int H,
    float eps,
    std::uint8_t* __restrict__ marks  // [T] or null
) {
    let_next_kernel_start();
    wait_for_kernel_before();
    const std::int64_t t = blockIdx.x;
    const int thread = static_cast<int>(threadIdx.x);
    float* const x_t = x + t * x_stride;
    const float* const delta_t = delta == nullptr ? nullptr : delta + t * delta_stride;
    Out* const y_t = y + t * y_stride;
    float sum_sq = 0.f;
    if constexpr (kHeldPacks > 0) {
        float held[kHeldPacks][kPack];
#pragma unroll
        for (int j = 0; j < kHeldPacks; ++j) {
            const int p = thread + j * kThreads;
            if (p * kPack < H) load_pack<true>(x_t, p, H, held[j]);
        }
        if (delta_t != nullptr) add_delta(held, delta_t, x_t, thread, H);
#pragma unroll
        for (int j = 0; j < kHeldPacks; ++j)
            if ((thread + j * kThreads) * kPack < H) sum_sq = add_squares(sum_sq, held[j]);
        const float scale = scale_of(block_sum<kThreads>(sum_sq), H, eps);
        if (marks != nullptr && thread == 0) marks[t] = isnan(scale) ? 1 : 0;
#pragma unroll
        for (int j = 0; j < kHeldPacks; ++j) {
            const int p = thread + j * kThreads;
            if (p * kPack < H) store_scaled<true>(y_t, w, w_offset, p, H, scale, held[j]);
        }
    } else {
        for (int p = thread; p * kPack < H; p += kThreads) {
            float numbers[kPack];
            load_pack<false>(x_t, p, H, numbers);
            if (delta_t != nullptr) {
                float added[kPack];
                load_pack<false>(delta_t, p, H, added);
#pragma unroll
                for (int k = 0; k < kPack; ++k) numbers[k] += added[k];
                store_pack<false>(x_t, p, H, numbers);
            }
            sum_sq = add_squares(sum_sq, numbers);
        }
        const float scale = scale_of(block_sum<kThreads>(sum_sq), H, eps);
        if (marks != nullptr && thread == 0) marks[t] = isnan(scale) ? 1 : 0;
        for (int p = thread; p * kPack < H; p += kThreads) {
            float numbers[kPack];
            load_pack<false>(x_t, p, H, numbers);
            store_scaled<false>(y_t, w, w_offset, p, H, scale, numbers);
        }
    }
}

template <class Out>
void run(const RmsNormArgs& args, bool may_be_held) {
    const std::int64_t H = args.x.cols;
    const auto go = [&]<int kHeldPacks>() {
        launch<rmsnorm_kernel<Out, kHeldPacks>>(
            {.grid = dim3(narrow<unsigned>(args.x.rows)),
             .block = dim3(kThreads),
             .stream = args.stream,
             .starts_early = true},
            args.x.data,
            args.x.stride,
            args.delta.data,
            args.delta.stride,
            args.w,
            args.w_offset,
            static_cast<Out*>(args.y.data),
            args.y.stride,
            narrow<int>(H),
            args.eps,
            args.marks
        );
    };
    if (!may_be_held) {
        go.template operator()<0>();
    } else if (H <= kThreads * kPack * kHeldPacksMax / 2) {
        go.template operator()<kHeldPacksMax / 2>();
    } else {
        go.template operator()<kHeldPacksMax>();
    }
}

}  // namespace

void rmsnorm_cuda(const RmsNormArgs& args) {
    check(args);
    CHECK(args.x.cols <= std::int64_t{1} << 30);
    const bool may_be_held =
        args.x.cols % kPack == 0 && args.x.cols <= kThreads * kPack * kHeldPacksMax &&
        is_aligned(args.x.data, 16) && args.x.stride % kPack == 0 &&
        is_aligned(args.delta.data, 16) && args.delta.stride % kPack == 0 &&
        is_aligned(args.w, 8) && is_aligned(args.y.data, 16) && args.y.stride % kPack == 0;
    args.y.dtype == DType::kBF16 ? run<bf16>(args, may_be_held) : run<float>(args, may_be_held);
}

}  // namespace pitstop::kernels
