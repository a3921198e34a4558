// Selects the instructions that the fast CPU ops may use. The
// selection happens at run time, so that one binary runs
// everywhere.
//   scalar      what every x86-64 has (SSE2); also any other processor
//   avx2        AVX2, FMA, F16C
//   avx512      AVX-512 F, BW, DQ, VL
//   avx512bf16 also AVX512_BF16, for products of two bf16 matrices
//
// avx2 and avx512 give identical bits. avx512bf16 gives other bits where two bf16 matrices are
// multiplied (linear with bf16 activations, the scores of attention). scalar gives other bits
// everywhere (no fused multiply-add). KERNELS.md bounds the differences.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <string_view>

namespace pitstop {

enum class IsaLevel : std::uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16 };

[[nodiscard]] std::string_view name_of(IsaLevel level);  // "scalar", "avx2", "avx512", "avx512bf16"

// Returns the highest level this processor and its operating system support.
[[nodiscard]] IsaLevel best_isa();

// Returns the level to use: `asked` unless it is empty, else the environment variable PITSTOP_CPU,
// else best_isa(). Errors: kInvalidArgument for an unknown name, kUnsupported for a level that this
// machine does not have.
Result<IsaLevel> choose_isa(std::string_view asked);

}  // namespace pitstop
