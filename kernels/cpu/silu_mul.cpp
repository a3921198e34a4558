#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vmath.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

template <class X, class Y>
void silu_mul_rows(const SiluMulArgs& args, std::int64_t begin, std::int64_t end) {
    const std::int64_t F = args.gate.cols;
    for (std::int64_t t = begin; t < end; ++t) {
        const X* const gate = static_cast<const X*>(args.gate.data) + t * args.gate.stride;
        const X* const up = static_cast<const X*>(args.up.data) + t * args.up.stride;
        Y* const y = static_cast<Y*>(args.y.data) + t * args.y.stride;
        for (std::int64_t i = 0; i < F; i += kLanes) {
            const F32x16 g = load_up_to(gate + i, F - i);
            const F32x16 silu = g / (set1(1.f) + exp(zero() - g));
            store_up_to(y + i, silu * load_up_to(up + i, F - i), F - i);
        }
    }
}

}  // namespace

void silu_mul(const SiluMulArgs& args) {
    check(args);
    const bool x_is_f32 = args.gate.dtype == DType::kF32;
    const bool y_is_f32 = args.y.dtype == DType::kF32;
    auto rows = [&](std::int64_t begin, std::int64_t end) {
        if (x_is_f32 && y_is_f32) silu_mul_rows<float, float>(args, begin, end);
        if (x_is_f32 && !y_is_f32) silu_mul_rows<float, bf16>(args, begin, end);
        if (!x_is_f32 && y_is_f32) silu_mul_rows<bf16, float>(args, begin, end);
        if (!x_is_f32 && !y_is_f32) silu_mul_rows<bf16, bf16>(args, begin, end);
    };
    for_ranges(args.stream, args.y.rows, grain_of_bytes(args.y.cols * 24), rows);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
