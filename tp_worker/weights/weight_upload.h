// Fills a GPU's copy of a rank's weights from a checkpoint, a tensor at a time: sliced and
// converted as weight_loader.h does it, into page-locked pieces, from which they are sent. Says how
// far it is once a second.
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

// Loads as load_weights does (weight_loader.h), but `arena` is the GPU's. Returns when everything
// is there.
Result<> upload_weights(
    const WeightLayout& layout,
    const CheckpointTensors& tensors,
    const std::string& source,
    const Device& device,
    PinnedPieces& pieces,
    std::byte* arena
);

}  // namespace pitstop::tp_worker
