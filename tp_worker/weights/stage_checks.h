// Finds the problems of an update that its manifest and its bytes alone show.
//
// Pure: functions of their arguments.
#pragma once

#include "base/result.h"
#include "messages/weights.h"
#include "tp_worker/weights/stage_args.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

// Checks the model and the declared tensors before any bytes arrive.
[[nodiscard]] std::vector<std::string> problems_of_manifest(
    const WeightLayout& layout, const std::vector<messages::TensorInfo>& manifest
);
// Checks that the rows of padding are zero. `shard`: bytes that a sender wrote, in the target's
// layout.
[[nodiscard]] std::optional<std::string> problem_of_padding(
    const WeightTensor& tensor, std::span<const std::byte> shard
);
// Returns the problem of the first update of an element that the tensor does not have.
[[nodiscard]] std::optional<std::string> problem_of_indices(const SparseTensor& sparse);
// Puts up to kProblemsMax problems into a failed outcome, or the error if there are none.
void report(const Error& error, std::vector<std::string> problems, messages::RankOutcome& outcome);

}  // namespace pitstop::tp_worker
