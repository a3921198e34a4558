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
        const auto index = static_cast<std::size_t>(raw(module.base));
        pairs_.resize(std::max(pairs_.size(), index + 1));
        pairs_[index] = Pair{.a = view(module.a), .b = view(module.b), .scale = module.scale};
    }
}

}  // namespace pitstop::tp_worker
