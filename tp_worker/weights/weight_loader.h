// Fills a copy of a rank's weights from a checkpoint. Only here the bytes of a whole tensor become
// a shard in an arena, whatever their source: copy_rows takes rows as they come.
//
// Thread: any, one per arena. Bounded: kChunkBytes of scratch per thread, or one row if that is
// more.
#pragma once

#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "digest/digest_run.h"
#include "kernels/ops.h"
#include "messages/version_digest.h"
#include "tp_worker/weights/checkpoint_tensors.h"
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
// alignment. Writes what this shard holds of them, as they are resident. Rows that it does not hold
// are skipped. REQUIRES: the tensor's encoding accepts the dtype; the rows are the tensor's.
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

// Says where the bytes of a whole tensor are: in memory, or to be read piece by piece.
struct TensorBytes {
    checkpoint::StoredDtype dtype = checkpoint::StoredDtype::kBf16;
    const std::byte* data = nullptr;  // row-major, any alignment; null: `read` fills `out` from
                                      // byte `begin` of the tensor on
    std::function<Result<>(std::int64_t begin, std::span<std::byte> out)> read{};
    // If it is not empty, `data` is a mapping of what somebody else may cut short. It is asked
    // after every piece, which is read in a CutGuard.
    std::function<Result<>()> is_whole{};
    // `data` is memory of the opened GPU: kernels read it where it is.
    bool is_on_gpu = false;
};
[[nodiscard]] TensorBytes stored_bytes(
    const checkpoint::Checkpoint& checkpoint, const checkpoint::StoredTensor& stored
);

// Fills one tensor of the shard, a piece of about kChunkBytes at a time. After each piece
// `rows_written` is told which rows of the shard are in their place; an error of its ends the work.
// `scratch` is kept between calls. Errors: those of reading (kDataLoss: the file has become
// shorter), or the hook's.
struct LoadTensorArgs {
    const WeightTensor& tensor;
    const TensorBytes& bytes;
    const kernels::Ops& ops;
    std::byte* arena = nullptr;
    // If they are not empty, what is written is added to the digests of the tensor's parts, in one
    // reading where the bytes lie in memory as they will be resident. REQUIRES then:
    // !tensor.cuts_words.
    std::span<messages::PartDigest> parts{};
    digest::AddRun add_run = nullptr;  // is used with `parts`
};
struct WrittenRows {
    std::int64_t begin = 0;  // the shard's rows
    std::int64_t num = 0;
    std::uint64_t num_nonfinite = 0;  // elements that are an infinity or a NaN, if digested
};
using RowsWritten = std::function<Result<>(const WrittenRows& rows)>;
Result<> load_tensor(
    const LoadTensorArgs& args, std::vector<std::byte>& scratch, const RowsWritten& rows_written
);

// Checks all that the checkpoint offers against the layout, then fills the arena, which starts as
// zeros (padding stays so). Nothing is written if the check fails. `source` names it in errors.
// On an error while reading (kDataLoss) the arena holds a mix: it must not be used.
Result<> load_weights(
    const WeightLayout& layout,
    const CheckpointTensors& tensors,
    const std::string& source,
    const kernels::Ops& ops,
    kernels::Stream stream,
    std::byte* arena
);

}  // namespace pitstop::tp_worker
