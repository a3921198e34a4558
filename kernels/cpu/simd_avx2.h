// F32x16 as two ymm registers. See simd.h, which includes this.
#pragma once

#include <immintrin.h>

namespace pitstop::kernels::PITSTOP_ISA {

struct F32x16 {
    __m256 lo, hi;
};
struct U32x16 {
    __m256i lo, hi;
};
struct Mask16 {
    __m256 lo, hi;  // all ones or all zeros per lane
};

// Makes a mask of the first n of 8 lanes, n clamped to [0, 8].
PITSTOP_INLINE __m256i first_lanes8(std::int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}

PITSTOP_INLINE F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
PITSTOP_INLINE F32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PITSTOP_INLINE U32x16 set1_u32(std::uint32_t x) {
    return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
PITSTOP_INLINE U32x16 iota() {
    return {
        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}

PITSTOP_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PITSTOP_INLINE F32x16 load(const float* p, std::int64_t n) {
    return {_mm256_maskload_ps(p, first_lanes8(n)), _mm256_maskload_ps(p + 8, first_lanes8(n - 8))};
}
PITSTOP_INLINE void store(float* p, F32x16 x) {
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
PITSTOP_INLINE void store(float* p, F32x16 x, std::int64_t n) {
    _mm256_maskstore_ps(p, first_lanes8(n), x.lo);
    _mm256_maskstore_ps(p + 8, first_lanes8(n - 8), x.hi);
}
PITSTOP_INLINE U32x16 load_u32(const void* p) {
    const __m256i* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
PITSTOP_INLINE void store_u32(void* p, U32x16 x) {
    __m256i* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, x.lo);
    _mm256_storeu_si256(q + 1, x.hi);
}
PITSTOP_INLINE U32x16 load_u16(const void* p) {
    const __m128i* q = static_cast<const __m128i*>(p);
    return {
        _mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
PITSTOP_INLINE U32x16 load_u16(const void* p, std::int64_t n) {
    alignas(32) std::uint16_t lanes[16] = {};
    std::memcpy(lanes, p, static_cast<std::size_t>(n) * 2);
    return load_u16(lanes);
}
PITSTOP_INLINE void store_u16(void* p, U32x16 x) {           // REQUIRES: every lane < 2^16
    const __m256i packed = _mm256_packus_epi32(x.lo, x.hi);  // 0-3, 8-11 | 4-7, 12-15
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
PITSTOP_INLINE void store_u16(void* p, U32x16 x, std::int64_t n) {
    alignas(32) std::uint16_t lanes[16];
    store_u16(lanes, x);
    std::memcpy(p, lanes, static_cast<std::size_t>(n) * 2);
}
PITSTOP_INLINE F32x16 load_f16(const void* p) {
    const __m128i* q = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}

PITSTOP_INLINE F32x16 add(F32x16 a, F32x16 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
PITSTOP_INLINE F32x16 sub(F32x16 a, F32x16 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
PITSTOP_INLINE F32x16 mul(F32x16 a, F32x16 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
PITSTOP_INLINE F32x16 div(F32x16 a, F32x16 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
PITSTOP_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// Returns b where either is NaN.
PITSTOP_INLINE F32x16 min(F32x16 a, F32x16 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
PITSTOP_INLINE F32x16 max(F32x16 a, F32x16 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

PITSTOP_INLINE U32x16 add(U32x16 a, U32x16 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
PITSTOP_INLINE U32x16 sub(U32x16 a, U32x16 b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
PITSTOP_INLINE U32x16 bit_xor(U32x16 a, U32x16 b) {
    return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
PITSTOP_INLINE U32x16 bit_or(U32x16 a, U32x16 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
PITSTOP_INLINE U32x16 bit_and(U32x16 a, U32x16 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
template <int n>
PITSTOP_INLINE U32x16 shl(U32x16 a) {
    return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
template <int n>
PITSTOP_INLINE U32x16 shr(U32x16 a) {
    return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)};
}

PITSTOP_INLINE void mul_wide8(__m256i a, __m256i factor, __m256i& high, __m256i& low) {
    const __m256i even = _mm256_mul_epu32(a, factor);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
    low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
// Computes the 64-bit product of each lane with m, as its two halves.
PITSTOP_INLINE void mul_wide(U32x16 a, std::uint32_t m, U32x16& high, U32x16& low) {
    const __m256i factor = _mm256_set1_epi64x(m);
    mul_wide8(a.lo, factor, high.lo, low.lo);
    mul_wide8(a.hi, factor, high.hi, low.hi);
}

PITSTOP_INLINE F32x16 as_f32(U32x16 a) {
    return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
PITSTOP_INLINE U32x16 as_u32(F32x16 a) {
    return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
PITSTOP_INLINE U32x16 round_to_i32(F32x16 a) {
    return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
PITSTOP_INLINE F32x16 from_i32(U32x16 a) {
    return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
PITSTOP_INLINE F32x16 from_u32(U32x16 a) {  // both halves are exact, so the sum rounds once
    const F32x16 high = from_i32(shr<16>(a));
    const F32x16 low = from_i32(bit_and(a, set1_u32(0xffff)));
    return fma(high, set1(65536.f), low);
}

PITSTOP_INLINE Mask16 gt(F32x16 a, F32x16 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
PITSTOP_INLINE Mask16 ge(F32x16 a, F32x16 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)};
}
PITSTOP_INLINE Mask16 eq(U32x16 a, U32x16 b) {
    return {
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.lo, b.lo)),
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.hi, b.hi))};
}
PITSTOP_INLINE Mask16 is_nan(F32x16 a) {
    return {_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q)};
}
PITSTOP_INLINE F32x16 select(Mask16 m, F32x16 yes, F32x16 no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
PITSTOP_INLINE U32x16 select(Mask16 m, U32x16 yes, U32x16 no) {
    return as_u32(select(m, as_f32(yes), as_f32(no)));
}
PITSTOP_INLINE std::uint32_t bits(Mask16 m) {  // bit i: lane i
    return static_cast<std::uint32_t>(_mm256_movemask_ps(m.lo)) |
           (static_cast<std::uint32_t>(_mm256_movemask_ps(m.hi)) << 8);
}

// Adds lanes 8 apart, then 4, 2 and 1 apart: the tree of every level.
PITSTOP_INLINE float sum(F32x16 a) {
    const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
PITSTOP_INLINE float max_lane(F32x16 a) {
    const __m256 s8 = _mm256_max_ps(a.lo, a.hi);
    const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

// Computes out[i] = sum(a[i]) by the same tree, in fewer instructions than four sums.
PITSTOP_INLINE void sum4(const F32x16* a, float* out) {
    const __m256 a0 = _mm256_add_ps(a[0].lo, a[0].hi);
    const __m256 a1 = _mm256_add_ps(a[1].lo, a[1].hi);
    const __m256 a2 = _mm256_add_ps(a[2].lo, a[2].hi);
    const __m256 a3 = _mm256_add_ps(a[3].lo, a[3].hi);
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

PITSTOP_INLINE void transpose4x8(__m256i& a, __m256i& b, __m256i& c, __m256i& d) {
    const __m256i t0 = _mm256_unpacklo_epi32(a, b);
    const __m256i t1 = _mm256_unpacklo_epi32(c, d);
    const __m256i t2 = _mm256_unpackhi_epi32(a, b);
    const __m256i t3 = _mm256_unpackhi_epi32(c, d);
    a = _mm256_unpacklo_epi64(t0, t1);
    b = _mm256_unpackhi_epi64(t0, t1);
    c = _mm256_unpacklo_epi64(t2, t3);
    d = _mm256_unpackhi_epi64(t2, t3);
}
// Transposes 4x4 in each quarter of four lanes: lane j of a row i goes to lane i of row j.
PITSTOP_INLINE void transpose4(U32x16* rows) {
    transpose4x8(rows[0].lo, rows[1].lo, rows[2].lo, rows[3].lo);
    transpose4x8(rows[0].hi, rows[1].hi, rows[2].hi, rows[3].hi);
}

// Transposes 16x16: lane j of row i goes to lane i of row j. First transposes within each quarter,
// then moves the quarters.
PITSTOP_INLINE void transpose16(U32x16* rows) {
    for (int i = 0; i < 16; i += 4) transpose4(rows + i);
    for (int j = 0; j < 4; ++j) {  // rows j, j + 4, ... have columns j, j + 4, ..., a quarter each
        U32x16* const r = rows + j;
        const U32x16 r0 = r[0], r4 = r[4], r8 = r[8], r12 = r[12];
        r[0].lo = _mm256_permute2x128_si256(r0.lo, r4.lo, 0x20);
        r[0].hi = _mm256_permute2x128_si256(r8.lo, r12.lo, 0x20);
        r[4].lo = _mm256_permute2x128_si256(r0.lo, r4.lo, 0x31);
        r[4].hi = _mm256_permute2x128_si256(r8.lo, r12.lo, 0x31);
        r[8].lo = _mm256_permute2x128_si256(r0.hi, r4.hi, 0x20);
        r[8].hi = _mm256_permute2x128_si256(r8.hi, r12.hi, 0x20);
        r[12].lo = _mm256_permute2x128_si256(r0.hi, r4.hi, 0x31);
        r[12].hi = _mm256_permute2x128_si256(r8.hi, r12.hi, 0x31);
    }
}

// Pairs of bf16, the even element in the low half of each 32-bit lane.
struct Bf16x32 {
    __m256i lo, hi;
};
PITSTOP_INLINE U32x16 words_of(Bf16x32 pairs) { return {pairs.lo, pairs.hi}; }
PITSTOP_INLINE Bf16x32 pairs_of(U32x16 words) { return {words.lo, words.hi}; }
PITSTOP_INLINE Bf16x32 load_pairs(const bf16* p) {
    const __m256i* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
PITSTOP_INLINE Bf16x32
load_pairs(const bf16* p, std::int64_t n) {  // n < 32 elements, the rest zero
    alignas(32) std::uint16_t lanes[32] = {};
    std::memcpy(lanes, p, static_cast<std::size_t>(n) * 2);
    const __m256i* q = reinterpret_cast<const __m256i*>(lanes);
    return {_mm256_load_si256(q), _mm256_load_si256(q + 1)};
}
// Returns the pair of bf16 at p in every lane.
PITSTOP_INLINE Bf16x32 set1_pair(const std::uint16_t* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
}
// Pairs element i of `even` with element i of `odd`. Of every eight pairs, `low` gets the first
// four and `high` the others.
PITSTOP_INLINE void interleave(Bf16x32 even, Bf16x32 odd, Bf16x32& low, Bf16x32& high) {
    low = {_mm256_unpacklo_epi16(even.lo, odd.lo), _mm256_unpacklo_epi16(even.hi, odd.hi)};
    high = {_mm256_unpackhi_epi16(even.lo, odd.lo), _mm256_unpackhi_epi16(even.hi, odd.hi)};
}
PITSTOP_INLINE __m256 dot_pairs8(__m256 acc, __m256i a, __m256i b) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    const __m256 odd = _mm256_fmadd_ps(
        _mm256_castsi256_ps(_mm256_and_si256(a, upper)),
        _mm256_castsi256_ps(_mm256_and_si256(b, upper)),
        acc
    );
    return _mm256_fmadd_ps(
        _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
        _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)),
        odd
    );
}
// Returns acc + a.odd * b.odd + a.even * b.even, lane by lane.
PITSTOP_INLINE F32x16 dot_pairs(F32x16 acc, Bf16x32 a, Bf16x32 b) {
    return {dot_pairs8(acc.lo, a.lo, b.lo), dot_pairs8(acc.hi, a.hi, b.hi)};
}

}  // namespace pitstop::kernels::PITSTOP_ISA
