#include "tp_worker/config/torch_pow.h"

#include <cmath>

// Each rounding matters here: the order of the terms is the source's, and nothing is contracted
// except where the source uses fma (cmake/toolchain.cmake has -ffp-contract=off).
namespace pitstop::tp_worker {
namespace {

// An unevaluated sum of two floats, the second below the last bit of the first.
struct FloatPair {
    float hi = 0.f;
    float lo = 0.f;
};

FloatPair normalized(FloatPair a) {
    const float sum = a.hi + a.lo;
    return {sum, a.hi - sum + a.lo};
}

// Returns the part of a + b that rounding to `sum` lost. Either of a and b may be the larger one.
float lost_bits(float a, float b, float sum) {
    const float b_seen = sum - a;
    return (a - (sum - b_seen)) + (b - b_seen);
}

FloatPair exact_sum(float a, float b) {
    const float sum = a + b;
    return {sum, lost_bits(a, b, sum)};
}

FloatPair exact_sum(FloatPair a, float b) {
    const float sum = a.hi + b;
    return {sum, lost_bits(a.hi, b, sum) + a.lo};
}

FloatPair exact_sum(FloatPair a, FloatPair b) {
    const float sum = a.hi + b.hi;
    return {sum, lost_bits(a.hi, b.hi, sum) + (a.lo + b.lo)};
}

// Cheaper than exact_sum(). REQUIRES: |a| >= |b|.
FloatPair ordered_sum(FloatPair a, FloatPair b) {
    const float sum = a.hi + b.hi;
    return {sum, a.hi - sum + b.hi + a.lo + b.lo};
}

FloatPair product(FloatPair a, float b) {
    const float high = a.hi * b;
    return {high, std::fma(a.lo, b, std::fma(a.hi, b, -high))};
}

FloatPair product(FloatPair a, FloatPair b) {
    const float high = a.hi * b.hi;
    return {high, std::fma(a.hi, b.lo, std::fma(a.lo, b.hi, std::fma(a.hi, b.hi, -high)))};
}

FloatPair square(FloatPair a) {
    const float high = a.hi * a.hi;
    return {high, std::fma(a.hi + a.hi, a.lo, std::fma(a.hi, a.hi, -high))};
}

FloatPair quotient(FloatPair a, FloatPair b) {
    const float inverse = 1.f / b.hi;
    const float high = a.hi * inverse;
    const float lost = std::fma(inverse, a.hi, -high);
    const float missing = std::fma(-b.lo, inverse, std::fma(-b.hi, inverse, 1.f));
    return {high, std::fma(high, missing, std::fma(a.lo, inverse, lost))};
}

// Computes the logarithm by a series in (m - 1) / (m + 1), where d = m * 2^e and m is
// in [0.75, 1.5).
FloatPair log_of(float d) {
    const int e = std::ilogb(d * (1.f / 0.75f));
    const float m = std::ldexp(d, -e);
    const FloatPair x = quotient(exact_sum(-1.f, m), exact_sum(1.f, m));
    const FloatPair x2 = square(x);
    float t = 0.240320354700088500976562f;
    t = std::fma(t, x2.hi, 0.285112679004669189453125f);
    t = std::fma(t, x2.hi, 0.400007992982864379882812f);
    const FloatPair two_thirds{0.66666662693023681640625f, 3.69183861259614332084311e-09f};
    const FloatPair ln2{0.69314718246459960938f, -1.904654323148236017e-09f};
    FloatPair sum = product(ln2, static_cast<float>(e));
    sum = ordered_sum(sum, {x.hi * 2.f, x.lo * 2.f});
    return ordered_sum(sum, product(product(x2, x), exact_sum(product(x2, t), two_thirds)));
}

// Computes 2^q times a polynomial in the remainder, |s| <= ln(2) / 2.
float exp_of(FloatPair d) {
    constexpr float kInverseLn2 =
        1.442695040888963407359924681001892137426645954152985934135449406931f;
    constexpr float kLn2High = 0.693145751953125f;
    constexpr float kLn2Low = 1.428606765330187045e-06f;
    const auto q = static_cast<int>(std::nearbyint((d.hi + d.lo) * kInverseLn2));
    FloatPair s = exact_sum(d, static_cast<float>(q) * -kLn2High);
    s = normalized(exact_sum(s, static_cast<float>(q) * -kLn2Low));
    float u = 0.00136324646882712841033936f;
    u = std::fma(u, s.hi, 0.00836596917361021041870117f);
    u = std::fma(u, s.hi, 0.0416710823774337768554688f);
    u = std::fma(u, s.hi, 0.166665524244308471679688f);
    u = std::fma(u, s.hi, 0.499999850988388061523438f);
    const FloatPair t = ordered_sum({1.f, 0.f}, ordered_sum(s, product(square(s), u)));
    return std::ldexp(t.hi + t.lo, q);
}

}  // namespace

float torch_powf(float base, float exponent) { return exp_of(product(log_of(base), exponent)); }

}  // namespace pitstop::tp_worker
