// A rank's part of reading one tensor (messages/weight_reads.h).
//
// Thread: any, while no thread writes to the arena.
#pragma once

#include "messages/frames.h"
#include "messages/weight_reads.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/weights/weight_layout.h"

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

// Returns names of tensors with the same ending as `name`, as suggestions for a misspelled one.
std::string near_names(const WeightLayout& layout, std::string_view name);

// Returns one rectangle for each part of the tensor that this rank has; `head` has the fields that
// all of them share.
std::vector<messages::Frames> read_parts(
    const WeightTensor& tensor, const Arena& arena, const messages::WorkerTensor& head
);

}  // namespace pitstop::tp_worker
