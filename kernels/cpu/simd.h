// Sixteen lanes of fp32, the unit of every fast CPU op. The files of kernels/cpu are compiled once
// per IsaLevel into the namespace PITSTOP_ISA: one zmm register with AVX-512, two ymm with AVX2, an
// array without either. The lanes, and the order in which they are added, are the same for all, so
// avx2 and avx512 give equal bits.
//
// No symbol of these files may have the same name in two levels: the linker keeps one copy, and an
// older machine might not be able to run it. So: no std templates, and no inline functions from
// outside this namespace that might not be inlined; tests/kernels checks the objects' symbols.
#pragma once

#include "kernels/tensor.h"

#include <cstdint>
#include <cstring>

#if !defined(PITSTOP_ISA)
#error "compiled once per level, by kernels/CMakeLists.txt"
#endif

#define PITSTOP_INLINE [[gnu::always_inline]] inline
#define PITSTOP_INLINE_LAMBDA __attribute__((always_inline))  // follows the parameters

#if defined(__AVX512F__)
#include "kernels/cpu/simd_avx512.h"
#elif defined(__AVX2__)
#include "kernels/cpu/simd_avx2.h"
#else
#include "kernels/cpu/simd_scalar.h"
#endif

namespace pitstop::kernels::PITSTOP_ISA {

inline constexpr std::int64_t kLanes = 16;

PITSTOP_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return add(a, b); }
PITSTOP_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return sub(a, b); }
PITSTOP_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return mul(a, b); }
PITSTOP_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return div(a, b); }
PITSTOP_INLINE F32x16& operator+=(F32x16& a, F32x16 b) { return a = add(a, b); }

PITSTOP_INLINE U32x16 operator+(U32x16 a, U32x16 b) { return add(a, b); }
PITSTOP_INLINE U32x16 operator-(U32x16 a, U32x16 b) { return sub(a, b); }
PITSTOP_INLINE U32x16 operator^(U32x16 a, U32x16 b) { return bit_xor(a, b); }
PITSTOP_INLINE U32x16 operator|(U32x16 a, U32x16 b) { return bit_or(a, b); }
PITSTOP_INLINE U32x16 operator&(U32x16 a, U32x16 b) { return bit_and(a, b); }

// bf16 is the upper half of an fp32. Rounds like to_bf16 (base/bf16.h), keeps denormals, in integer
// arithmetic on every level: VCVTNEPS2BF16 would flush denormals.
PITSTOP_INLINE U32x16 bf16_bits(F32x16 x) {
    const U32x16 u = as_u32(x);
    const U32x16 odd = shr<16>(u) & set1_u32(1);
    const U32x16 rounded = shr<16>(u + set1_u32(0x7fff) + odd);
    const U32x16 quiet_nan = shr<16>(u) | set1_u32(0x40);
    return select(is_nan(x), quiet_nan, rounded);
}

PITSTOP_INLINE F32x16 load(const bf16* p) { return as_f32(shl<16>(load_u16(p))); }
PITSTOP_INLINE F32x16 load(const bf16* p, std::int64_t n) {
    return as_f32(shl<16>(load_u16(p, n)));
}
PITSTOP_INLINE void store(bf16* p, F32x16 x) { store_u16(p, bf16_bits(x)); }
PITSTOP_INLINE void store(bf16* p, F32x16 x, std::int64_t n) { store_u16(p, bf16_bits(x), n); }

// Load and store `n` of 16 lanes: all if n >= 16; the other lanes are zero.
template <class T>
PITSTOP_INLINE F32x16 load_up_to(const T* p, std::int64_t n) {
    return n >= kLanes ? load(p) : load(p, n);
}
template <class T>
PITSTOP_INLINE void store_up_to(T* p, F32x16 x, std::int64_t n) {
    if (n >= kLanes) {
        store(p, x);
    } else {
        store(p, x, n);
    }
}

}  // namespace pitstop::kernels::PITSTOP_ISA
