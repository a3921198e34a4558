// Finds the problems of an update that its manifest and its bytes alone show.
//
// Pure: functions of their arguments; one writes to the log.
#pragma once

#include "base/result.h"
#include "messages/weights.h"
#include "tp_worker/weights/stage_args.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

// Checks the model and the declared tensors before any bytes arrive.
[[nodiscard]] std::vector<std::string> problems_of_manifest(
    const WeightLayout& layout, const std::vector<messages::TensorInfo>& manifest
);
// Returns the resident name of each declared tensor whose name has another accepted form.
[[nodiscard]] std::map<std::string, std::string> other_names(
    const WeightLayout& layout, const std::vector<messages::TensorInfo>& manifest
);
// Checks that the rows of padding are zero. `shard`: bytes that a sender wrote, in the target's
// layout.
[[nodiscard]] std::optional<std::string> problem_of_padding(
    const WeightTensor& tensor, std::span<const std::byte> shard
);
// Returns the problem of the first update of an element that the tensor does not have.
[[nodiscard]] std::optional<std::string> problem_of_indices(const SparseTensor& sparse);
// Compares how many elements of two tied tensors have changed, if both have.
[[nodiscard]] std::optional<std::string> problem_of_tied_counts(
    const WeightLayout& layout, std::int64_t num_head, std::int64_t num_embedding
);
// Returns the problem of a partial update without tensors. `adapter`: its name; empty: the update
// is of the model.
[[nodiscard]] std::string problem_of_empty(std::string_view adapter);
// Returns the tensors that a complete update still has to send, given those that have not arrived.
// One may be left out if the tensor that is left out with it is absent, too. An update without any
// tensor lacks them all.
[[nodiscard]] std::vector<const WeightTensor*> find_missing(
    const WeightLayout& layout, const std::vector<bool>& absent
);
// Warns in the log of absent tensors: a sender may have forgotten those that it may leave out.
void warn_of_left_out(
    const WeightLayout& layout, const std::vector<bool>& absent, const std::string& adapter
);
// Puts the number of the missing tensors, and the first names, into a session's outcome.
void report_missing(
    const std::vector<const WeightTensor*>& missing, messages::RankOutcome& outcome
);
// Puts up to kProblemsMax problems into a failed outcome, or the error if there are none.
void report(const Error& error, std::vector<std::string> problems, messages::RankOutcome& outcome);

}  // namespace pitstop::tp_worker
