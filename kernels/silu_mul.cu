#include "kernels/silu_mul.h"

#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/silu.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 8;

// grid [ceil(F / (kThreads * kPack)), T], block [kThreads]; a thread owns 8 neighbouring numbers.
// Memory-bound: bf16 4F bytes in, 2F out per row; 8k rows of F = 12288 move 604 MB, 140 us at
// 4.3 TB/s. About 25 instructions per number: half of what the SMs could issue in that time. y may
// be gate or up: a thread writes what it alone has read.
template <class In, class Out, bool kIsAligned>  // F % 8 == 0, rows 16-byte aligned
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(
    const In* gate,  // [T, F]
    std::int64_t gate_stride,
    const In* up,  // [T, F]
    std::int64_t up_stride,
    Out* y,  // [T, F]
    std::int64_t y_stride,
    std::int64_t F
) {
    let_next_kernel_start();
    wait_for_kernel_before();
    const std::int64_t t = blockIdx.x;
    const std::int64_t i = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kPack;
    if (i >= F) return;
    const In* const gate_t = gate + t * gate_stride + i;
    const In* const up_t = up + t * up_stride + i;
    Out* const y_t = y + t * y_stride + i;
    if constexpr (kIsAligned) {
        float gates[kPack];
        float ups[kPack];
        load_floats(gate_t, gates);
        load_floats(up_t, ups);
        float out[kPack];
#pragma unroll
        for (int k = 0; k < kPack; ++k) out[k] = silu_mul(gates[k], ups[k]);
        store_floats(y_t, out);
    } else {
        for (int k = 0; k < kPack && i + k < F; ++k)
            store_float(y_t + k, silu_mul(load_float(gate_t + k), load_float(up_t + k)));
    }
}

template <class In, class Out>
void run(const SiluMulArgs& args) {
    const auto& [gate, up, y, stream] = args;
    const bool is_aligned_16 = gate.cols % kPack == 0 && is_aligned(gate.data, 16) &&
                               gate.stride % kPack == 0 && is_aligned(up.data, 16) &&
                               up.stride % kPack == 0 && is_aligned(y.data, 16) &&
                               y.stride % kPack == 0;
    const Launch where{
        .grid = dim3(
            narrow<unsigned>(gate.rows), narrow<unsigned>(ceil_div(gate.cols, kThreads * kPack))
        ),
        .block = dim3(kThreads),
        .stream = stream,
        .starts_early = true};
    const auto go = [&]<bool kIsAligned>() {
        launch<silu_mul_kernel<In, Out, kIsAligned>>(
            where,
            static_cast<const In*>(gate.data),
            gate.stride,
            static_cast<const In*>(up.data),
            up.stride,
            static_cast<Out*>(y.data),
            y.stride,
            gate.cols
        );
    };
    is_aligned_16 ? go.template operator()<true>() : go.template operator()<false>();
}

}  // namespace

void silu_mul_cuda(const SiluMulArgs& args) {
    check(args);
    const bool in_bf16 = args.gate.dtype == DType::kBF16;
    const bool out_bf16 = args.y.dtype == DType::kBF16;
    if (in_bf16) {
        out_bf16 ? run<bf16, bf16>(args) : run<bf16, float>(args);
    } else {
        out_bf16 ? run<float, bf16>(args) : run<float, float>(args);
    }
}

}  // namespace pitstop::kernels
