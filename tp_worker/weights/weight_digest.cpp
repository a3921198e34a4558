#include "tp_worker/weights/weight_digest.h"

#include "base/check.h"
#include "digest/digest_rows.h"
#include "kernels/runtime/cuda_device.h"
#include "messages/dtypes.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

// Returns an empty name for the usual dtype: messages name the dtype of each of a model's
// thousands of parts.
std::string unusual_dtype(Encoding encoding) {
    return std::string(name_of(encoding) == messages::kUsualDtype ? "" : name_of(encoding));
}

}  // namespace

void append_parts(const WeightTensor& tensor, std::vector<messages::PartDigest>& parts) {
    for (const ShardPart& part : tensor.parts) {
        parts.push_back({
            .name = tensor.name,
            .shape = tensor.shape,
            .part = part.index,
            .parts = tensor.num_parts,
            .dtype = unusual_dtype(tensor.encoding),
        });
    }
}

namespace {

// The words of a part within the whole tensor. REQUIRES: the part cuts no word.
struct PartWords {
    std::uint64_t first = 0;    // number of the part's first word
    std::uint64_t per_row = 0;  // words in a row of the whole tensor
};

PartWords words_of(Encoding encoding, const ShardPart& part) {
    const std::int64_t begin = bytes_of(encoding, part.whole_col);
    const std::int64_t end = bytes_of(encoding, part.whole_col + part.cols);
    const std::int64_t row_bytes = bytes_of(encoding, part.whole_stride);
    CHECK(begin % kDigestWordBytes == 0 && (end % kDigestWordBytes == 0 || end == row_bytes));
    const std::uint64_t per_row = digest_words(row_bytes);
    return {
        .first = static_cast<std::uint64_t>(part.whole_row) * per_row +
                 static_cast<std::uint64_t>(begin / kDigestWordBytes),
        .per_row = per_row,
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

kernels::DigestArgs digest_args(Encoding encoding, const ShardPart& part, const std::byte* shard) {
    const PartWords words = words_of(encoding, part);
    return {
        .data = shard + bytes_of(encoding, part.shard_begin()),
        .rows = part.rows,
        .row_bytes = bytes_of(encoding, part.cols),
        .row_stride_bytes = bytes_of(encoding, part.shard_stride),
        .first_word = words.first,
        .words_per_row = words.per_row,
    };
}

void digest_and_count(
    Encoding encoding,
    kernels::DigestArgs args,
    std::uint64_t* count,
    Digest* unused,
    const kernels::Ops& ops
) {
    const bool is_f32 = encoding == Encoding::kF32;
    if (!is_f32) args.num_nonfinite = count;
    ops.digest(args);
    if (!is_f32 || count == nullptr) return;
    constexpr std::int64_t kHalfBytes = bytes_of(Encoding::kBf16, 1);
    constexpr std::int64_t kBytes = bytes_of(Encoding::kF32, 1);
    for (std::int64_t row = 0; row < args.rows; ++row) {
        kernels::DigestArgs uppers = args;
        uppers.data =
            static_cast<const std::byte*>(args.data) + row * args.row_stride_bytes + kHalfBytes;
        uppers.rows = args.row_bytes / kBytes;
        uppers.row_bytes = kHalfBytes;
        uppers.row_stride_bytes = kBytes;
        uppers.first_word = 0;
        uppers.words_per_row = 1;
        uppers.sum = unused;
        uppers.num_nonfinite = count;
        ops.digest(uppers);
    }
}

std::uint64_t add_rows_digest(const RowsDigestArgs& args, std::span<messages::PartDigest> parts) {
    CHECK(parts.size() == args.tensor.parts.size() && !args.tensor.cuts_words);
    std::uint64_t num_nonfinite = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const ShardPart rows = args.tensor.parts[i].in_shard_rows(args.row_begin, args.num_rows);
        if (rows.is_empty()) continue;
        Digest sum;
        kernels::DigestArgs part =
            digest_args(args.tensor.encoding, rows, args.arena + args.tensor.offset);
        part.sum = &sum;
        if (args.tensor.encoding == Encoding::kBf16) {
            part.num_nonfinite = &num_nonfinite;
        } else {
            num_nonfinite += count_nonfinite_f32(
                static_cast<const std::byte*>(part.data),
                part.rows,
                rows.cols,
                part.row_stride_bytes
            );
        }
        part.stream = args.stream;
        args.ops.digest(part);
        parts[i].lane0 += sum.lane0;
        parts[i].lane1 += sum.lane1;
    }
    return num_nonfinite;
}

std::uint64_t copy_rows_and_digest(
    const CopyRowsArgs& args, std::span<messages::PartDigest> parts
) {
    const WeightTensor& tensor = args.tensor;
    CHECK(parts.size() == tensor.parts.size() && !tensor.cuts_words);
    const bool is_whole = args.from == RowsFrom::kTensor;
    std::uint64_t num_nonfinite = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const ShardPart rows = tensor.parts[i].in_shard_rows(args.row_begin, args.num_rows);
        if (rows.is_empty()) continue;
        const PartWords words = words_of(tensor.encoding, rows);
        const std::int64_t shard_at = tensor.offset_of(rows.shard_begin());
        const std::int64_t shard_stride_bytes = bytes_of(tensor.encoding, rows.shard_stride);
        const std::int64_t whole_at = bytes_of(tensor.encoding, rows.whole_begin());
        const std::int64_t whole_stride_bytes = bytes_of(tensor.encoding, rows.whole_stride);
        const digest::DigestSum sum = digest::digest_of(
            {
                .data = args.src + (is_whole ? whole_at : shard_at),
                .num_rows = rows.rows,
                .row_bytes = bytes_of(tensor.encoding, rows.cols),
                .row_stride_bytes = is_whole ? whole_stride_bytes : shard_stride_bytes,
                .first_word = words.first,
                .words_per_row = words.per_row,
                .copy_to = args.arena + shard_at,
                .copy_stride_bytes = shard_stride_bytes,
            },
            args.add_run
        );
        num_nonfinite += tensor.encoding == Encoding::kBf16
                             ? sum.num_nonfinite
                             : count_nonfinite_f32(
                                   args.arena + shard_at, rows.rows, rows.cols, shard_stride_bytes
                               );
        parts[i].lane0 += sum.digest.lane0;
        parts[i].lane1 += sum.digest.lane1;
    }
    return num_nonfinite;
}

Result<std::vector<messages::PartDigest>> digest_weights(
    const WeightLayout& layout,
    const std::byte* arena,
    const kernels::Ops& ops,
    kernels::Stream stream,
    const std::function<void()>& between
) {
    if (const std::optional<Error> error = cut_word(layout)) return *error;
    std::vector<messages::PartDigest> digests;
    for (const WeightTensor& tensor : layout.tensors()) {
        const std::size_t first_part = digests.size();
        append_parts(tensor, digests);
        const std::int64_t rows_max = std::max<std::int64_t>(1, kPieceBytes / tensor.row_bytes());
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
    ASSIGN_OR_RETURN(
        made.stream_, kernels::DeviceStream::create(kernels::StreamPriority::kBackground)
    );
    ASSIGN_OR_RETURN(made.is_done_, kernels::DeviceEvent::create());
    ASSIGN_OR_RETURN(made.sums_, kernels::DeviceBuffer::create(bytes));
    ASSIGN_OR_RETURN(made.host_sums_, kernels::PinnedBuffer::create(bytes));
    return made;
}

Result<std::vector<messages::PartDigest>> GpuWeightDigest::digest(
    const std::byte* arena, const kernels::Ops& ops
) {
    if (const std::optional<Error> error = cut_word(*layout_)) return *error;
    kernels::enter_cuda_device();
    const kernels::Stream stream = stream_.stream();
    kernels::fill_device(sums_.data(), 0, sums_.bytes(), stream);
    Digest* next_sum = static_cast<Digest*>(sums_.data());
    for (const WeightTensor& tensor : layout_->tensors()) {
        for (const ShardPart& held : tensor.parts) {
            Digest* const sum = next_sum++;
            if (held.is_empty()) continue;
            kernels::DigestArgs part = digest_args(tensor.encoding, held, arena + tensor.offset);
            part.sum = sum;
            part.stream = stream;
            ops.digest(part);
        }
    }
    kernels::copy_to_host(host_sums_.data(), sums_.data(), sums_.bytes(), stream);
    is_done_.record(stream);
    is_done_.wait(kernels::kDeviceWaitMax, "a digest of the weights");
    std::vector<messages::PartDigest> digests = parts_;
    for (std::size_t i = 0; i < digests.size(); ++i) {
        Digest sum;
        std::memcpy(&sum, host_sums_.data() + i * sizeof sum, sizeof sum);
        digests[i].lane0 = sum.lane0;
        digests[i].lane1 = sum.lane1;
    }
    return digests;
}

}  // namespace pitstop::tp_worker
