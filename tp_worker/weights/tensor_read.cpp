#include "tp_worker/weights/tensor_read.h"

#include "base/bf16.h"
#include "kernels/device_memory.h"
#include "messages/codec.h"

#include <cstdint>
#include <cstring>

namespace pitstop {
namespace {

// Names in errors, at most so many.
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

std::vector<Frames> read_parts(
    const WeightTensor& tensor, const std::byte* arena, const WorkerTensor& head
) {
    std::vector<Frames> answers;
    std::int64_t shard_at = 0;
    for (const ShardPart& part : tensor.parts) {
        WorkerTensor piece = head;
        piece.num_rows = tensor.whole_rows;
        piece.num_cols = tensor.whole_cols;
        std::int64_t shard_row = 0;
        std::int64_t shard_col = 0;
        if (tensor.axis == SplitAxis::kRows) {
            piece.row_begin = part.begin;
            piece.num_rows = part.num;
            shard_row = shard_at;
        } else if (tensor.axis == SplitAxis::kCols) {
            piece.col_begin = part.begin;
            piece.num_cols = part.num;
            shard_col = shard_at;
        }
        shard_at += part.num;
        const auto row_bytes = static_cast<std::size_t>(piece.num_cols) * sizeof(bf16);
        piece.data.values.resize(static_cast<std::size_t>(piece.num_rows) * row_bytes);
        for (std::int64_t row = 0; row < piece.num_rows; ++row) {
            const std::int64_t at = (shard_row + row) * tensor.cols + shard_col;
            std::memcpy(
                piece.data.values.data() + static_cast<std::size_t>(row) * row_bytes,
                arena + tensor.offset + at * static_cast<std::int64_t>(sizeof(bf16)),
                row_bytes
            );
        }
        answers.push_back(encode(piece));
    }
    return answers;
}

std::vector<Frames> read_parts_of_gpu(
    const WeightTensor& tensor, const std::byte* arena, const WorkerTensor& head
) {
    std::vector<std::byte> host(static_cast<std::size_t>(tensor.bytes()));
    copy_and_wait(host.data(), arena + tensor.offset, tensor.bytes());
    WeightTensor at_start = tensor;
    at_start.offset = 0;
    return read_parts(at_start, host.data(), head);
}

}  // namespace pitstop
