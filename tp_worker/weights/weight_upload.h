// Fills a GPU's copy of a rank's weights from a checkpoint, one tensor after another: sliced and
// converted as in weight_loader.h, into page-locked pieces, which are then sent. Reports its
// progress once a second.
//
// Owns:    while it runs, as many threads as the pieces are made for.
// Thread:  the loop's, at start-up. Bounded: the pieces, and per thread a chunk of scratch
//          (weight_loader.h).
#pragma once

#include "base/result.h"
#include "tp_worker/device/device.h"
#include "tp_worker/device/pinned_pieces.h"
#include "tp_worker/weights/checkpoint_tensors.h"
#include "tp_worker/weights/weight_layout.h"

#include <string>

namespace pitstop::tp_worker {

// Loads as load_weights does (weight_loader.h), but `arena` is the GPU's. Returns when all bytes
// have arrived.
Result<> upload_weights(
    const WeightLayout& layout,
    const CheckpointTensors& tensors,
    const std::string& source,
    const Device& device,
    PinnedPieces& pieces,
    std::byte* arena
);

}  // namespace pitstop::tp_worker
