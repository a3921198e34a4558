// F32x16 as one zmm register. See simd.h, which includes this.
#pragma once

#include <immintrin.h>

namespace pitstop::kernels::PITSTOP_ISA {

struct F32x16 {
    __m512 v;
};
struct U32x16 {
    __m512i v;
};
using Mask16 = __mmask16;

PITSTOP_INLINE __mmask16 first_lanes(std::int64_t n) {
    return static_cast<__mmask16>((1u << n) - 1u);
}  // n < 16

PITSTOP_INLINE F32x16 zero() { return {_mm512_setzero_ps()}; }
PITSTOP_INLINE F32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
PITSTOP_INLINE U32x16 set1_u32(std::uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
PITSTOP_INLINE U32x16 iota() {
    return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}

PITSTOP_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
PITSTOP_INLINE F32x16 load(const float* p, std::int64_t n) {
    return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
PITSTOP_INLINE void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
PITSTOP_INLINE void store(float* p, F32x16 x, std::int64_t n) {
    _mm512_mask_storeu_ps(p, first_lanes(n), x.v);
}
PITSTOP_INLINE U32x16 load_u32(const void* p) { return {_mm512_loadu_si512(p)}; }
PITSTOP_INLINE void store_u32(void* p, U32x16 x) { _mm512_storeu_si512(p, x.v); }
PITSTOP_INLINE U32x16 load_u16(const void* p) {
    return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
PITSTOP_INLINE U32x16 load_u16(const void* p, std::int64_t n) {
    return {_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
PITSTOP_INLINE void store_u16(void* p, U32x16 x) {  // REQUIRES: every lane < 2^16
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}
PITSTOP_INLINE void store_u16(void* p, U32x16 x, std::int64_t n) {
    _mm256_mask_storeu_epi16(p, first_lanes(n), _mm512_cvtepi32_epi16(x.v));
}
PITSTOP_INLINE F32x16 load_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}

PITSTOP_INLINE F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
PITSTOP_INLINE F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PITSTOP_INLINE F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PITSTOP_INLINE F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
PITSTOP_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// Returns b where either is NaN.
PITSTOP_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
PITSTOP_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }

PITSTOP_INLINE U32x16 add(U32x16 a, U32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
PITSTOP_INLINE U32x16 sub(U32x16 a, U32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
PITSTOP_INLINE U32x16 bit_xor(U32x16 a, U32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
PITSTOP_INLINE U32x16 bit_or(U32x16 a, U32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
PITSTOP_INLINE U32x16 bit_and(U32x16 a, U32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int n>
PITSTOP_INLINE U32x16 shl(U32x16 a) {
    return {_mm512_slli_epi32(a.v, n)};
}
template <int n>
PITSTOP_INLINE U32x16 shr(U32x16 a) {
    return {_mm512_srli_epi32(a.v, n)};
}

// Computes the 64-bit product of each lane with m, as its two halves.
PITSTOP_INLINE void mul_wide(U32x16 a, std::uint32_t m, U32x16& high, U32x16& low) {
    const __m512i factor = _mm512_set1_epi64(m);
    const __m512i even = _mm512_mul_epu32(a.v, factor);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), factor);
    low.v = _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32));
    high.v = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xaaaa, odd);
}

PITSTOP_INLINE F32x16 as_f32(U32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
PITSTOP_INLINE U32x16 as_u32(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
PITSTOP_INLINE U32x16 round_to_i32(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // ties to even
PITSTOP_INLINE F32x16 from_i32(U32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
PITSTOP_INLINE F32x16 from_u32(U32x16 a) { return {_mm512_cvtepu32_ps(a.v)}; }

PITSTOP_INLINE Mask16 gt(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
PITSTOP_INLINE Mask16 ge(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
PITSTOP_INLINE Mask16 eq(U32x16 a, U32x16 b) { return _mm512_cmpeq_epi32_mask(a.v, b.v); }
PITSTOP_INLINE Mask16 is_nan(F32x16 a) { return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q); }
PITSTOP_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
    return {_mm512_mask_mov_ps(no.v, m, yes.v)};
}
PITSTOP_INLINE U32x16 select(Mask16 m, U32x16 yes, U32x16 no) {
    return {_mm512_mask_mov_epi32(no.v, m, yes.v)};
}
PITSTOP_INLINE std::uint32_t bits(Mask16 m) { return m; }  // bit i: lane i

// Adds lanes 8 apart, then 4, 2 and 1 apart: the tree of every level.
PITSTOP_INLINE float sum(F32x16 a) {
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
PITSTOP_INLINE float max_lane(F32x16 a) {
    const __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

// Computes out[i] = sum(a[i]) by the same tree, in fewer instructions than four sums.
PITSTOP_INLINE void sum4(const F32x16* a, float* out) {
    const auto halves = [](F32x16 x) PITSTOP_INLINE_LAMBDA {
        return _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    };
    const __m256 a0 = halves(a[0]);
    const __m256 a1 = halves(a[1]);
    const __m256 a2 = halves(a[2]);
    const __m256 a3 = halves(a[3]);
    const __m256 b0 =
        _mm256_add_ps(_mm256_permute2f128_ps(a0, a1, 0x20), _mm256_permute2f128_ps(a0, a1, 0x31));
    const __m256 b1 =
        _mm256_add_ps(_mm256_permute2f128_ps(a2, a3, 0x20), _mm256_permute2f128_ps(a2, a3, 0x31));
    // b0 has four partial sums each of a[0] and a[1], b1 of a[2] and a[3]. Of each four, first
    // lanes 0 and 2 are added and lanes 1 and 3, then the two results.
    const __m256 c =
        _mm256_add_ps(_mm256_shuffle_ps(b0, b1, 0x44), _mm256_shuffle_ps(b0, b1, 0xee));
    const __m256 d = _mm256_add_ps(_mm256_shuffle_ps(c, c, 0x88), _mm256_shuffle_ps(c, c, 0xdd));
    const __m128 d02 = _mm256_castps256_ps128(d);    // sums 0, 2, ...
    const __m128 d13 = _mm256_extractf128_ps(d, 1);  // sums 1, 3, ...
    _mm_storeu_ps(out, _mm_unpacklo_ps(d02, d13));
}

// Reduces the lanes of a[i] with `op` into lane i, by the tree of sum(), in 45 instructions. Each
// level halves the partial sums of two vectors, and packs the results into one vector.
template <class Op>
PITSTOP_INLINE F32x16 reduce16(const F32x16* a, Op op) {
    __m512 eights[8];  // for a[i] and a[i + 4]
    for (std::size_t i = 0; i < 8; ++i) {
        const __m512 first = a[i / 4 * 8 + i % 4].v;
        const __m512 second = a[i / 4 * 8 + i % 4 + 4].v;
        eights[i] =
            op(_mm512_shuffle_f32x4(first, second, 0x44),
               _mm512_shuffle_f32x4(first, second, 0xee));
    }
    __m512 fours[4];  // for a[i], a[i + 4], a[i + 8], a[i + 12], a quarter each
    for (std::size_t i = 0; i < 4; ++i) {
        fours[i] =
            op(_mm512_shuffle_f32x4(eights[i], eights[i + 4], 0x88),
               _mm512_shuffle_f32x4(eights[i], eights[i + 4], 0xdd));
    }
    __m512 twos[2];  // two partial results of each of two a[i], in each quarter
    for (std::size_t i = 0; i < 2; ++i) {
        twos[i] =
            op(_mm512_shuffle_ps(fours[2 * i], fours[2 * i + 1], 0x44),
               _mm512_shuffle_ps(fours[2 * i], fours[2 * i + 1], 0xee));
    }
    return {
        op(_mm512_shuffle_ps(twos[0], twos[1], 0x88), _mm512_shuffle_ps(twos[0], twos[1], 0xdd))};
}

// Returns sum(a[i]) in each lane i, by the same tree.
PITSTOP_INLINE F32x16 sums(const F32x16* a) {
    return reduce16(a, [](__m512 x, __m512 y) PITSTOP_INLINE_LAMBDA {
        return _mm512_add_ps(x, y);
    });
}
// Returns max_lane(a[i]) in each lane i.
PITSTOP_INLINE F32x16 max_lanes(const F32x16* a) {
    return reduce16(a, [](__m512 x, __m512 y) PITSTOP_INLINE_LAMBDA {
        return _mm512_max_ps(x, y);
    });
}

// Transposes 4x4 in each quarter of four lanes: lane j of a row i goes to lane i of row j.
PITSTOP_INLINE void transpose4(U32x16* rows) {
    const __m512i t0 = _mm512_unpacklo_epi32(rows[0].v, rows[1].v);
    const __m512i t1 = _mm512_unpacklo_epi32(rows[2].v, rows[3].v);
    const __m512i t2 = _mm512_unpackhi_epi32(rows[0].v, rows[1].v);
    const __m512i t3 = _mm512_unpackhi_epi32(rows[2].v, rows[3].v);
    rows[0].v = _mm512_unpacklo_epi64(t0, t1);
    rows[1].v = _mm512_unpackhi_epi64(t0, t1);
    rows[2].v = _mm512_unpacklo_epi64(t2, t3);
    rows[3].v = _mm512_unpackhi_epi64(t2, t3);
}

// Transposes 16x16: lane j of row i goes to lane i of row j. First transposes within each quarter,
// then moves the quarters.
PITSTOP_INLINE void transpose16(U32x16* rows) {
    for (int i = 0; i < 16; i += 4) transpose4(rows + i);
    for (int j = 0; j < 4; ++j) {  // rows j, j + 4, ... have columns j, j + 4, ..., a quarter each
        const __m512i even01 = _mm512_shuffle_i32x4(rows[j].v, rows[j + 4].v, 0x88);
        const __m512i odd01 = _mm512_shuffle_i32x4(rows[j].v, rows[j + 4].v, 0xdd);
        const __m512i even23 = _mm512_shuffle_i32x4(rows[j + 8].v, rows[j + 12].v, 0x88);
        const __m512i odd23 = _mm512_shuffle_i32x4(rows[j + 8].v, rows[j + 12].v, 0xdd);
        rows[j].v = _mm512_shuffle_i32x4(even01, even23, 0x88);
        rows[j + 4].v = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
        rows[j + 8].v = _mm512_shuffle_i32x4(even01, even23, 0xdd);
        rows[j + 12].v = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
    }
}

// Pairs of bf16, the even element in the low half of each 32-bit lane.
struct Bf16x32 {
    __m512i v;
};
PITSTOP_INLINE U32x16 words_of(Bf16x32 pairs) { return {pairs.v}; }
PITSTOP_INLINE Bf16x32 pairs_of(U32x16 words) { return {words.v}; }
PITSTOP_INLINE Bf16x32 load_pairs(const bf16* p) { return {_mm512_loadu_si512(p)}; }
PITSTOP_INLINE Bf16x32
load_pairs(const bf16* p, std::int64_t n) {  // n < 32 elements, the rest zero
    return {_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << n) - 1u), p)};
}
// Returns the pair of bf16 at p in every lane.
PITSTOP_INLINE Bf16x32 set1_pair(const std::uint16_t* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return {_mm512_set1_epi32(pair)};
}
// Pairs element i of `even` with element i of `odd`. Of every eight pairs, `low` gets the first
// four and `high` the others.
PITSTOP_INLINE void interleave(Bf16x32 even, Bf16x32 odd, Bf16x32& low, Bf16x32& high) {
    low.v = _mm512_unpacklo_epi16(even.v, odd.v);
    high.v = _mm512_unpackhi_epi16(even.v, odd.v);
}
// Returns acc + a.odd * b.odd + a.even * b.even, lane by lane.
PITSTOP_INLINE F32x16 dot_pairs(F32x16 acc, Bf16x32 a, Bf16x32 b) {
#if defined(__AVX512BF16__)
    return {_mm512_dpbf16_ps(acc.v, __m512bh(a.v), __m512bh(b.v))};
#else
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512 odd = _mm512_fmadd_ps(
        _mm512_castsi512_ps(_mm512_and_si512(a.v, upper)),
        _mm512_castsi512_ps(_mm512_and_si512(b.v, upper)),
        acc.v
    );
    return {_mm512_fmadd_ps(
        _mm512_castsi512_ps(_mm512_slli_epi32(a.v, 16)),
        _mm512_castsi512_ps(_mm512_slli_epi32(b.v, 16)),
        odd
    )};
#endif
}

}  // namespace pitstop::kernels::PITSTOP_ISA
