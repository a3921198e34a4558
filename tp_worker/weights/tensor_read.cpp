#include "tp_worker/weights/tensor_read.h"

#include "kernels/device_memory.h"
#include "messages/codec.h"

#include <cstdint>
#include <cstring>

namespace pitstop::tp_worker {
namespace {

// An error shows so many names at most.
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
    const WeightTensor& tensor, const std::byte* arena, const messages::WorkerTensor& head
) {
    std::vector<messages::Frames> answers;
    for (const ShardPart& part : tensor.parts) {
        messages::WorkerTensor piece = head;
        piece.row_begin = part.whole_row;
        piece.num_rows = part.rows;
        piece.col_begin = part.whole_col;
        piece.num_cols = part.cols;
        const auto row_bytes = static_cast<std::size_t>(bytes_of(tensor.encoding, part.cols));
        piece.data.values.resize(static_cast<std::size_t>(part.rows) * row_bytes);
        for (std::int64_t row = 0; row < part.rows; ++row) {
            const std::int64_t at = part.shard_begin() + row * part.shard_stride;
            std::memcpy(
                piece.data.values.data() + static_cast<std::size_t>(row) * row_bytes,
                arena + tensor.offset_of(at),
                row_bytes
            );
        }
        answers.push_back(encode(piece));
    }
    return answers;
}

std::vector<messages::Frames> read_parts_of_gpu(
    const WeightTensor& tensor, const std::byte* arena, const messages::WorkerTensor& head
) {
    std::vector<std::byte> host(static_cast<std::size_t>(tensor.bytes()));
    kernels::copy_and_wait(host.data(), arena + tensor.offset, tensor.bytes());
    WeightTensor at_start = tensor;
    at_start.offset = 0;
    return read_parts(at_start, host.data(), head);
}

}  // namespace pitstop::tp_worker
