#include "messages/push.h"

#include "messages/dtypes.h"
#include "messages/weights.h"

#include <fmt/format.h>

#include <iterator>

namespace pitstop::messages {
namespace {

constexpr int kPushProtocol = 1;

// Returns whether the piece is inside its tensor and, unless shard_bytes is 0, inside the shard.
bool is_inside(
    const ShardPiece& piece,
    std::int64_t rows,
    std::int64_t cols,
    std::int64_t element_bytes,
    std::int64_t shard_bytes
) {
    const bool is_in_tensor = piece.row_begin >= 0 && piece.num_rows >= 0 && piece.col_begin >= 0 &&
                              piece.num_cols >= 0 && piece.row_begin <= rows &&
                              piece.num_rows <= rows - piece.row_begin && piece.col_begin <= cols &&
                              piece.num_cols <= cols - piece.col_begin;
    if (!is_in_tensor || piece.offset < 0 || piece.row_stride < 0) return false;
    if (shard_bytes == 0 || piece.num_rows == 0) return true;
    std::int64_t end = 0;
    std::int64_t row_bytes = 0;
    return !__builtin_mul_overflow(piece.num_cols, element_bytes, &row_bytes) &&
           !__builtin_mul_overflow(piece.num_rows - 1, piece.row_stride, &end) &&
           !__builtin_add_overflow(end, row_bytes, &end) &&
           !__builtin_add_overflow(end, piece.offset, &end) && end <= shard_bytes;
}

std::optional<std::string> invalid(const ShardTensor& tensor, std::int64_t shard_bytes) {
    std::int64_t rows = 1;
    bool is_shape = true;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
        is_shape = is_shape && tensor.shape[d] >= 0;
        if (d + 1 < tensor.shape.size())
            is_shape = is_shape && !__builtin_mul_overflow(rows, tensor.shape[d], &rows);
    }
    if (!is_shape)
        return fmt::format(
            "tensor '{}' has an invalid shape; accepted are dimensions "
            "of 0 or more whose product fits into 63 bits",
            tensor.name
        );
    const std::optional<std::int64_t> element_bytes =
        element_bytes_of(dtype_or_usual(tensor.dtype));
    if (!element_bytes) return fmt::format("tensor '{}' has an unknown dtype", tensor.name);
    const std::int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
    for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
        if (!is_inside(tensor.pieces[i], rows, cols, *element_bytes, shard_bytes))
            return fmt::format(
                "piece {} of '{}' is outside of the tensor or of the shard", i, tensor.name
            );
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::string> invalid(const PushLayout& message) {
    if (message.shard_bytes < 0) return "shard_bytes is negative";
    for (const ShardTensor& tensor : message.tensors) {
        if (auto problem = invalid(tensor, message.shard_bytes)) return problem;
    }
    return std::nullopt;
}

std::optional<std::string> invalid(const PushOpen& message) {
    if (message.protocol == kPushProtocol) return std::nullopt;
    return fmt::format(
        "protocol is {}; this worker speaks push protocol {}", message.protocol, kPushProtocol
    );
}

std::optional<std::string> invalid(const PushBucket& message) {
    if (message.tensors.size() > kManifestMax) {
        return fmt::format(
            "a bucket has {} tensors; at most {} are accepted", message.tensors.size(), kManifestMax
        );
    }
    if (message.allocations.size() > kManifestMax) {
        return fmt::format(
            "a bucket has {} allocations; at most {} are accepted",
            message.allocations.size(),
            kManifestMax
        );
    }
    const auto num_allocations = std::ssize(message.allocations);
    for (const PushTensor& tensor : message.tensors) {
        if (tensor.name.empty()) return "a tensor without a name";
        if (tensor.allocation && (*tensor.allocation < 0 || *tensor.allocation >= num_allocations))
            return fmt::format(
                "'{}' is in allocation {}; the bucket has {}",
                tensor.name,
                *tensor.allocation,
                num_allocations
            );
        const bool are_rows = tensor.num_rows ? *tensor.num_rows >= 1 && tensor.row_begin >= 0
                                              : tensor.row_begin == 0;
        if (!are_rows || (tensor.num_rows && tensor.allocation))
            return fmt::format(
                "'{}': row_begin is {} and num_rows {}; leave both out or, for rows in the memory, "
                "give row_begin of 0 or more and num_rows of 1 or more",
                tensor.name,
                tensor.row_begin,
                tensor.num_rows.value_or(0)
            );
    }
    return std::nullopt;
}

}  // namespace pitstop::messages
