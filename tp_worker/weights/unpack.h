// Splits tensors that contain several weights (slot.h, Pack), one after the other.
#pragma once

#include "checkpoint/safetensors_header.h"
#include "tp_worker/weights/stage_args.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

// The place of a weight's bytes in the tensor that contains it.
struct UnpackedSpec {
    checkpoint::TensorSpec spec{};
    std::int64_t begin = 0;  // bytes
    std::int64_t bytes = 0;
};
// Returns the weights in a tensor, in order; nothing if the tensor is no pack, or has the wrong
// shape (which find_problems() reports).
[[nodiscard]] std::vector<UnpackedSpec> unpacked(
    const WeightLayout& layout, const checkpoint::TensorSpec& spec
);

// Returns the tensors, with packs replaced by their weights. Borrows from `tensors`.
[[nodiscard]] std::vector<Incoming> unpacked(
    const WeightLayout& layout, std::span<const Incoming> tensors
);

}  // namespace pitstop::tp_worker
