#include "tp_worker/weights/tensor_read.h"

#include "messages/codec.h"

#include <cstdint>
#include <cstring>
#include <span>

namespace pitstop::tp_worker {
namespace {

// The most similar names that an error lists.
constexpr std::size_t kNearNamesMax = 5;

}  // namespace

std::string near_names(const WeightLayout& layout, std::string_view name) {
    const std::string_view end =
        name.substr(name.rfind('.') == name.npos ? 0 : name.rfind('.', name.rfind('.') - 1) + 1);
    std::string names;
    std::size_t num = 0;
    for (const WeightTensor& tensor : layout.tensors()) {
        if (!tensor.name.ends_with(end) || num == kNearNamesMax) continue;
        names += (num++ == 0 ? "" : ", ") + tensor.name;
    }
    return names;
}

std::vector<messages::Frames> read_parts(
    const WeightTensor& tensor, const Arena& arena, const messages::WorkerTensor& head
) {
    std::vector<messages::Frames> answers;
    std::vector<std::byte> span;  // for a part whose rows are not contiguous
    for (const ShardPart& part : tensor.parts) {
        messages::WorkerTensor piece = head;
        piece.row_begin = part.whole_row;
        piece.num_rows = part.rows;
        piece.col_begin = part.whole_col;
        piece.num_cols = part.cols;
        const std::int64_t row_bytes = bytes_of(tensor.encoding, part.cols);
        const std::int64_t stride_bytes = bytes_of(tensor.encoding, part.shard_stride);
        const std::int64_t begin = tensor.offset_of(part.shard_begin());
        piece.data.values.resize(static_cast<std::size_t>(part.rows * row_bytes));
        const std::span<std::byte> values = std::as_writable_bytes(std::span(piece.data.values));
        if (part.is_empty() || row_bytes == stride_bytes) {
            arena.fetch(begin, values);
        } else {
            const std::int64_t span_bytes = (part.rows - 1) * stride_bytes + row_bytes;
            span.resize(static_cast<std::size_t>(span_bytes));
            arena.fetch(begin, span);
            for (std::int64_t row = 0; row < part.rows; ++row) {
                std::memcpy(
                    values.data() + row * row_bytes,
                    span.data() + row * stride_bytes,
                    static_cast<std::size_t>(row_bytes)
                );
            }
        }
        answers.push_back(encode(piece));
    }
    return answers;
}

}  // namespace pitstop::tp_worker
