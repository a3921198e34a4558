#include "tp_worker/model/adapters.h"

#include "base/check.h"

#include <utility>

namespace pitstop::tp_worker {

Result<std::unique_ptr<Adapter>> Adapter::make(AdapterSlots slots, const Device& device) {
    ASSIGN_OR_RETURN(
        WeightLayout layout,
        WeightLayout::make(slots.slots, ExtraTensors::kRefuse, TensorNames::kOfAdapter)
    );
    ASSIGN_OR_RETURN(Arena memory, device.reserve("adapter", layout.bytes()));
    RETURN_IF_ERROR(memory.commit());
    return std::unique_ptr<Adapter>(
        new Adapter(std::move(slots), std::move(layout), std::move(memory))
    );
}

Adapter::Adapter(AdapterSlots slots, WeightLayout layout, Arena memory)
    : slots_(std::move(slots)),
      layout_(std::move(layout)),
      memory_(std::move(memory)),
      ledger_(/*copy=*/0, layout_.tensors().size()),
      bound_(slots_, layout_, memory_.data()) {}

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
