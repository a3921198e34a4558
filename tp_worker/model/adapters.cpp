#include "tp_worker/model/adapters.h"

#include "base/check.h"

#include <cstring>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

Result<std::unique_ptr<Adapter>> Adapter::make(
    AdapterSlots slots, std::size_t num_weights, const Device& device
) {
    ASSIGN_OR_RETURN(
        WeightLayout layout,
        WeightLayout::make(slots.slots, ExtraTensors::kRefuse, TensorNames::kOfAdapter)
    );
    std::optional<Arena> gpu;
    if (device.is_cuda()) {
        const auto table = static_cast<std::int64_t>(num_weights * sizeof(kernels::LowRankPair));
        ASSIGN_OR_RETURN(gpu, device.reserve("an adapter", layout.bytes() + table));
        RETURN_IF_ERROR(gpu->commit());
    }
    ASSIGN_OR_RETURN(Arena staged, Arena::reserve("adapter", layout.bytes()));
    RETURN_IF_ERROR(staged.commit());
    std::unique_ptr<Adapter> adapter(
        new Adapter(std::move(slots), std::move(layout), std::move(staged), std::move(gpu))
    );
    adapter->num_weights_ = num_weights;
    return adapter;
}

Adapter::Adapter(AdapterSlots slots, WeightLayout layout, Arena staged, std::optional<Arena> gpu)
    : slots_(std::move(slots)),
      layout_(std::move(layout)),
      staged_(std::move(staged)),
      gpu_(std::move(gpu)),
      ledger_(/*copy=*/0, layout_.tensors().size()),
      bound_(slots_, layout_, memory().data()) {}

Result<> Adapter::upload(PinnedPieces& pieces) {
    if (!gpu_) return Ok{};
    const std::int64_t tensors = layout_.bytes();
    const std::vector<kernels::LowRankPair> pairs = bound_.pairs_of_rows(num_weights_);
    const auto pairs_bytes = static_cast<std::int64_t>(pairs.size() * sizeof(pairs[0]));
    std::vector<std::byte> all(static_cast<std::size_t>(tensors + pairs_bytes));
    pieces.send(gpu_->data(), staged_.data(), tensors);
    pieces.send(
        gpu_->data() + tensors, reinterpret_cast<const std::byte*>(pairs.data()), pairs_bytes
    );
    pieces.fetch(all.data(), gpu_->data(), std::ssize(all));
    const bool is_same =
        std::memcmp(all.data(), staged_.data(), static_cast<std::size_t>(tensors)) == 0 &&
        std::memcmp(all.data() + tensors, pairs.data(), static_cast<std::size_t>(pairs_bytes)) == 0;
    if (!is_same) {
        return Error{
            ErrorCode::kDataLoss,
            "the adapter's bytes on the GPU differ from those that were staged"};
    }
    ASSIGN_OR_RETURN([[maybe_unused]] const std::int64_t freed, staged_.release());
    bound_.set_table(reinterpret_cast<const kernels::LowRankPair*>(gpu_->data() + tensors));
    return Ok{};
}

const Adapter* Adapters::find(messages::AdapterId id) const {
    const MutexLock lock(mutex_);
    const auto place = all_.find(id);
    return place == all_.end() ? nullptr : place->second.get();
}

void Adapters::add(messages::AdapterId id, std::shared_ptr<Adapter> adapter) {
    const MutexLock lock(mutex_);
    CHECK(all_.emplace(id, std::move(adapter)).second);
}

std::shared_ptr<Adapter> Adapters::take_out(messages::AdapterId id) {
    const MutexLock lock(mutex_);
    const auto place = all_.find(id);
    if (place == all_.end()) return nullptr;
    std::shared_ptr<Adapter> adapter = std::move(place->second);
    all_.erase(place);
    return adapter;
}

}  // namespace pitstop::tp_worker
