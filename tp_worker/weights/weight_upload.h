// Fills a GPU's copy of a rank's weights from a checkpoint, a tensor at a time: read, sliced and
// converted in host memory as weight_loader.h does it, then sent by page-locked pieces. Says how
// far it is once a second.
//
// Thread: the loop's, at start-up. Bounded: host memory for the largest tensor of the shard.
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
