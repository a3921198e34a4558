#include "kernels/gate_heads.h"

#include "kernels/device/numbers.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 8;

// Infinities and NaNs become NaN.
__device__ float share_of(float gate) { return 1.f / (1.f + expf(-gate)) + (gate - gate); }

// grid [T, ceil(Q*D / (kThreads * kPack))], block [kThreads]; a thread owns 8 neighbouring numbers.
// Memory-bound: bf16 4QD bytes in, 2QD out per token. Not measured.
template <class Y, class Gate, bool kIsAligned>  // D % 8 == 0, heads and gates 16-byte aligned
__global__ void __launch_bounds__(kThreads) gate_heads_kernel(
    Y* y,  // [T, Q*D]
    std::int64_t y_stride,
    std::int32_t num_columns,
    std::int32_t head_dim,
    const Gate* __restrict__ gate,
    std::int64_t gate_stride,
    std::int64_t gate_head_stride
) {
    const std::int64_t t = blockIdx.x;
    const int begin = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kPack;
    if (begin >= num_columns) return;
    Y* const y_t = y + t * y_stride;
    const Gate* const gate_t = gate + t * gate_stride;
    const auto gate_of = [&](int i) { return i / head_dim * gate_head_stride + i % head_dim; };
    if constexpr (kIsAligned) {
        float numbers[kPack];
        float gates[kPack];
        load_floats(y_t + begin, numbers);
        load_floats(gate_t + gate_of(begin), gates);
#pragma unroll
        for (int k = 0; k < kPack; ++k) numbers[k] *= share_of(gates[k]);
        store_floats(y_t + begin, numbers);
    } else {
        for (int i = begin; i < begin + kPack && i < num_columns; ++i)
            store_float(y_t + i, load_float(y_t + i) * share_of(load_float(gate_t + gate_of(i))));
    }
}

template <class Y, class Gate>
void run(const GateHeadsArgs& args) {
    const auto& [y, head_dim, gate, gate_head_stride, stream] = args;
    const bool is_aligned_16 = head_dim % kPack == 0 && is_aligned(y.data, 16) &&
                               y.stride % kPack == 0 && is_aligned(gate.data, 16) &&
                               gate.stride % kPack == 0 && gate_head_stride % kPack == 0;
    const Launch where{
        .grid =
            dim3(narrow<unsigned>(y.rows), narrow<unsigned>(ceil_div(y.cols, kThreads * kPack))),
        .block = dim3(kThreads),
        .stream = stream};
    const auto go = [&]<bool kIsAligned>() {
        launch<gate_heads_kernel<Y, Gate, kIsAligned>>(
            where,
            static_cast<Y*>(y.data),
            y.stride,
            narrow<std::int32_t>(y.cols),
            narrow<std::int32_t>(head_dim),
            static_cast<const Gate*>(gate.data),
            gate.stride,
            gate_head_stride
        );
    };
    is_aligned_16 ? go.template operator()<true>() : go.template operator()<false>();
}

}  // namespace

void gate_heads_cuda(const GateHeadsArgs& args) {
    check(args);
    const bool gate_bf16 = args.gate.dtype == DType::kBF16;
    if (args.y.dtype == DType::kBF16) {
        gate_bf16 ? run<bf16, bf16>(args) : run<bf16, float>(args);
    } else {
        gate_bf16 ? run<float, bf16>(args) : run<float, float>(args);
    }
}

}  // namespace pitstop::kernels
