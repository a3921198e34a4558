#include "tp_worker/weight_digest.h"

#include "base/check.h"

#include <algorithm>

namespace pitstop {
namespace {

constexpr std::int64_t kElementBytes = 2;  // resident weights are bf16
constexpr std::int64_t kWordBytes = 8;

}  // namespace

void append_parts(const WeightTensor& tensor, std::vector<PartDigest>& parts) {
    for (const ShardPart& part : tensor.parts) {
        parts.push_back({
            .name = tensor.name,
            .shape = tensor.shape,
            .part = part.index,
            .parts = tensor.num_parts,
        });
    }
}

std::uint64_t add_rows_digest(const RowsDigestArgs& args, std::span<PartDigest> parts) {
    const WeightTensor& tensor = args.tensor;
    CHECK(parts.size() == tensor.parts.size() && !tensor.cuts_words);
    const std::int64_t stride = tensor.cols * kElementBytes;
    const std::uint64_t words_per_row = digest_words(tensor.whole_cols * kElementBytes);
    std::uint64_t num_nonfinite = 0;
    std::int64_t shard_at = 0;  // where the part starts along the split axis of the shard
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const ShardPart& part = tensor.parts[i];
        std::int64_t row_begin = args.row_begin;
        std::int64_t row_end = args.row_begin + args.num_rows;
        std::int64_t whole_row = row_begin;
        std::int64_t col_begin = 0;  // in bytes, of the shard
        std::int64_t row_bytes = tensor.whole_cols * kElementBytes;
        std::uint64_t first_word = 0;
        if (tensor.axis == SplitAxis::kRows) {
            row_begin = std::max(row_begin, shard_at);
            row_end = std::min(row_end, shard_at + part.num);
            whole_row = part.begin + row_begin - shard_at;
        } else if (tensor.axis == SplitAxis::kCols) {
            const std::int64_t begin = part.begin * kElementBytes;
            const std::int64_t end = begin + part.num * kElementBytes;
            CHECK(begin % kWordBytes == 0 && (end % kWordBytes == 0 || end == row_bytes));
            col_begin = shard_at * kElementBytes;
            row_bytes = end - begin;
            first_word = static_cast<std::uint64_t>(begin / kWordBytes);
        }
        shard_at += part.num;
        if (row_begin >= row_end || row_bytes == 0) continue;
        Digest sum;
        args.ops.digest({
            .data = args.arena + tensor.offset + row_begin * stride + col_begin,
            .rows = row_end - row_begin,
            .row_bytes = row_bytes,
            .row_stride_bytes = stride,
            .first_word = static_cast<std::uint64_t>(whole_row) * words_per_row + first_word,
            .words_per_row = words_per_row,
            .sum = &sum,
            .num_nonfinite = &num_nonfinite,
            .stream = args.stream,
        });
        parts[i].lane0 += sum.lane0;
        parts[i].lane1 += sum.lane1;
    }
    return num_nonfinite;
}

Result<std::vector<PartDigest>> digest_weights(
    const WeightLayout& layout, const std::byte* arena, const Ops& ops, Stream stream
) {
    std::vector<PartDigest> digests;
    for (const WeightTensor& tensor : layout.tensors()) {
        if (tensor.cuts_words) {
            return make_error(
                ErrorCode::kUnsupported,
                "'{}': the ranks' parts of its rows do not end between words of the digest",
                tensor.name
            );
        }
        const std::size_t first_part = digests.size();
        append_parts(tensor, digests);
        add_rows_digest(
            {.tensor = tensor,
             .arena = arena,
             .num_rows = tensor.rows,
             .ops = ops,
             .stream = stream},
            std::span(digests).subspan(first_part)
        );
    }
    return digests;
}

}  // namespace pitstop
