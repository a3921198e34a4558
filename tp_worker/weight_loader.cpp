#include "tp_worker/weight_loader.h"

#include "kernels/thread_pool.h"

#include <algorithm>
#include <array>
#include <vector>

namespace pitstop {
namespace {

DType op_dtype(StoredDtype dtype) {
    CHECK(dtype == StoredDtype::kBf16 || dtype == StoredDtype::kF16 || dtype == StoredDtype::kF32);
    if (dtype == StoredDtype::kBf16) return DType::kBF16;
    return dtype == StoredDtype::kF16 ? DType::kF16 : DType::kF32;
}

// Reads rows of the whole tensor that the shard holds, a chunk at a time.
class TensorReader {
  public:
    TensorReader(
        const WeightTensor& tensor,
        const StoredTensor& stored,
        const Checkpoint& checkpoint,
        const Ops& ops,
        std::byte* arena
    )
        : tensor_(tensor), stored_(stored), checkpoint_(checkpoint), ops_(ops), arena_(arena) {}

    Result<> read(std::vector<std::byte>& scratch) {
        if (tensor_.axis != SplitAxis::kRows) return read_rows(0, tensor_.whole_rows, 0, scratch);
        std::int64_t shard_row = 0;
        for (const ShardPart& part : tensor_.parts) {
            RETURN_IF_ERROR(read_rows(part.begin, part.num, shard_row, scratch));
            shard_row += part.num;
        }
        return Ok{};
    }

  private:
    Result<> read_rows(
        std::int64_t begin,
        std::int64_t num,
        std::int64_t shard_row,
        std::vector<std::byte>& scratch
    ) {
        const std::int64_t row_bytes = tensor_.whole_cols * bytes_of(stored_.spec.dtype);
        if (stored_.spec.dtype == StoredDtype::kBf16 && tensor_.axis != SplitAxis::kCols) {
            // The shard's rows are the tensor's, bit for bit: straight to their place.
            std::byte* dst = arena_ + tensor_.offset + shard_row * row_bytes;
            const auto size = static_cast<std::size_t>(num * row_bytes);
            return checkpoint_.read(stored_, begin * row_bytes, {dst, size});
        }
        const std::int64_t rows_max = std::max<std::int64_t>(1, kChunkBytes / row_bytes);
        for (std::int64_t row = begin; row < begin + num; row += rows_max) {
            const std::int64_t num_rows = std::min(rows_max, begin + num - row);
            scratch.resize(static_cast<std::size_t>(num_rows * row_bytes));
            RETURN_IF_ERROR(checkpoint_.read(stored_, row * row_bytes, scratch));
            copy_rows({
                .tensor = tensor_,
                .dtype = stored_.spec.dtype,
                .src = scratch.data(),
                .row_begin = row,
                .num_rows = num_rows,
                .arena = arena_,
                .ops = ops_,
            });
        }
        return Ok{};
    }

    const WeightTensor& tensor_;
    const StoredTensor& stored_;
    const Checkpoint& checkpoint_;
    const Ops& ops_;
    std::byte* arena_;
};

}  // namespace

void copy_rows(const RowsArgs& args) {
    const WeightTensor& tensor = args.tensor;
    CHECK(args.row_begin >= 0 && args.row_begin + args.num_rows <= tensor.whole_rows);
    auto* shard = reinterpret_cast<bf16*>(args.arena + tensor.offset);
    const std::int64_t src_row_bytes = tensor.whole_cols * bytes_of(args.dtype);
    std::int64_t shard_at = 0;  // where the part starts along the split axis of the shard
    for (const ShardPart& part : tensor.parts) {
        std::int64_t row_begin = args.row_begin;
        std::int64_t row_end = args.row_begin + args.num_rows;
        std::int64_t shard_row = row_begin;
        std::int64_t src_col = 0;
        std::int64_t shard_col = 0;
        std::int64_t num_cols = tensor.whole_cols;
        if (tensor.axis == SplitAxis::kRows) {
            row_begin = std::max(row_begin, part.begin);
            row_end = std::min(row_end, part.begin + part.num);
            shard_row = shard_at + row_begin - part.begin;
        } else if (tensor.axis == SplitAxis::kCols) {
            src_col = part.begin;
            shard_col = shard_at;
            num_cols = part.num;
        }
        shard_at += part.num;
        if (row_begin >= row_end) continue;
        const std::array<ShardCopy, 1> copies{{{
            .src = args.src + (row_begin - args.row_begin) * src_row_bytes +
                   src_col * bytes_of(args.dtype),
            .src_dtype = op_dtype(args.dtype),
            .src_stride = tensor.whole_cols,
            .dst =
                {.data = shard + shard_row * tensor.cols + shard_col,
                 .rows = row_end - row_begin,
                 .cols = num_cols,
                 .stride = tensor.cols},
        }}};
        args.ops.shard_copy({.copies = copies, .stream = args.stream});
    }
}

Result<> load_weights(
    const WeightLayout& layout,
    const Checkpoint& checkpoint,
    const std::string& source,
    const Ops& ops,
    Stream stream,
    std::byte* arena
) {
    std::vector<TensorSpec> offered;
    for (const StoredTensor& stored : checkpoint.tensors()) offered.push_back(stored.spec);
    const std::vector<std::string> problems = find_problems(layout, offered, Completeness::kWhole);
    if (!problems.empty()) return error_of(source, problems);

    const auto num_tensors = static_cast<std::int64_t>(layout.tensors().size());
    std::vector<Result<>> results(layout.tensors().size(), Ok{});
    std::vector<std::vector<std::byte>> scratch(static_cast<std::size_t>(num_threads_of(stream)));
    auto load = [&](std::int64_t begin, std::int64_t end, int thread) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
            const WeightTensor& tensor = layout.tensors()[i];
            const StoredTensor* stored = checkpoint.find(tensor.name);
            CHECK(stored != nullptr);
            TensorReader reader(tensor, *stored, checkpoint, ops, arena);
            results[i] = reader.read(scratch[static_cast<std::size_t>(thread)]);
        }
    };
    parallel_for(stream, num_tensors, /*grain=*/1, load);
    for (Result<>& result : results) RETURN_IF_ERROR(std::move(result));
    return Ok{};
}

}  // namespace pitstop
