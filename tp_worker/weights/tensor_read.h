// Does a rank's part of a read of one tensor (messages/weight_reads.h).
//
// Thread: any, while nobody writes to the arena.
#pragma once

#include "messages/frames.h"
#include "messages/weight_reads.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/weights/weight_layout.h"

#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

// Returns names of tensors that end as `name` does, for whoever misspelled one.
std::string near_names(const WeightLayout& layout, std::string_view name);

// Returns one rectangle for each part of the tensor that this rank holds; `head` has what they
// share.
std::vector<messages::Frames> read_parts(
    const WeightTensor& tensor, const Arena& arena, const messages::WorkerTensor& head
);

}  // namespace pitstop::tp_worker
