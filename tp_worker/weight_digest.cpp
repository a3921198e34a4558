#include "tp_worker/weight_digest.h"

#include "base/check.h"
#include "kernels/device_memory.h"

#include <algorithm>
#include <optional>

namespace pitstop {
namespace {

constexpr std::int64_t kElementBytes = 2;  // resident weights are bf16
constexpr std::int64_t kWordBytes = 8;
constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

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

namespace {

// Calls use(i, rectangle) for what part i has of the rows; `sum` and the stream are left to it.
template <class F>
void for_each_part(const RowsDigestArgs& args, F use) {
    const WeightTensor& tensor = args.tensor;
    const std::int64_t stride = tensor.cols * kElementBytes;
    const std::uint64_t words_per_row = digest_words(tensor.whole_cols * kElementBytes);
    std::int64_t shard_at = 0;  // where the part starts along the split axis of the shard
    for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
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
        use(i,
            DigestArgs{
                .data = args.arena + tensor.offset + row_begin * stride + col_begin,
                .rows = row_end - row_begin,
                .row_bytes = row_bytes,
                .row_stride_bytes = stride,
                .first_word = static_cast<std::uint64_t>(whole_row) * words_per_row + first_word,
                .words_per_row = words_per_row,
            });
    }
}

std::optional<Error> cut_word(const WeightLayout& layout) {
    for (const WeightTensor& tensor : layout.tensors()) {
        if (!tensor.cuts_words) continue;
        return make_error(
            ErrorCode::kUnsupported,
            "'{}': the ranks' parts of its rows do not end between words of the digest",
            tensor.name
        );
    }
    return std::nullopt;
}

}  // namespace

std::uint64_t add_rows_digest(const RowsDigestArgs& args, std::span<PartDigest> parts) {
    CHECK(parts.size() == args.tensor.parts.size() && !args.tensor.cuts_words);
    std::uint64_t num_nonfinite = 0;
    for_each_part(args, [&](std::size_t i, DigestArgs part) {
        Digest sum;
        part.sum = &sum;
        part.num_nonfinite = &num_nonfinite;
        part.stream = args.stream;
        args.ops.digest(part);
        parts[i].lane0 += sum.lane0;
        parts[i].lane1 += sum.lane1;
    });
    return num_nonfinite;
}

Result<std::vector<PartDigest>> digest_weights(
    const WeightLayout& layout,
    const std::byte* arena,
    const Ops& ops,
    Stream stream,
    const std::function<void()>& between
) {
    if (const std::optional<Error> error = cut_word(layout)) return *error;
    std::vector<PartDigest> digests;
    for (const WeightTensor& tensor : layout.tensors()) {
        const std::size_t first_part = digests.size();
        append_parts(tensor, digests);
        const std::int64_t rows_max =
            std::max<std::int64_t>(1, kPieceBytes / (tensor.cols * kElementBytes));
        for (std::int64_t row = 0; row < tensor.rows; row += rows_max) {
            add_rows_digest(
                {.tensor = tensor,
                 .arena = arena,
                 .row_begin = row,
                 .num_rows = std::min(rows_max, tensor.rows - row),
                 .ops = ops,
                 .stream = stream},
                std::span(digests).subspan(first_part)
            );
            between();
        }
    }
    return digests;
}

Result<std::vector<PartDigest>> digest_weights_on_gpu(
    const WeightLayout& layout, const std::byte* arena, const Ops& ops
) {
    if (const std::optional<Error> error = cut_word(layout)) return *error;
    std::vector<PartDigest> digests;
    for (const WeightTensor& tensor : layout.tensors()) append_parts(tensor, digests);
    std::vector<Digest> sums(digests.size());
    const auto bytes = static_cast<std::int64_t>(sums.size() * sizeof(Digest));
    ASSIGN_OR_RETURN(const DeviceStream stream, DeviceStream::create(StreamPriority::kBackground));
    ASSIGN_OR_RETURN(const DeviceBuffer there, DeviceBuffer::create(bytes));
    fill_device(there.data(), 0, bytes, stream.stream());
    Digest* first_sum = static_cast<Digest*>(there.data());
    for (const WeightTensor& tensor : layout.tensors()) {
        for_each_part(
            {.tensor = tensor, .arena = arena, .num_rows = tensor.rows, .ops = ops},
            [&](std::size_t i, DigestArgs part) {
                part.sum = first_sum + i;
                part.stream = stream.stream();
                ops.digest(part);
            }
        );
        first_sum += tensor.parts.size();
    }
    copy_to_host(sums.data(), there.data(), bytes, stream.stream());
    stream.wait();
    for (std::size_t i = 0; i < sums.size(); ++i) {
        digests[i].lane0 = sums[i].lane0;
        digests[i].lane1 = sums[i].lane1;
    }
    return digests;
}

}  // namespace pitstop
