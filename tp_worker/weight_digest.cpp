#include "tp_worker/weight_digest.h"

namespace pitstop {
namespace {

constexpr std::int64_t kElementBytes = 2;  // resident weights are bf16
constexpr std::int64_t kWordBytes = 8;

struct PartArgs {
    const WeightTensor& tensor;
    const ShardPart& part;
    std::int64_t shard_at = 0;  // where the part starts along the split axis of the shard
    const std::byte* arena = nullptr;
    const Ops& ops;
    Stream stream{};
};

Digest digest_part(const PartArgs& args) {
    const WeightTensor& tensor = args.tensor;
    const ShardPart& part = args.part;
    const std::uint64_t words_per_row = digest_words(tensor.whole_cols * kElementBytes);
    const std::byte* data = args.arena + tensor.offset;
    Digest sum;
    DigestArgs digest{
        .data = data,
        .rows = tensor.whole_rows,
        .row_bytes = tensor.whole_cols * kElementBytes,
        .row_stride_bytes = tensor.cols * kElementBytes,
        .words_per_row = words_per_row,
        .sum = &sum,
        .stream = args.stream,
    };
    if (tensor.axis == SplitAxis::kRows) {
        digest.data = data + args.shard_at * digest.row_stride_bytes;
        digest.rows = part.num;
        digest.first_word = static_cast<std::uint64_t>(part.begin) * words_per_row;
    } else if (tensor.axis == SplitAxis::kCols) {
        const std::int64_t begin = part.begin * kElementBytes;
        const std::int64_t end = begin + part.num * kElementBytes;
        CHECK(begin % kWordBytes == 0 && (end % kWordBytes == 0 || end == digest.row_bytes));
        digest.data = data + args.shard_at * kElementBytes;
        digest.row_bytes = end - begin;
        digest.first_word = static_cast<std::uint64_t>(begin / kWordBytes);
    }
    if (digest.rows > 0) args.ops.digest(digest);
    return sum;
}

}  // namespace

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
        std::int64_t shard_at = 0;
        for (const ShardPart& part : tensor.parts) {
            const Digest sum = digest_part({
                .tensor = tensor,
                .part = part,
                .shard_at = shard_at,
                .arena = arena,
                .ops = ops,
                .stream = stream,
            });
            shard_at += part.num;
            digests.push_back({
                .name = tensor.name,
                .shape = tensor.shape,
                .part = part.index,
                .parts = tensor.num_parts,
                .lane0 = sum.lane0,
                .lane1 = sum.lane1,
            });
        }
    }
    return digests;
}

}  // namespace pitstop
