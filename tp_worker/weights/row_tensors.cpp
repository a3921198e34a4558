#include "tp_worker/weights/row_tensors.h"

#include "tp_worker/weights/weight_digest.h"

#include <fmt/format.h>

#include <span>

namespace pitstop::tp_worker {

void RowTensors::begin_call() {
    const std::size_t num_left = is_incomplete() ? 1 : 0;
    while (tensors_.size() > num_left) tensors_.pop_front();
}

bool RowTensors::is_incomplete() const {
    return !tensors_.empty() && tensors_.back().num_arrived < tensors_.back().whole->whole_rows;
}

std::string RowTensors::what_is_missing() const {
    const Tensor& last = tensors_.back();
    return fmt::format(
        "'{}' has arrived up to row {} of {}", last.name, last.num_arrived, last.whole->whole_rows
    );
}

std::optional<std::string> RowTensors::problem_of_whole(std::size_t index) const {
    for (const Tensor& each : tensors_) {
        if (each.index != index) continue;
        if (is_incomplete()) return what_is_missing();
        return fmt::format("'{}' was sent both whole and by its rows", each.name);
    }
    return std::nullopt;
}

void RowTensors::begin(
    std::string_view name, std::size_t index, const WeightTensor& tensor, Use use
) {
    Tensor& begun = tensors_.emplace_back();
    begun.name = name;
    begun.index = index;
    begun.whole = &tensor;
    if (use == Use::kCompared) append_parts(tensor, begun.compared.emplace());
}

Result<FillJob> RowTensors::add(const Incoming& incoming) {
    const std::string& name = incoming.spec.name;
    const auto [begin, num] = *incoming.rows;
    const bool is_next = !tensors_.empty() && tensors_.back().name == name &&
                         tensors_.back().num_arrived == begin && num >= 1 &&
                         num <= tensors_.back().whole->whole_rows - begin;
    if (!is_next) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}': {} rows from row {} on arrived out of order",
            name,
            num,
            begin
        );
    }
    Tensor& now = tensors_.back();
    now.num_arrived += num;
    now.rows = *now.whole;
    for (ShardPart& part : now.rows.parts) part = part.in_whole_rows(begin, num);
    now.incoming = incoming;
    now.incoming.bytes.data -= begin * now.whole->whole_cols * bytes_of(incoming.spec.dtype);
    return FillJob{
        .index = now.index,
        .incoming = &now.incoming,
        .parts = now.compared ? std::span(*now.compared) : std::span<messages::PartDigest>(),
        .is_only_digested = now.compared.has_value(),
        .rows = &now.rows,
        .is_last = now.num_arrived == now.whole->whole_rows};
}

}  // namespace pitstop::tp_worker
