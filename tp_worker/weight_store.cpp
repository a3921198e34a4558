#include "tp_worker/weight_store.h"

#include "base/check.h"

namespace pitstop {

Result<WeightStore> WeightStore::make(const WeightLayout& layout, const ModelConfig& config) {
    WeightStore store;
    store.bytes_ = layout.bytes();
    for (Copy& copy : store.copies_) {
        ASSIGN_OR_RETURN(copy.memory, Arena::reserve("weights", layout.bytes()));
        copy.views = bind_weights(layout, config, copy.memory->data());
    }
    RETURN_IF_ERROR(store.copies_[store.live_].memory->commit());
    return store;
}

Result<std::byte*> WeightStore::target(UpdateMode mode) {
    if (mode == UpdateMode::kDirect) return live_data();
    Arena& other = *copies_[1 - live_].memory;
    if (!other.is_committed()) RETURN_IF_ERROR(other.commit());
    return other.data();
}

void WeightStore::commit(UpdateMode mode) {
    if (mode == UpdateMode::kDirect) return;
    live_ = 1 - live_;
    has_retained_ = true;
}

void WeightStore::roll_back() {
    CHECK(has_retained_);
    live_ = 1 - live_;
}

}  // namespace pitstop
