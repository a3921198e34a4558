// Rows of a shard as a shard of their own: how a tensor goes to a GPU piece by piece.
#pragma once

#include "base/result.h"
#include "base/task_pool.h"
#include "tp_worker/weights/weight_layout.h"
#include "tp_worker/weights/weight_loader.h"

#include <cstdint>

namespace pitstop::tp_worker {

// Counts the rows of the shard that some part fills; what is left is padding.
[[nodiscard]] std::int64_t num_filled_rows(const WeightTensor& tensor);

// Cuts out a shard of these rows alone, at the start of an arena.
[[nodiscard]] WeightTensor cut_rows(
    const WeightTensor& tensor, std::int64_t row_begin, std::int64_t num_rows
);

// Returns whether several threads fill a shard of so many rows faster than one.
[[nodiscard]] bool is_worth_sharing(const WeightTensor& rows);

// Fills the shard as load_tensor does, `args.tensor` being cut_rows()'. Threads share the rows.
// REQUIRES: the bytes lie in memory; `rows_written` may be called by any of the threads.
Result<> load_shared(
    TaskPool& threads, const LoadTensorArgs& args, const RowsWritten& rows_written
);

}  // namespace pitstop::tp_worker
