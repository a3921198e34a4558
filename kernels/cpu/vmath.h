// exp and log of sixteen lanes.
#pragma once

#include "kernels/cpu/simd.h"

namespace pitstop::kernels::PITSTOP_ISA {

inline constexpr float kExpMin = -87.33f;  // below: 0, as the result would be denormal
// above: exp(88.37) = 2.4e38; 2^127 is the largest exponent
inline constexpr float kExpMax = 88.37f;

// Computes exp(x), with a relative error <= 2^-22; 0 for x < kExpMin (-inf included), exp(kExpMax)
// for larger x, NaN for NaN. Cody-Waite reduction to |r| <= ln(2) / 2 and the minimax polynomial of
// Cephes expf.
PITSTOP_INLINE F32x16 exp(F32x16 x) {
    const F32x16 clamped = max(set1(kExpMin), min(set1(kExpMax), x));  // NaN passes, as operand b
    const U32x16 n = round_to_i32(clamped * set1(0x1.715476p+0f));
    const F32x16 n_f = from_i32(n);
    F32x16 r = fma(n_f, set1(-0.693359375f), clamped);  // ln 2 in two parts; the first is exact
    r = fma(n_f, set1(2.12194440e-4f), r);
    F32x16 p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    const F32x16 y = fma(p, r * r, r) + set1(1.f);
    const F32x16 scaled = as_f32(as_u32(y) + shl<23>(n));  // y in [0.7, 1.42], n in [-126, 127]
    return select(gt(set1(kExpMin), x), zero(), select(is_nan(x), x, scaled));
}

// Computes log(x) for normal x > 0, with an absolute error <= 2^-22 * max(1, |log x|): Cephes logf.
PITSTOP_INLINE F32x16 log(F32x16 x) {
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)): once sqrt(1/2)'s bits are subtracted,
    // one shift gives e.
    const U32x16 shifted = as_u32(x) - set1_u32(0x3f3504f3u);
    const F32x16 e = from_i32(shr<23>(shifted + set1_u32(0x40000000u)) - set1_u32(128));
    const F32x16 m = as_f32((shifted & set1_u32(0x007fffffu)) + set1_u32(0x3f3504f3u));
    const F32x16 r = m - set1(1.f);
    F32x16 p = set1(7.0376836292e-2f);
    p = fma(p, r, set1(-1.1514610310e-1f));
    p = fma(p, r, set1(1.1676998740e-1f));
    p = fma(p, r, set1(-1.2420140846e-1f));
    p = fma(p, r, set1(1.4249322787e-1f));
    p = fma(p, r, set1(-1.6668057665e-1f));
    p = fma(p, r, set1(2.0000714765e-1f));
    p = fma(p, r, set1(-2.4999993993e-1f));
    p = fma(p, r, set1(3.3333331174e-1f));
    const F32x16 r2 = r * r;
    F32x16 y = fma(e, set1(-2.12194440e-4f), p * r2 * r);
    y = fma(r2, set1(-0.5f), y);
    return fma(e, set1(0.693359375f), r + y);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
