// powf as PyTorch computes it on x86. Rotary frequencies are powers in fp32; at position 131,072
// the last bit of the largest frequency is an angle of 0.008.
//
// Source: what PyTorch's vector loops call, Sleef_powf8_u10 and Sleef_powf16_u10, in scalar form;
//         the same bits on AVX2 and AVX-512. SLEEF, sleefsp.c (xpowf, logkf, expkf) and df.h, N.
//         Shibata and contributors, Boost Software License 1.0.
#pragma once

namespace pitstop::tp_worker {

// Returns base^exponent. REQUIRES: base > 0, finite; the result is a normal number.
[[nodiscard]] float torch_powf(float base, float exponent);

}  // namespace pitstop::tp_worker
