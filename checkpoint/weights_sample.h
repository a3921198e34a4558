// Tells two checkpoints apart without reading them whole: a digest of their tensors' specs and of
// some bytes of each tensor, independent of how the tensors are spread over files. Further training
// changes all weights, so it changes the sample. Damage in one place of a file is found only by the
// full digest (base/digest.h).
//
// Thread:  any.
// Bounded: kTensorsSampledMax tensors, kSampleBytes twice of each.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <string>

namespace pitstop::checkpoint {

// A larger checkpoint has this many tensors sampled, evenly spaced.
inline constexpr std::size_t kTensorsSampledMax = 1024;
// At the beginning, and again in the middle, of a tensor.
inline constexpr std::size_t kSampleBytes = 64;

// Returns 32 hex digits. Errors: those of Checkpoint::open and read.
[[nodiscard]] Result<std::string> sample_weights(const std::string& directory);

}  // namespace pitstop::checkpoint
