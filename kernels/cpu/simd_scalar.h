// F32x16 as an array, for a processor without AVX2: loops the compiler may vectorize. fma() is a
// product and a sum, each rounded: a fused one in software would cost some fifty instructions. See
// simd.h, which includes this.
#pragma once

#include <bit>
#include <cmath>

namespace pitstop::PITSTOP_ISA {

struct F32x16 {
    float v[16];
};
struct U32x16 {
    std::uint32_t v[16];
};
struct Mask16 {
    bool v[16];
};

template <class Out, class F>
PITSTOP_INLINE Out lanes_of(F f) {
    Out out;
    for (int i = 0; i < 16; ++i) out.v[i] = f(i);
    return out;
}

PITSTOP_INLINE F32x16 set1(float x) {
    return lanes_of<F32x16>([=](int) { return x; });
}
PITSTOP_INLINE F32x16 zero() { return set1(0.f); }
PITSTOP_INLINE U32x16 set1_u32(std::uint32_t x) {
    return lanes_of<U32x16>([=](int) { return x; });
}
PITSTOP_INLINE U32x16 iota() {
    return lanes_of<U32x16>([](int i) { return static_cast<std::uint32_t>(i); });
}

PITSTOP_INLINE F32x16 load(const float* p) {
    F32x16 out;
    std::memcpy(out.v, p, sizeof out.v);
    return out;
}
PITSTOP_INLINE F32x16 load(const float* p, std::int64_t n) {
    F32x16 out{};
    std::memcpy(out.v, p, static_cast<std::size_t>(n) * 4);
    return out;
}
PITSTOP_INLINE void store(float* p, F32x16 x) { std::memcpy(p, x.v, sizeof x.v); }
PITSTOP_INLINE void store(float* p, F32x16 x, std::int64_t n) {
    std::memcpy(p, x.v, static_cast<std::size_t>(n) * 4);
}
PITSTOP_INLINE U32x16 load_u32(const void* p) {
    U32x16 out;
    std::memcpy(out.v, p, sizeof out.v);
    return out;
}
PITSTOP_INLINE U32x16 load_u32(const void* p, std::int64_t n) {
    U32x16 out{};
    std::memcpy(out.v, p, static_cast<std::size_t>(n) * 4);
    return out;
}
PITSTOP_INLINE void store_u32(void* p, U32x16 x) { std::memcpy(p, x.v, sizeof x.v); }
PITSTOP_INLINE U32x16 load_u16(const void* p, std::int64_t n) {
    std::uint16_t halves[16] = {};
    std::memcpy(halves, p, static_cast<std::size_t>(n) * 2);
    return lanes_of<U32x16>([&](int i) { return halves[i]; });
}
PITSTOP_INLINE U32x16 load_u16(const void* p) { return load_u16(p, 16); }
PITSTOP_INLINE void store_u16(void* p, U32x16 x, std::int64_t n) {  // REQUIRES: every lane < 2^16
    std::uint16_t halves[16];
    for (int i = 0; i < 16; ++i) halves[i] = static_cast<std::uint16_t>(x.v[i]);
    std::memcpy(p, halves, static_cast<std::size_t>(n) * 2);
}
PITSTOP_INLINE void store_u16(void* p, U32x16 x) { store_u16(p, x, 16); }
PITSTOP_INLINE F32x16 load_f16(const void* p) {
    const U32x16 h = load_u16(p);
    return lanes_of<F32x16>([&](int i) { return to_float(f16{static_cast<std::uint16_t>(h.v[i])}); }
    );
}

PITSTOP_INLINE F32x16 add(F32x16 a, F32x16 b) {
    return lanes_of<F32x16>([&](int i) { return a.v[i] + b.v[i]; });
}
PITSTOP_INLINE F32x16 sub(F32x16 a, F32x16 b) {
    return lanes_of<F32x16>([&](int i) { return a.v[i] - b.v[i]; });
}
PITSTOP_INLINE F32x16 mul(F32x16 a, F32x16 b) {
    return lanes_of<F32x16>([&](int i) { return a.v[i] * b.v[i]; });
}
PITSTOP_INLINE F32x16 div(F32x16 a, F32x16 b) {
    return lanes_of<F32x16>([&](int i) { return a.v[i] / b.v[i]; });
}
PITSTOP_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return lanes_of<F32x16>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// b where either is NaN.
PITSTOP_INLINE F32x16 min(F32x16 a, F32x16 b) {
    return lanes_of<F32x16>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
PITSTOP_INLINE F32x16 max(F32x16 a, F32x16 b) {
    return lanes_of<F32x16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}

PITSTOP_INLINE U32x16 add(U32x16 a, U32x16 b) {
    return lanes_of<U32x16>([&](int i) { return a.v[i] + b.v[i]; });
}
PITSTOP_INLINE U32x16 sub(U32x16 a, U32x16 b) {
    return lanes_of<U32x16>([&](int i) { return a.v[i] - b.v[i]; });
}
PITSTOP_INLINE U32x16 bit_xor(U32x16 a, U32x16 b) {
    return lanes_of<U32x16>([&](int i) { return a.v[i] ^ b.v[i]; });
}
PITSTOP_INLINE U32x16 bit_or(U32x16 a, U32x16 b) {
    return lanes_of<U32x16>([&](int i) { return a.v[i] | b.v[i]; });
}
PITSTOP_INLINE U32x16 bit_and(U32x16 a, U32x16 b) {
    return lanes_of<U32x16>([&](int i) { return a.v[i] & b.v[i]; });
}
template <int n>
PITSTOP_INLINE U32x16 shl(U32x16 a) {
    return lanes_of<U32x16>([&](int i) { return a.v[i] << n; });
}
template <int n>
PITSTOP_INLINE U32x16 shr(U32x16 a) {
    return lanes_of<U32x16>([&](int i) { return a.v[i] >> n; });
}

// The 64-bit product of each lane with m, as its two halves.
PITSTOP_INLINE void mul_wide(U32x16 a, std::uint32_t m, U32x16& high, U32x16& low) {
    for (int i = 0; i < 16; ++i) {
        const std::uint64_t product = std::uint64_t{a.v[i]} * m;
        high.v[i] = static_cast<std::uint32_t>(product >> 32);
        low.v[i] = static_cast<std::uint32_t>(product);
    }
}

PITSTOP_INLINE F32x16 as_f32(U32x16 a) { return __builtin_bit_cast(F32x16, a); }
PITSTOP_INLINE U32x16 as_u32(F32x16 a) { return __builtin_bit_cast(U32x16, a); }
PITSTOP_INLINE U32x16 round_to_i32(F32x16 a
) {  // ties to even: adding 1.5 * 2^23 leaves the integer
    return lanes_of<U32x16>([&](int i) {
        const volatile float shifted = a.v[i] + 0x1.8p23f;
        return static_cast<std::uint32_t>(static_cast<std::int32_t>(shifted - 0x1.8p23f));
    });
}
PITSTOP_INLINE F32x16 from_i32(U32x16 a) {
    return lanes_of<F32x16>([&](int i) {
        return static_cast<float>(static_cast<std::int32_t>(a.v[i]));
    });
}
PITSTOP_INLINE F32x16 from_u32(U32x16 a) {
    return lanes_of<F32x16>([&](int i) { return static_cast<float>(a.v[i]); });
}

PITSTOP_INLINE Mask16 gt(F32x16 a, F32x16 b) {
    return lanes_of<Mask16>([&](int i) { return a.v[i] > b.v[i]; });
}
PITSTOP_INLINE Mask16 ge(F32x16 a, F32x16 b) {
    return lanes_of<Mask16>([&](int i) { return a.v[i] >= b.v[i]; });
}
PITSTOP_INLINE Mask16 eq(U32x16 a, U32x16 b) {
    return lanes_of<Mask16>([&](int i) { return a.v[i] == b.v[i]; });
}
PITSTOP_INLINE Mask16 is_nan(F32x16 a) {
    return lanes_of<Mask16>([&](int i) { return a.v[i] != a.v[i]; });
}
PITSTOP_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
    return lanes_of<F32x16>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
PITSTOP_INLINE U32x16 select(Mask16 m, U32x16 yes, U32x16 no) {
    return lanes_of<U32x16>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
PITSTOP_INLINE std::uint32_t bits(Mask16 m) {  // bit i: lane i
    std::uint32_t out = 0;
    for (int i = 0; i < 16; ++i) out |= static_cast<std::uint32_t>(m.v[i]) << i;
    return out;
}

// ((i, i+8), +4, +2, +1): the tree of every level.
PITSTOP_INLINE float sum(F32x16 a) {
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    }
    return a.v[0];
}
PITSTOP_INLINE float max_lane(F32x16 a) {
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
    }
    return a.v[0];
}
PITSTOP_INLINE void sum4(const F32x16* a, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = sum(a[i]);
}

// In each quarter of four lanes, the 4x4 transpose: lane j of a row i goes to lane i of row j.
PITSTOP_INLINE void transpose4(U32x16* rows) {
    for (int quarter = 0; quarter < 16; quarter += 4) {
        for (int i = 0; i < 4; ++i) {
            for (int j = 0; j < i; ++j) {
                const std::uint32_t kept = rows[i].v[quarter + j];
                rows[i].v[quarter + j] = rows[j].v[quarter + i];
                rows[j].v[quarter + i] = kept;
            }
        }
    }
}

// Pairs of bf16, the even element in the low half of each 32-bit lane.
using Bf16x32 = U32x16;
PITSTOP_INLINE Bf16x32 load_pairs(const bf16* p) { return load_u32(p); }
PITSTOP_INLINE Bf16x32
load_pairs(const bf16* p, std::int64_t n) {  // n < 32 elements, the rest zero
    Bf16x32 out{};
    std::memcpy(out.v, p, static_cast<std::size_t>(n) * 2);
    return out;
}
// acc + a.odd * b.odd + a.even * b.even, lane by lane.
PITSTOP_INLINE F32x16 dot_pairs(F32x16 acc, Bf16x32 a, Bf16x32 b) {
    const U32x16 upper = set1_u32(0xffff0000u);
    acc = fma(as_f32(bit_and(a, upper)), as_f32(bit_and(b, upper)), acc);
    return fma(as_f32(shl<16>(a)), as_f32(shl<16>(b)), acc);
}

}  // namespace pitstop::PITSTOP_ISA
