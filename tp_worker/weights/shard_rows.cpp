#include "tp_worker/weights/shard_rows.h"

#include "base/check.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pitstop::tp_worker {
namespace {

// A thread's part has twice the bytes whose copying takes as long as starting one (task_pool.h).
std::int64_t rows_of_part(const WeightTensor& rows) {
    constexpr std::int64_t kPartBytes = std::int64_t{512} << 10;
    return std::max<std::int64_t>(1, kPartBytes / rows.row_bytes());
}

}  // namespace

std::int64_t num_filled_rows(const WeightTensor& tensor) {
    std::int64_t num = 0;
    for (const ShardPart& part : tensor.parts)
        if (!part.is_empty()) num = std::max(num, part.shard_row + part.rows);
    return num;
}

WeightTensor cut_rows(const WeightTensor& tensor, std::int64_t row_begin, std::int64_t num_rows) {
    WeightTensor rows = tensor;
    rows.offset = 0;
    rows.rows = num_rows;
    rows.parts.clear();
    for (const ShardPart& whole : tensor.parts) {
        ShardPart part = whole.in_shard_rows(row_begin, num_rows);
        part.shard_row -= row_begin;
        if (!part.is_empty()) rows.parts.push_back(part);
    }
    return rows;
}

bool is_worth_sharing(const WeightTensor& rows) { return rows.rows > rows_of_part(rows); }

Result<> load_shared(
    TaskPool& threads, const LoadTensorArgs& args, const RowsWritten& rows_written
) {
    CHECK(args.bytes.data != nullptr && args.parts.empty());
    const WeightTensor& rows = args.tensor;
    const std::int64_t part_rows = rows_of_part(rows);
    const auto num_parts = static_cast<std::size_t>((rows.rows + part_rows - 1) / part_rows);
    return threads.run(num_parts, [&](std::size_t number) {
        const std::int64_t begin = static_cast<std::int64_t>(number) * part_rows;
        const WeightTensor part = cut_rows(rows, begin, std::min(part_rows, rows.rows - begin));
        std::vector<std::byte> unused;  // the bytes are in memory
        return load_tensor(
            {.tensor = part,
             .bytes = args.bytes,
             .ops = args.ops,
             .arena = args.arena + begin * rows.row_bytes()},
            unused,
            rows_written
        );
    });
}

}  // namespace pitstop::tp_worker
