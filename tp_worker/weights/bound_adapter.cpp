#include "tp_worker/weights/bound_adapter.h"

#include "base/check.h"

#include <algorithm>

namespace pitstop::tp_worker {

BoundAdapter::BoundAdapter(
    const AdapterSlots& slots, const WeightLayout& layout, const std::byte* memory
) {
    const auto view = [&](WeightId id) {
        const WeightTensor& tensor = layout.tensor(id);
        CHECK(tensor.encoding == Encoding::kF32);
        const auto* const data = reinterpret_cast<const float*>(memory + tensor.offset);
        return view2(data, tensor.rows, tensor.cols);
    };
    for (const AdaptedModule& module : slots.modules) {
        if (layout.tensor(module.b).parts.empty()) continue;  // an expert of other ranks
        const auto index = static_cast<std::size_t>(raw(module.base));
        pairs_.resize(std::max(pairs_.size(), index + 1));
        pairs_[index] = Pair{.a = view(module.a), .b = view(module.b), .scale = module.scale};
    }
}

std::vector<kernels::LowRankPair> BoundAdapter::pairs_of_rows(std::size_t num_slots) const {
    CHECK(pairs_.size() <= num_slots);
    std::vector<kernels::LowRankPair> table(num_slots);
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
        if (!pairs_[i]) continue;
        const auto& [a, b, scale] = *pairs_[i];
        CHECK(a.stride == a.cols && b.stride == b.cols);
        table[i] = {
            .a = a.data, .b = b.data, .rank = static_cast<std::int32_t>(a.rows), .scale = scale};
    }
    return table;
}

}  // namespace pitstop::tp_worker
