// Splits tensors that contain several weights (slot.h, Pack), one after the other. A transposed
// pack is transposed back while it is read: its weights have no address, and each read of rows
// gathers columns of the pack. Of a pack whose weights have strides (Strides), a weight whose rows
// follow one another is read in place; the others share a copy (ordered_packs.h).
#pragma once

#include "checkpoint/safetensors_header.h"
#include "tp_worker/weights/ordered_packs.h"
#include "tp_worker/weights/stage_args.h"
#include "tp_worker/weights/tensor_bytes.h"
#include "tp_worker/weights/weight_layout.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

// Returns the weights in a tensor, in order; nothing if the tensor is no pack, or has the wrong
// shape (which find_problems() reports). The weights' bytes borrow what the pack's bytes borrow.
// The packs of one load share `kept`. REQUIRES: a pack that is transposed, or has strides, is not
// on a GPU.
[[nodiscard]] std::vector<Incoming> unpacked(
    const WeightLayout& layout,
    const checkpoint::TensorSpec& spec,
    const TensorBytes& bytes,
    const std::shared_ptr<OrderedPacks>& kept
);

// Returns the tensors, with packs replaced by their weights.
[[nodiscard]] std::vector<Incoming> unpacked(
    const WeightLayout& layout, std::span<const Incoming> tensors
);

// Returns a problem for each pack in a GPU's memory that is transposed, or has strides.
[[nodiscard]] std::vector<std::string> scattered_on_gpu(
    const WeightLayout& layout, std::span<const Incoming> tensors
);

}  // namespace pitstop::tp_worker
