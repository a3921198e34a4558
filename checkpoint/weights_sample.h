// Tells two checkpoints apart without reading them: a digest of what their tensors are and of some
// bytes of each, the same however the tensors are spread over files. Weights that were trained
// further differ everywhere; a file that is damaged in one place is found by its digest only
// (base/digest.h).
//
// Thread:  any.
// Bounded: kTensorsSampledMax tensors, kSampleBytes twice of each.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <string>

namespace pitstop::checkpoint {

inline constexpr std::size_t kTensorsSampledMax = 1024;  // more: as many, evenly spread
inline constexpr std::size_t kSampleBytes = 64;          // at the beginning, and in the middle

// Returns 32 hex digits. Errors: those of Checkpoint::open and read.
[[nodiscard]] Result<std::string> sample_weights(const std::string& directory);

}  // namespace pitstop::checkpoint
