#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vmath.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

template <class Y, class G>
void gate_rows(const GateHeadsArgs& args, std::int64_t begin, std::int64_t end) {
    const std::int64_t D = args.head_dim;
    const std::int64_t num_heads = args.y.cols / D;
    for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t h = 0; h < num_heads; ++h) {
            Y* const y = static_cast<Y*>(args.y.data) + t * args.y.stride + h * D;
            const G* const gate = static_cast<const G*>(args.gate.data) + t * args.gate.stride +
                                  h * args.gate_head_stride;
            for (std::int64_t i = 0; i < D; i += kLanes) {
                const F32x16 g = load_up_to(gate + i, D - i);
                const F32x16 share = set1(1.f) / (set1(1.f) + exp(zero() - g));
                const F32x16 nan_or_zero = g - g;
                store_up_to(y + i, load_up_to(y + i, D - i) * (share + nan_or_zero), D - i);
            }
        }
    }
}

}  // namespace

void gate_heads(const GateHeadsArgs& args) {
    check(args);
    const bool y_is_f32 = args.y.dtype == DType::kF32;
    const bool gate_is_f32 = args.gate.dtype == DType::kF32;
    auto rows = [&](std::int64_t begin, std::int64_t end) {
        if (y_is_f32 && gate_is_f32) gate_rows<float, float>(args, begin, end);
        if (y_is_f32 && !gate_is_f32) gate_rows<float, bf16>(args, begin, end);
        if (!y_is_f32 && gate_is_f32) gate_rows<bf16, float>(args, begin, end);
        if (!y_is_f32 && !gate_is_f32) gate_rows<bf16, bf16>(args, begin, end);
    };
    for_ranges(args.stream, args.y.rows, grain_of_bytes(args.y.cols * 24), rows);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
