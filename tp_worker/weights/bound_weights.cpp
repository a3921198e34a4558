#include "tp_worker/weights/bound_weights.h"

namespace pitstop::tp_worker {

BoundWeights::BoundWeights(const WeightLayout& layout, const std::byte* arena) : arena_(arena) {
    for (std::size_t i = 0; i < layout.num_slots(); ++i) {
        const WeightTensor& tensor = layout.tensor(static_cast<WeightId>(i));
        const auto* data = reinterpret_cast<const bf16*>(arena + tensor.offset);
        views_.push_back(view2(data, tensor.rows, tensor.cols));
        encodings_.push_back(tensor.encoding);
    }
}

}  // namespace pitstop::tp_worker
