// Rows of a shard as a shard of their own. A tensor is sent to a GPU in such pieces, which any
// thread may fill.
#pragma once

#include "base/result.h"
#include "kernels/ops.h"
#include "tp_worker/device/pinned_pieces.h"
#include "tp_worker/weights/weight_layout.h"
#include "tp_worker/weights/weight_loader.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pitstop::tp_worker {

// Returns the rows of the shard that some part fills, in ascending order; no bytes arrive for the
// rows between and after them.
struct ShardRows {
    std::int64_t begin = 0;
    std::int64_t num = 0;
};
[[nodiscard]] std::vector<ShardRows> filled_rows(const WeightTensor& tensor);

// Cuts out a shard of these rows alone, at the start of an arena.
[[nodiscard]] WeightTensor cut_rows(
    const WeightTensor& tensor, std::int64_t row_begin, std::int64_t num_rows
);

// Rows of a shard that fit a page-locked piece; `item` is the number of their tensor among those
// that the caller sends.
struct RowsOfItem {
    std::size_t item = 0;
    std::int64_t row_begin = 0;
    std::int64_t num_rows = 0;
};
// Adds the tensor's rows, cut so that each entry fits a piece. REQUIRES: a row fits a piece.
void add_pieces(const WeightTensor& tensor, std::size_t item, std::vector<RowsOfItem>& pieces);

// Fills a page-locked piece with rows of the tensor, as load_tensor() does, and starts its copy to
// the GPU's arena. Any number of threads may do this, each with a scratch of its own.
struct SendRowsArgs {
    const WeightTensor& tensor;
    const TensorBytes& bytes;  // in the host's memory
    const RowsOfItem& rows;
    const kernels::Ops& ops;  // the host's
    PinnedPieces& pieces;
    std::byte* arena = nullptr;  // the GPU's
};
Result<> send_rows(
    const SendRowsArgs& args, std::vector<std::byte>& scratch, const RowsWritten& rows_written
);

}  // namespace pitstop::tp_worker
