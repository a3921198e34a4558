#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

// Computes x += delta, and returns the sum of x^2. Uses four accumulators of 16 lanes to hide the
// latency of the adds.
PITSTOP_INLINE float add_and_square(float* x, const float* delta, std::int64_t H) {
    F32x16 acc[4] = {zero(), zero(), zero(), zero()};
    std::int64_t i = 0;
    for (; i + 4 * kLanes <= H; i += 4 * kLanes) {
        for (int a = 0; a < 4; ++a) {
            F32x16 v = load(x + i + a * kLanes);
            if (delta != nullptr) {
                v += load(delta + i + a * kLanes);
                store(x + i + a * kLanes, v);
            }
            acc[a] = fma(v, v, acc[a]);
        }
    }
    for (int a = 0; i < H; i += kLanes, ++a) {
        F32x16 v = load_up_to(x + i, H - i);
        if (delta != nullptr) {
            v += load_up_to(delta + i, H - i);
            store_up_to(x + i, v, H - i);
        }
        acc[a] = fma(v, v, acc[a]);
    }
    return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

template <class Y>
void normalize(const RmsNormArgs& args, std::int64_t begin, std::int64_t end) {
    const std::int64_t H = args.x.cols;
    for (std::int64_t t = begin; t < end; ++t) {
        float* const x = args.x.data + t * args.x.stride;
        const float* const delta =
            args.delta.data == nullptr ? nullptr : args.delta.data + t * args.delta.stride;
        Y* const y = static_cast<Y*>(args.y.data) + t * args.y.stride;
        const float mean = add_and_square(x, delta, H) / static_cast<float>(H);
        const bool is_finite = mean <= __FLT_MAX__;  // false for a NaN
        const float scale_of_row =
            is_finite ? 1.f / __builtin_sqrtf(mean + args.eps) : __builtin_nanf("");
        const F32x16 scale = set1(scale_of_row);
        const F32x16 w_offset = set1(args.w_offset);
        if (args.marks != nullptr) args.marks[t] = is_finite ? 0 : 1;
        for (std::int64_t i = 0; i < H; i += kLanes) {
            const F32x16 normed = load_up_to(x + i, H - i) * scale;
            const F32x16 w = w_offset + load_up_to(args.w + i, H - i);
            store_up_to(y + i, normed * w, H - i);
        }
    }
}

}  // namespace

void rmsnorm(const RmsNormArgs& args) {
    check(args);
    auto rows = [&](std::int64_t begin, std::int64_t end) {
        if (args.y.dtype == DType::kF32) {
            normalize<float>(args, begin, end);
        } else {
            normalize<bf16>(args, begin, end);
        }
    };
    for_ranges(args.stream, args.x.rows, grain_of_bytes(args.x.cols * 16), rows);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
