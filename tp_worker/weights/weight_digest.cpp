#include "tp_worker/weights/weight_digest.h"

#include "base/check.h"
#include "digest/digest_rows.h"
#include "kernels/cuda_device.h"

#include <algorithm>
#include <cstring>
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

// What one part has of some rows: a rectangle of bytes.
struct PartRows {
    std::size_t part = 0;
    std::int64_t num_rows = 0;
    std::int64_t row_bytes = 0;
    std::int64_t shard_begin = 0;   // its first byte in the shard's tensor
    std::int64_t tensor_begin = 0;  // and in the whole one
    std::uint64_t first_word = 0;   // of the whole tensor
    std::uint64_t words_per_row = 0;
};

// Calls use(rows) for what each part has of rows [row_begin, row_begin + num_rows) of the shard.
template <class F>
void for_each_part(
    const WeightTensor& tensor, std::int64_t begin_row, std::int64_t num_rows, F use
) {
    const std::int64_t shard_row_bytes = tensor.cols * kElementBytes;
    const std::int64_t tensor_row_bytes = tensor.whole_cols * kElementBytes;
    const std::uint64_t words_per_row = digest_words(tensor_row_bytes);
    std::int64_t shard_at = 0;  // where the part starts along the split axis of the shard
    for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
        const ShardPart& part = tensor.parts[i];
        std::int64_t row_begin = begin_row;
        std::int64_t row_end = begin_row + num_rows;
        std::int64_t whole_row = row_begin;
        std::int64_t shard_col = 0;  // in bytes
        std::int64_t whole_col = 0;  // in bytes
        std::int64_t row_bytes = tensor_row_bytes;
        if (tensor.axis == SplitAxis::kRows) {
            row_begin = std::max(row_begin, shard_at);
            row_end = std::min(row_end, shard_at + part.num);
            whole_row = part.begin + row_begin - shard_at;
        } else if (tensor.axis == SplitAxis::kCols) {
            whole_col = part.begin * kElementBytes;
            const std::int64_t end = whole_col + part.num * kElementBytes;
            CHECK(whole_col % kWordBytes == 0 && (end % kWordBytes == 0 || end == row_bytes));
            shard_col = shard_at * kElementBytes;
            row_bytes = end - whole_col;
        }
        shard_at += part.num;
        if (row_begin >= row_end || row_bytes == 0) continue;
        use(PartRows{
            .part = i,
            .num_rows = row_end - row_begin,
            .row_bytes = row_bytes,
            .shard_begin = row_begin * shard_row_bytes + shard_col,
            .tensor_begin = whole_row * tensor_row_bytes + whole_col,
            .first_word = static_cast<std::uint64_t>(whole_row) * words_per_row +
                          static_cast<std::uint64_t>(whole_col / kWordBytes),
            .words_per_row = words_per_row,
        });
    }
}

// Of rows as they are in an arena. The sum and the stream are left to the caller.
DigestArgs digest_args(const WeightTensor& tensor, const PartRows& rows, const std::byte* arena) {
    return {
        .data = arena + tensor.offset + rows.shard_begin,
        .rows = rows.num_rows,
        .row_bytes = rows.row_bytes,
        .row_stride_bytes = tensor.cols * kElementBytes,
        .first_word = rows.first_word,
        .words_per_row = rows.words_per_row,
    };
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
    for_each_part(args.tensor, args.row_begin, args.num_rows, [&](const PartRows& rows) {
        Digest sum;
        DigestArgs part = digest_args(args.tensor, rows, args.arena);
        part.sum = &sum;
        part.num_nonfinite = &num_nonfinite;
        part.stream = args.stream;
        args.ops.digest(part);
        parts[rows.part].lane0 += sum.lane0;
        parts[rows.part].lane1 += sum.lane1;
    });
    return num_nonfinite;
}

std::uint64_t copy_rows_and_digest(const CopyRowsArgs& args, std::span<PartDigest> parts) {
    const WeightTensor& tensor = args.tensor;
    CHECK(parts.size() == tensor.parts.size() && !tensor.cuts_words);
    const bool is_whole = args.from == RowsFrom::kTensor;
    const std::int64_t shard_row_bytes = tensor.cols * kElementBytes;
    std::uint64_t num_nonfinite = 0;
    for_each_part(tensor, args.row_begin, args.num_rows, [&](const PartRows& rows) {
        const DigestSum sum = digest_of(
            {
                .data = is_whole ? args.src + rows.tensor_begin
                                 : args.src + tensor.offset + rows.shard_begin,
                .num_rows = rows.num_rows,
                .row_bytes = rows.row_bytes,
                .row_stride_bytes = is_whole ? tensor.whole_cols * kElementBytes : shard_row_bytes,
                .first_word = rows.first_word,
                .words_per_row = rows.words_per_row,
                .copy_to = args.arena + tensor.offset + rows.shard_begin,
                .copy_stride_bytes = shard_row_bytes,
            },
            args.add_run
        );
        num_nonfinite += sum.num_nonfinite;
        parts[rows.part].lane0 += sum.digest.lane0;
        parts[rows.part].lane1 += sum.digest.lane1;
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

Result<GpuWeightDigest> GpuWeightDigest::make(const WeightLayout& layout) {
    GpuWeightDigest made(layout);
    for (const WeightTensor& tensor : layout.tensors()) append_parts(tensor, made.parts_);
    const auto bytes = static_cast<std::int64_t>(made.parts_.size() * sizeof(Digest));
    ASSIGN_OR_RETURN(made.stream_, DeviceStream::create(StreamPriority::kBackground));
    ASSIGN_OR_RETURN(made.is_done_, DeviceEvent::create());
    ASSIGN_OR_RETURN(made.sums_, DeviceBuffer::create(bytes));
    ASSIGN_OR_RETURN(made.host_sums_, PinnedBuffer::create(bytes));
    return made;
}

Result<std::vector<PartDigest>> GpuWeightDigest::digest(const std::byte* arena, const Ops& ops) {
    if (const std::optional<Error> error = cut_word(*layout_)) return *error;
    enter_cuda_device();
    const Stream stream = stream_.stream();
    fill_device(sums_.data(), 0, sums_.bytes(), stream);
    Digest* first_sum = static_cast<Digest*>(sums_.data());
    for (const WeightTensor& tensor : layout_->tensors()) {
        for_each_part(tensor, 0, tensor.rows, [&](const PartRows& rows) {
            DigestArgs part = digest_args(tensor, rows, arena);
            part.sum = first_sum + rows.part;
            part.stream = stream;
            ops.digest(part);
        });
        first_sum += tensor.parts.size();
    }
    copy_to_host(host_sums_.data(), sums_.data(), sums_.bytes(), stream);
    is_done_.record(stream);
    is_done_.wait(kDeviceWaitMax, "a digest of the weights");
    std::vector<PartDigest> digests = parts_;
    for (std::size_t i = 0; i < digests.size(); ++i) {
        Digest sum;
        std::memcpy(&sum, host_sums_.data() + i * sizeof sum, sizeof sum);
        digests[i].lane0 = sum.lane0;
        digests[i].lane1 = sum.lane1;
    }
    return digests;
}

}  // namespace pitstop
