// Takes apart tensors that hold several weights (slot.h, Pack): each weight's bytes lie behind
// those of the one before.
#pragma once

#include "checkpoint/safetensors_header.h"
#include "tp_worker/weights/stage_args.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

// Where a weight's bytes begin in the tensor that holds it.
struct UnpackedSpec {
    checkpoint::TensorSpec spec{};
    std::int64_t begin = 0;  // bytes
    std::int64_t bytes = 0;
};
// Returns what a tensor holds, in order; nothing where it is no pack, or has not the shape of one,
// which find_problems() says.
[[nodiscard]] std::vector<UnpackedSpec> unpacked(
    const WeightLayout& layout, const checkpoint::TensorSpec& spec
);

// Returns the tensors with what packs hold in their place. Borrows from `tensors`.
[[nodiscard]] std::vector<Incoming> unpacked(
    const WeightLayout& layout, std::span<const Incoming> tensors
);

}  // namespace pitstop::tp_worker
