// F32x16 as four vectors of four lanes, of the compiler's vector types, without intrinsics. Every
// x86-64 has such vectors (SSE2), and so do other processors. fma() is a product and a sum, each
// rounded: a fused one in software would cost about fifty instructions. See simd.h, which includes
// this.
#pragma once

namespace pitstop::kernels::PITSTOP_ISA {

using F32x4 = float __attribute__((vector_size(16)));
using U32x4 = std::uint32_t __attribute__((vector_size(16)));
using I32x4 = std::int32_t __attribute__((vector_size(16)));
using U16x4 = std::uint16_t __attribute__((vector_size(8)));

struct F32x16 {
    F32x4 q[4];
};
struct U32x16 {
    U32x4 q[4];
};
struct Mask16 {
    I32x4 q[4];  // all ones or all zeros per lane
};

// Makes Out with Out.q[i] = f(i): the four quarters, unrolled.
template <class Out, class F>
PITSTOP_INLINE Out quarters(F f) {
    return Out{{f(0), f(1), f(2), f(3)}};
}

PITSTOP_INLINE F32x16 set1(float x) {
    const F32x4 v = {x, x, x, x};
    return {{v, v, v, v}};
}
PITSTOP_INLINE F32x16 zero() { return set1(0.f); }
PITSTOP_INLINE U32x16 set1_u32(std::uint32_t x) {
    const U32x4 v = {x, x, x, x};
    return {{v, v, v, v}};
}
PITSTOP_INLINE U32x16 iota() {
    return {{U32x4{0, 1, 2, 3}, U32x4{4, 5, 6, 7}, U32x4{8, 9, 10, 11}, U32x4{12, 13, 14, 15}}};
}

PITSTOP_INLINE F32x16 load(const float* p) {
    F32x16 out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
PITSTOP_INLINE F32x16 load(const float* p, std::int64_t n) {
    F32x16 out = zero();
    std::memcpy(&out, p, static_cast<std::size_t>(n) * 4);
    return out;
}
PITSTOP_INLINE void store(float* p, F32x16 x) { std::memcpy(p, &x, sizeof x); }
PITSTOP_INLINE void store(float* p, F32x16 x, std::int64_t n) {
    std::memcpy(p, &x, static_cast<std::size_t>(n) * 4);
}
PITSTOP_INLINE U32x16 load_u32(const void* p) {
    U32x16 out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
PITSTOP_INLINE void store_u32(void* p, U32x16 x) { std::memcpy(p, &x, sizeof x); }
PITSTOP_INLINE U32x16 load_u16(const void* p) {
    U16x4 halves[4];
    std::memcpy(halves, p, sizeof halves);
    return quarters<U32x16>([&](int i) PITSTOP_INLINE_LAMBDA {
        return __builtin_convertvector(halves[i], U32x4);
    });
}
PITSTOP_INLINE U32x16 load_u16(const void* p, std::int64_t n) {
    std::uint16_t halves[16] = {};
    std::memcpy(halves, p, static_cast<std::size_t>(n) * 2);
    return load_u16(halves);
}
PITSTOP_INLINE void store_u16(void* p, U32x16 x, std::int64_t n) {  // REQUIRES: every lane < 2^16
    U16x4 halves[4];
    for (int i = 0; i < 4; ++i) halves[i] = __builtin_convertvector(x.q[i], U16x4);
    std::memcpy(p, halves, static_cast<std::size_t>(n) * 2);
}
PITSTOP_INLINE void store_u16(void* p, U32x16 x) { store_u16(p, x, 16); }
PITSTOP_INLINE F32x16 load_f16(const void* p) {
    std::uint16_t halves[16];
    std::memcpy(halves, p, sizeof halves);
    float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = to_float(f16{halves[i]});
    return load(lanes);
}

#define PITSTOP_QUARTERS(Out, expression) \
    quarters<Out>([&](int i) PITSTOP_INLINE_LAMBDA { return expression; })

PITSTOP_INLINE F32x16 add(F32x16 a, F32x16 b) { return PITSTOP_QUARTERS(F32x16, a.q[i] + b.q[i]); }
PITSTOP_INLINE F32x16 sub(F32x16 a, F32x16 b) { return PITSTOP_QUARTERS(F32x16, a.q[i] - b.q[i]); }
PITSTOP_INLINE F32x16 mul(F32x16 a, F32x16 b) { return PITSTOP_QUARTERS(F32x16, a.q[i] * b.q[i]); }
PITSTOP_INLINE F32x16 div(F32x16 a, F32x16 b) { return PITSTOP_QUARTERS(F32x16, a.q[i] / b.q[i]); }
PITSTOP_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return PITSTOP_QUARTERS(F32x16, a.q[i] * b.q[i] + c.q[i]);
}
// Returns b where either is NaN.
PITSTOP_INLINE F32x16 min(F32x16 a, F32x16 b) {
    return PITSTOP_QUARTERS(F32x16, a.q[i] < b.q[i] ? a.q[i] : b.q[i]);
}
PITSTOP_INLINE F32x16 max(F32x16 a, F32x16 b) {
    return PITSTOP_QUARTERS(F32x16, a.q[i] > b.q[i] ? a.q[i] : b.q[i]);
}

PITSTOP_INLINE U32x16 add(U32x16 a, U32x16 b) { return PITSTOP_QUARTERS(U32x16, a.q[i] + b.q[i]); }
PITSTOP_INLINE U32x16 sub(U32x16 a, U32x16 b) { return PITSTOP_QUARTERS(U32x16, a.q[i] - b.q[i]); }
PITSTOP_INLINE U32x16 bit_xor(U32x16 a, U32x16 b) {
    return PITSTOP_QUARTERS(U32x16, a.q[i] ^ b.q[i]);
}
PITSTOP_INLINE U32x16 bit_or(U32x16 a, U32x16 b) {
    return PITSTOP_QUARTERS(U32x16, a.q[i] | b.q[i]);
}
PITSTOP_INLINE U32x16 bit_and(U32x16 a, U32x16 b) {
    return PITSTOP_QUARTERS(U32x16, a.q[i] & b.q[i]);
}
template <int n>
PITSTOP_INLINE U32x16 shl(U32x16 a) {
    return PITSTOP_QUARTERS(U32x16, a.q[i] << n);
}
template <int n>
PITSTOP_INLINE U32x16 shr(U32x16 a) {
    return PITSTOP_QUARTERS(U32x16, a.q[i] >> n);
}

// Computes the 64-bit product of each lane with m, as its two halves.
PITSTOP_INLINE void mul_wide(U32x16 a, std::uint32_t m, U32x16& high, U32x16& low) {
    std::uint32_t lanes[16], high_lanes[16], low_lanes[16];
    store_u32(lanes, a);
    for (int i = 0; i < 16; ++i) {
        const std::uint64_t product = std::uint64_t{lanes[i]} * m;
        high_lanes[i] = static_cast<std::uint32_t>(product >> 32);
        low_lanes[i] = static_cast<std::uint32_t>(product);
    }
    high = load_u32(high_lanes);
    low = load_u32(low_lanes);
}

PITSTOP_INLINE F32x16 as_f32(U32x16 a) { return __builtin_bit_cast(F32x16, a); }
PITSTOP_INLINE U32x16 as_u32(F32x16 a) { return __builtin_bit_cast(U32x16, a); }
PITSTOP_INLINE U32x16 round_to_i32(F32x16 a
) {  // ties to even: adding 1.5 * 2^23 leaves the integer
    const F32x16 rounder = set1(0x1.8p23f);
    const F32x16 rounded = sub(add(a, rounder), rounder);
    return PITSTOP_QUARTERS(
        U32x16, reinterpret_cast<U32x4>(__builtin_convertvector(rounded.q[i], I32x4))
    );
}
PITSTOP_INLINE F32x16 from_i32(U32x16 a) {
    return PITSTOP_QUARTERS(
        F32x16, __builtin_convertvector(reinterpret_cast<I32x4>(a.q[i]), F32x4)
    );
}
PITSTOP_INLINE F32x16 from_u32(U32x16 a) {  // both halves are exact, so the sum rounds once
    const F32x16 high = from_i32(shr<16>(a));
    const F32x16 low = from_i32(bit_and(a, set1_u32(0xffff)));
    return fma(high, set1(65536.f), low);
}

PITSTOP_INLINE Mask16 gt(F32x16 a, F32x16 b) { return PITSTOP_QUARTERS(Mask16, a.q[i] > b.q[i]); }
PITSTOP_INLINE Mask16 ge(F32x16 a, F32x16 b) { return PITSTOP_QUARTERS(Mask16, a.q[i] >= b.q[i]); }
PITSTOP_INLINE Mask16 eq(U32x16 a, U32x16 b) { return PITSTOP_QUARTERS(Mask16, a.q[i] == b.q[i]); }
PITSTOP_INLINE Mask16 is_nan(F32x16 a) { return PITSTOP_QUARTERS(Mask16, a.q[i] != a.q[i]); }
PITSTOP_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
    return PITSTOP_QUARTERS(F32x16, m.q[i] ? yes.q[i] : no.q[i]);
}
PITSTOP_INLINE U32x16 select(Mask16 m, U32x16 yes, U32x16 no) {
    return PITSTOP_QUARTERS(U32x16, m.q[i] ? yes.q[i] : no.q[i]);
}
PITSTOP_INLINE std::uint32_t bits(Mask16 m) {  // bit i: lane i
    const I32x4 weight = {1, 2, 4, 8};
    std::uint32_t out = 0;
    for (int i = 0; i < 4; ++i) {
        const I32x4 set = m.q[i] & weight;
        out |= static_cast<std::uint32_t>(set[0] | set[1] | set[2] | set[3]) << (4 * i);
    }
    return out;
}

// Adds lanes 8 apart, then 4, 2 and 1 apart: the tree of every level.
PITSTOP_INLINE float sum(F32x16 a) {
    const F32x4 s4 = (a.q[0] + a.q[2]) + (a.q[1] + a.q[3]);
    return (s4[0] + s4[2]) + (s4[1] + s4[3]);
}
PITSTOP_INLINE float max_lane(F32x16 a) {
    const F32x4 low = a.q[0] > a.q[2] ? a.q[0] : a.q[2];
    const F32x4 high = a.q[1] > a.q[3] ? a.q[1] : a.q[3];
    const F32x4 s4 = low > high ? low : high;
    const float even = s4[0] > s4[2] ? s4[0] : s4[2];
    const float odd = s4[1] > s4[3] ? s4[1] : s4[3];
    return even > odd ? even : odd;
}
PITSTOP_INLINE void sum4(const F32x16* a, float* out) {
    for (int i = 0; i < 4; ++i) out[i] = sum(a[i]);
}

// Returns sum(a[i]) in each lane i, by the same tree.
PITSTOP_INLINE F32x16 sums(const F32x16* a) {
    alignas(64) float lanes[16];
    for (int i = 0; i < 16; i += 4) sum4(a + i, lanes + i);
    return load(lanes);
}
// Returns max_lane(a[i]) in each lane i.
PITSTOP_INLINE F32x16 max_lanes(const F32x16* a) {
    alignas(64) float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = max_lane(a[i]);
    return load(lanes);
}

// Transposes 4x4 in each quarter of four lanes: lane j of a row i goes to lane i of row j.
PITSTOP_INLINE void transpose4(U32x16* rows) {
    for (int i = 0; i < 4; ++i) {
        const U32x4 a = rows[0].q[i], b = rows[1].q[i], c = rows[2].q[i], d = rows[3].q[i];
        rows[0].q[i] = U32x4{a[0], b[0], c[0], d[0]};
        rows[1].q[i] = U32x4{a[1], b[1], c[1], d[1]};
        rows[2].q[i] = U32x4{a[2], b[2], c[2], d[2]};
        rows[3].q[i] = U32x4{a[3], b[3], c[3], d[3]};
    }
}

// Transposes 16x16: lane j of row i goes to lane i of row j.
PITSTOP_INLINE void transpose16(U32x16* rows) {
    for (int i = 0; i < 16; i += 4) transpose4(rows + i);
    for (int j = 0; j < 4; ++j) {  // rows j, j + 4, ... have columns j, j + 4, ..., a quarter each
        for (int a = 0; a < 4; ++a) {
            for (int b = 0; b < a; ++b) {
                const U32x4 moved = rows[j + 4 * a].q[b];
                rows[j + 4 * a].q[b] = rows[j + 4 * b].q[a];
                rows[j + 4 * b].q[a] = moved;
            }
        }
    }
}

// Pairs of bf16, the even element in the low half of each 32-bit lane.
using Bf16x32 = U32x16;
PITSTOP_INLINE U32x16 words_of(Bf16x32 pairs) { return pairs; }
PITSTOP_INLINE Bf16x32 pairs_of(U32x16 words) { return words; }
PITSTOP_INLINE Bf16x32 load_pairs(const bf16* p) { return load_u32(p); }
PITSTOP_INLINE Bf16x32
load_pairs(const bf16* p, std::int64_t n) {  // n < 32 elements, the rest zero
    Bf16x32 out = set1_u32(0);
    std::memcpy(&out, p, static_cast<std::size_t>(n) * 2);
    return out;
}
// Returns the pair of bf16 at p in every lane.
PITSTOP_INLINE Bf16x32 set1_pair(const std::uint16_t* p) {
    std::uint32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return set1_u32(pair);
}
// Pairs element i of `even` with element i of `odd`. Of every eight pairs, `low` gets the first
// four and `high` the others.
PITSTOP_INLINE void interleave(Bf16x32 even, Bf16x32 odd, Bf16x32& low, Bf16x32& high) {
    for (int i = 0; i < 4; ++i) {
        const U32x4 a = even.q[i], b = odd.q[i];
        for (int j = 0; j < 4; ++j) {
            const int shift = j % 2 * 16;
            low.q[i][j] = (a[j / 2] >> shift & 0xffff) | (b[j / 2] >> shift & 0xffff) << 16;
            high.q[i][j] = (a[2 + j / 2] >> shift & 0xffff) | (b[2 + j / 2] >> shift & 0xffff)
                                                                  << 16;
        }
    }
}
// Returns acc + a.odd * b.odd + a.even * b.even, lane by lane.
PITSTOP_INLINE F32x16 dot_pairs(F32x16 acc, Bf16x32 a, Bf16x32 b) {
    const U32x16 upper = set1_u32(0xffff0000u);
    acc = fma(as_f32(bit_and(a, upper)), as_f32(bit_and(b, upper)), acc);
    return fma(as_f32(shl<16>(a)), as_f32(shl<16>(b)), acc);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
