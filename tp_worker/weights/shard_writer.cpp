#include "tp_worker/weights/shard_writer.h"

#include "tp_worker/weights/gpu_writer.h"
#include "tp_worker/weights/host_stage_writer.h"
#include "tp_worker/weights/host_writer.h"

#include <fmt/format.h>

#include <cstring>
#include <unordered_map>

namespace pitstop::tp_worker {
namespace {

// Returns the values of these updates in resident form. Most of them are consecutive.
std::vector<std::byte> encoded(
    const SparseTensor& sparse, Encoding encoding, std::span<const std::int64_t> updates
) {
    const std::int64_t stored_bytes = bytes_of(sparse.spec.dtype);
    const std::int64_t num = std::ssize(updates);
    std::vector<std::byte> values(static_cast<std::size_t>(bytes_of(encoding, num)));
    for (std::int64_t begin = 0, end = 1; begin < num; begin = end++) {
        const std::int64_t* const update = updates.data();
        while (end < num && update[end] == update[end - 1] + 1) ++end;
        encode(
            encoding,
            sparse.spec.dtype,
            sparse.values + update[begin] * stored_bytes,
            end - begin,
            values.data() + bytes_of(encoding, begin)
        );
    }
    return values;
}

}  // namespace

ShardElements elements_here(const SparseTensor& sparse, const WeightTensor& tensor) {
    std::vector<std::int64_t> here;     // places in the shard
    std::vector<std::int64_t> updates;  // the update of `sparse` for each place
    bool is_ascending = true;           // true for most senders: then each place is unique
    for (std::int64_t i = 0; i < sparse.num; ++i) {
        std::int32_t index = 0;
        std::memcpy(&index, sparse.indices + i * 4, sizeof index);
        const std::int64_t row = index / tensor.whole_cols;
        const std::int64_t col = index % tensor.whole_cols;
        for (const ShardPart& part : tensor.parts) {
            const std::int64_t r = row - part.whole_row;
            const std::int64_t c = col - part.whole_col;
            if (r < 0 || r >= part.rows || c < 0 || c >= part.cols) continue;
            const std::int64_t at = part.shard_begin() + r * part.shard_stride + c;
            is_ascending = is_ascending && (here.empty() || here.back() < at);
            here.push_back(at);
            updates.push_back(i);
        }
    }
    if (!is_ascending) {
        std::vector<std::int64_t> once;
        std::unordered_map<std::int64_t, std::size_t> places;
        for (std::size_t i = 0; i < here.size(); ++i) {
            const auto [place, is_new] = places.try_emplace(here[i], once.size());
            if (is_new) once.push_back(here[i]);
            updates[place->second] = updates[i];
        }
        updates.resize(once.size());
        here = std::move(once);
    }
    return {.at = std::move(here), .values = encoded(sparse, tensor.encoding, updates)};
}

std::unique_ptr<ShardWriter> make_shard_writer(const StageArgs& args) {
    if (args.gpu != nullptr) return std::make_unique<GpuWriter>(args, *args.gpu);
    if (args.pieces != nullptr) return std::make_unique<HostStageWriter>(args, *args.pieces);
    return std::make_unique<HostWriter>(args);
}

std::string nonfinite_problem(
    const WeightTensor& tensor, std::int64_t row_begin, std::span<const std::byte> rows
) {
    const std::optional<Nonfinite> found = find_nonfinite(tensor.encoding, rows);
    if (!found) return fmt::format("'{}' is not finite", tensor.name);
    return fmt::format(
        "'{}' is not finite: {} at row {}, column {} of this rank's shard (allow_nonfinite would "
        "accept it)",
        tensor.name,
        found->value,
        row_begin + found->index / tensor.cols,
        found->index % tensor.cols
    );
}

}  // namespace pitstop::tp_worker
