#include "tp_worker/weights/weight_loader.h"

#include "base/cut_guard.h"
#include "kernels/runtime/thread_pool.h"
#include "tp_worker/weights/weight_digest.h"

#include <algorithm>
#include <vector>

namespace pitstop::tp_worker {
namespace {

// Rows [begin, begin + num) of the whole tensor, which are the rows from `shard_row` on
// in the shard.
struct RowRange {
    std::int64_t begin = 0;
    std::int64_t num = 0;
    std::int64_t shard_row = 0;
};

// Digests rows that are in place, if requested.
std::uint64_t digest_if_asked(const LoadTensorArgs& args, const RowRange& rows) {
    if (args.parts.empty()) return 0;
    return add_rows_digest(
        {.tensor = args.tensor,
         .arena = args.arena,
         .row_begin = rows.shard_row,
         .num_rows = rows.num,
         .ops = args.ops},
        args.parts
    );
}

// Copies rows of the whole tensor into place in the shard; `src` is the first row. Returns the
// number of non-finite elements, if requested.
std::uint64_t place_rows(const LoadTensorArgs& args, const RowRange& rows, const std::byte* src) {
    const WeightTensor& tensor = args.tensor;
    const checkpoint::StoredDtype dtype = args.bytes.dtype;
    const std::int64_t row_bytes = tensor.whole_cols * bytes_of(dtype);
    if (is_stored_as(tensor.encoding, dtype) && !args.parts.empty()) {
        return copy_rows_and_digest(
            {.tensor = tensor,
             .src = src - rows.begin * row_bytes,
             .arena = args.arena,
             .row_begin = rows.shard_row,
             .num_rows = rows.num,
             .add_run = args.add_run},
            args.parts
        );
    }
    copy_rows({
        .tensor = tensor,
        .dtype = dtype,
        .src = src,
        .row_begin = rows.begin,
        .num_rows = rows.num,
        .arena = args.arena,
        .ops = args.ops,
    });
    return digest_if_asked(args, rows);
}

// Places rows from mapped memory, whose file another process may truncate.
Result<std::uint64_t> place_mapped(const LoadTensorArgs& args, const RowRange& rows) {
    const TensorBytes& bytes = args.bytes;
    const std::int64_t row_bytes = args.tensor.whole_cols * bytes_of(bytes.dtype);
    const std::byte* src = bytes.data + rows.begin * row_bytes;
    if (!bytes.is_whole) return place_rows(args, rows, src);
    const CutGuard guard({src, static_cast<std::size_t>(rows.num * row_bytes)});
    const std::uint64_t num_nonfinite = place_rows(args, rows, src);
    RETURN_IF_ERROR(bytes.is_whole());
    if (guard.is_cut()) {
        return make_error(
            ErrorCode::kDataLoss, "'{}' was truncated while it was read", args.tensor.name
        );
    }
    return num_nonfinite;
}

Result<std::uint64_t> place_read(
    const LoadTensorArgs& args, const RowRange& rows, std::vector<std::byte>& scratch
) {
    const WeightTensor& tensor = args.tensor;
    const checkpoint::StoredDtype dtype = args.bytes.dtype;
    const std::int64_t row_bytes = tensor.whole_cols * bytes_of(dtype);
    const auto size = static_cast<std::size_t>(rows.num * row_bytes);
    // Bytes that need no conversion are read directly into place.
    if (is_stored_as(tensor.encoding, dtype) && tensor.parts.front().is_contiguous()) {
        std::byte* dst = args.arena + tensor.offset + rows.shard_row * row_bytes;
        RETURN_IF_ERROR(args.bytes.read(rows.begin * row_bytes, {dst, size}));
        return digest_if_asked(args, rows);
    }
    scratch.resize(size);
    RETURN_IF_ERROR(args.bytes.read(rows.begin * row_bytes, scratch));
    return place_rows(args, rows, scratch.data());
}

Result<> load_rows(
    const LoadTensorArgs& args,
    const RowRange& rows,
    std::vector<std::byte>& scratch,
    const RowsWritten& rows_written
) {
    const std::int64_t row_bytes = args.tensor.whole_cols * bytes_of(args.bytes.dtype);
    const std::int64_t rows_max = std::max<std::int64_t>(1, kChunkBytes / row_bytes);
    for (std::int64_t done = 0; done < rows.num; done += rows_max) {
        const RowRange piece{
            .begin = rows.begin + done,
            .num = std::min(rows_max, rows.num - done),
            .shard_row = rows.shard_row + done};
        ASSIGN_OR_RETURN(
            const std::uint64_t num_nonfinite,
            args.bytes.data != nullptr ? place_mapped(args, piece)
                                       : place_read(args, piece, scratch)
        );
        RETURN_IF_ERROR(rows_written(
            {.begin = piece.shard_row, .num = piece.num, .num_nonfinite = num_nonfinite}
        ));
    }
    return Ok{};
}

}  // namespace

void copy_rows(const RowsArgs& args) {
    const WeightTensor& tensor = args.tensor;
    CHECK(args.row_begin >= 0 && args.row_begin + args.num_rows <= tensor.whole_rows);
    for (const ShardPart& whole_part : tensor.parts) {
        const ShardPart part = whole_part.in_whole_rows(args.row_begin, args.num_rows);
        if (part.is_empty()) continue;
        const std::int64_t src_begin = part.whole_begin() - args.row_begin * part.whole_stride;
        convert(
            tensor.encoding,
            {.dtype = args.dtype,
             .from = args.src + src_begin * bytes_of(args.dtype),
             .from_stride = part.whole_stride,
             .to = args.arena + tensor.offset_of(part.shard_begin()),
             .to_stride = part.shard_stride,
             .rows = part.rows,
             .cols = part.cols},
            args.ops,
            args.stream
        );
    }
}

Result<> load_tensor(
    const LoadTensorArgs& args, std::vector<std::byte>& scratch, const RowsWritten& rows_written
) {
    const WeightTensor& tensor = args.tensor;
    const ShardPart* last = nullptr;
    for (const ShardPart& part : tensor.parts) {
        if (part.is_empty()) continue;
        // Adjacent parts share rows of the source, which are read once.
        const bool is_beside = last != nullptr && last->shard_row == part.shard_row;
        last = &part;
        if (is_beside) continue;
        const RowRange rows{.begin = part.whole_row, .num = part.rows, .shard_row = part.shard_row};
        RETURN_IF_ERROR(load_rows(args, rows, scratch, rows_written));
    }
    return Ok{};
}

Result<> load_weights(
    const WeightLayout& layout,
    const CheckpointTensors& tensors,
    const std::string& source,
    const kernels::Ops& ops,
    kernels::Stream stream,
    std::byte* arena
) {
    RETURN_IF_ERROR(tensors.check_whole(source));

    const auto num_tensors = static_cast<std::int64_t>(layout.tensors().size());
    std::vector<Result<>> results(layout.tensors().size(), Ok{});
    std::vector<std::vector<std::byte>> scratch(
        static_cast<std::size_t>(kernels::num_threads_of(stream))
    );
    auto load = [&](std::int64_t begin, std::int64_t end, int thread) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
            const WeightTensor& tensor = layout.tensors()[i];
            const TensorBytes bytes = tensors.bytes_for(tensor.name);
            results[i] = load_tensor(
                {.tensor = tensor, .bytes = bytes, .ops = ops, .arena = arena},
                scratch[static_cast<std::size_t>(thread)],
                [](const WrittenRows&) { return Result<>(Ok{}); }
            );
        }
    };
    kernels::parallel_for(stream, num_tensors, /*grain=*/1, load);
    for (Result<>& result : results) RETURN_IF_ERROR(std::move(result));
    return Ok{};
}

}  // namespace pitstop::tp_worker
