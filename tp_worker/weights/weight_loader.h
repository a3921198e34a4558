// Fills a copy of a rank's weights from a checkpoint. Only this code cuts the bytes of a whole
// tensor into a shard, whatever their source: copy_rows accepts rows in any order.
//
// Thread: any, one per arena. Bounded: kChunkBytes of scratch per thread, or one row if
// that is more.
#pragma once

#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "digest/digest_run.h"
#include "kernels/ops.h"
#include "messages/version_digest.h"
#include "tp_worker/weights/checkpoint_tensors.h"
#include "tp_worker/weights/tensor_bytes.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

inline constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;  // stays in the L2 cache

// `src` holds rows [row_begin, row_begin + num_rows) of the whole tensor, all columns, any
// alignment. Writes the shard's part of these rows, in resident form, and skips all other rows.
// REQUIRES: the tensor's encoding accepts the dtype; the rows are the tensor's.
struct RowsArgs {
    const WeightTensor& tensor;
    checkpoint::StoredDtype dtype = checkpoint::StoredDtype::kBf16;
    const std::byte* src = nullptr;
    std::int64_t row_begin = 0;
    std::int64_t num_rows = 0;
    std::byte* arena = nullptr;
    const kernels::Ops& ops;
    kernels::Stream stream{};
};
void copy_rows(const RowsArgs& args);

// Fills one tensor of the shard, a piece of about kChunkBytes at a time. After each piece, calls
// `rows_written` with the rows of the shard that are in place; an error of that call ends the work.
// `scratch` is kept between calls. Errors: those of reading (kDataLoss: the file has become
// shorter), or those of `rows_written`.
struct LoadTensorArgs {
    const WeightTensor& tensor;
    const TensorBytes& bytes;
    const kernels::Ops& ops;
    std::byte* arena = nullptr;
    // If not empty, the written bytes are added to the digests of the tensor's parts. Bytes in
    // memory that have the resident form are read only once. REQUIRES then: !tensor.cuts_words.
    std::span<messages::PartDigest> parts{};
    digest::AddRun add_run = nullptr;  // for `parts`
};
struct WrittenRows {
    std::int64_t begin = 0;  // rows of the shard
    std::int64_t num = 0;
    std::uint64_t num_nonfinite = 0;  // infinities and NaNs, if digested
};
using RowsWritten = std::function<Result<>(const WrittenRows& rows)>;
Result<> load_tensor(
    const LoadTensorArgs& args, std::vector<std::byte>& scratch, const RowsWritten& rows_written
);

// Checks all that the checkpoint offers against the layout, then fills the arena, which starts as
// zeros (padding stays so). Nothing is written if the check fails. `source` names the checkpoint in
// errors. On an error while reading (kDataLoss) the arena holds a mix: it must not be used.
Result<> load_weights(
    const WeightLayout& layout,
    const CheckpointTensors& tensors,
    const std::string& source,
    const kernels::Ops& ops,
    kernels::Stream stream,
    std::byte* arena
);

}  // namespace pitstop::tp_worker
