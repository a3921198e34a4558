#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

// Computes 1 / sqrt(mean(x^2) + eps) of one head; 16 lanes, element i in lane i mod 16.
template <class X>
PITSTOP_INLINE float norm_scale(const X* x, std::int64_t D, float eps) {
    F32x16 acc = zero();
    for (std::int64_t i = 0; i < D; i += kLanes) {
        const F32x16 v = load_up_to(x + i, D - i);
        acc = fma(v, v, acc);
    }
    const float mean = sum(acc) / static_cast<float>(D);
    return mean <= __FLT_MAX__ ? 1.f / __builtin_sqrtf(mean + eps) : __builtin_nanf("");
}

// Returns a key's elements as they are stored: NaN where `Kv` would have an infinity.
template <class Kv>
PITSTOP_INLINE F32x16 kept_key(F32x16 x) {
    const float limit = sizeof(Kv) == sizeof(float) ? __builtin_inff() : 0x1.ffp127f;
    const F32x16 size = as_f32(as_u32(x) & set1_u32(0x7fffffffu));
    return select(gt(set1(limit), size), x, set1(__builtin_nanf("")));
}

struct Norm {
    const bf16* w = nullptr;  // [D] or null
    float offset = 0.f;
    float eps = 0.f;
};

// Loads elements [begin, begin + n) of a head of x, normed if w is given.
template <class X>
PITSTOP_INLINE F32x16
load_normed(const X* x, const Norm& norm, float scale, std::int64_t begin, std::int64_t n) {
    const F32x16 v = load_up_to(x + begin, n);
    if (norm.w == nullptr) return v;
    return v * set1(scale) * (set1(norm.offset) + load_up_to(norm.w + begin, n));
}

// Norms and rotates one head. y may be x: each pair of halves is loaded before it is stored.
template <bool kIsKey, class X, class Y>
PITSTOP_INLINE void rotate_head(
    const X* x,  // [D]
    Y* y,        // [D]
    const Norm& norm,
    const float* cos,  // [R/2]
    const float* sin,  // [R/2]
    std::int64_t D,
    std::int64_t half
) {
    const float scale = norm.w == nullptr ? 1.f : norm_scale(x, D, norm.eps);
    const auto kept = [](F32x16 v) PITSTOP_INLINE_LAMBDA { return kIsKey ? kept_key<Y>(v) : v; };
    for (std::int64_t i = 0; i < half; i += kLanes) {
        const std::int64_t n = half - i;
        const F32x16 a = load_normed(x, norm, scale, i, n);
        const F32x16 b = load_normed(x, norm, scale, i + half, n);
        const F32x16 c = load_up_to(cos + i, n);
        const F32x16 s = load_up_to(sin + i, n);
        store_up_to(y + i, kept(a * c - b * s), n);
        store_up_to(y + i + half, kept(b * c + a * s), n);
    }
    for (std::int64_t i = 2 * half; i < D; i += kLanes) {
        store_up_to(y + i, kept(load_normed(x, norm, scale, i, D - i)), D - i);
    }
}

template <class X, class QOut, class Kv>
void rope_rows(const RopeArgs& args, std::int64_t begin, std::int64_t end) {
    const std::int64_t D = args.kv.head_dim;
    const std::int64_t half = args.cos.cols;
    const std::int64_t page_size = args.kv.page_size;
    const std::int64_t head_elements = page_size * D;
    const std::int64_t value_elements =
        args.kv.num_kv_heads * head_elements;  // from a key to its value
    const std::int64_t q_stride = args.q_head_stride == 0 ? D : args.q_head_stride;
    const Norm q_norm{args.q_norm, args.norm_offset, args.norm_eps};
    const Norm k_norm{args.k_norm, args.norm_offset, args.norm_eps};
    for (std::int64_t t = begin; t < end; ++t) {
        const float* const cos = args.cos.data + args.positions[t] * args.cos.stride;
        const float* const sin = args.sin.data + args.positions[t] * args.sin.stride;
        const X* const q = static_cast<const X*>(args.q.data) + t * args.q.stride;
        const X* const k = static_cast<const X*>(args.k.data) + t * args.k.stride;
        const X* const v = static_cast<const X*>(args.v.data) + t * args.v.stride;
        QOut* const q_out = static_cast<QOut*>(args.q_out.data) + t * args.q_out.stride;
        for (std::int64_t h = 0; h < args.q_out.cols / D; ++h) {
            rotate_head<false>(q + h * q_stride, q_out + h * D, q_norm, cos, sin, D, half);
        }
        const std::int64_t page = args.slots[t] / page_size;
        const std::int64_t offset_in_page = args.slots[t] % page_size;
        Kv* key = static_cast<Kv*>(args.kv.data) + page * 2 * value_elements + offset_in_page * D;
        for (std::int64_t i = 0; i < args.k.cols; i += D, key += head_elements) {
            rotate_head<true>(k + i, key, k_norm, cos, sin, D, half);
            Kv* const value = key + value_elements;
            for (std::int64_t j = 0; j < D; j += kLanes)
                store_up_to(value + j, load_up_to(v + i + j, D - j), D - j);
        }
    }
}

template <class X, class QOut>
void rope_rows_of(const RopeArgs& args, std::int64_t begin, std::int64_t end) {
    if (args.kv.dtype == DType::kF32) {
        rope_rows<X, QOut, float>(args, begin, end);
    } else {
        rope_rows<X, QOut, bf16>(args, begin, end);
    }
}

}  // namespace

void rope(const RopeArgs& args) {
    check(args);
    const bool x_is_f32 = args.q.dtype == DType::kF32;
    const bool out_is_f32 = args.q_out.dtype == DType::kF32;
    auto rows = [&](std::int64_t begin, std::int64_t end) {
        if (x_is_f32 && out_is_f32) rope_rows_of<float, float>(args, begin, end);
        if (x_is_f32 && !out_is_f32) rope_rows_of<float, bf16>(args, begin, end);
        if (!x_is_f32 && out_is_f32) rope_rows_of<bf16, float>(args, begin, end);
        if (!x_is_f32 && !out_is_f32) rope_rows_of<bf16, bf16>(args, begin, end);
    };
    for_ranges(
        args.stream, args.q.rows, grain_of_bytes((args.q_out.cols + 2 * args.k.cols) * 12), rows
    );
}

}  // namespace pitstop::kernels::PITSTOP_ISA
