#include "tp_worker/weights/weight_store.h"

#include "base/check.h"
#include "base/task_pool.h"
#include "kernels/runtime/thread_pool.h"
#include "tp_worker/weights/weight_loader.h"
#include "tp_worker/weights/weight_upload.h"

#include <utility>

namespace pitstop::tp_worker {

Result<WeightStore> WeightStore::make(const WeightLayout& layout, const Device& device) {
    WeightStore store(layout, device);
    if (device.is_cuda()) {
        ASSIGN_OR_RETURN(
            std::unique_ptr<PinnedPieces> pieces,
            PinnedPieces::make(kernels::num_threads_of(device.host_stream()))
        );
        ASSIGN_OR_RETURN(GpuWeightDigest digest, GpuWeightDigest::make(layout));
        ASSIGN_OR_RETURN(GpuStaging staging, GpuStaging::make(layout, device.ops(), *pieces));
        store.gpu_.emplace(GpuSide{std::move(pieces), std::move(digest), std::move(staging)});
    }
    for (std::size_t i = 0; i < store.copies_.size(); ++i) {
        Copy& copy = store.copies_[i];
        copy.ledger.emplace(static_cast<int>(i), layout.tensors().size());
        ASSIGN_OR_RETURN(copy.memory, device.reserve("weights", layout.bytes()));
        copy.views = BoundWeights(layout, copy.memory->data());
    }
    RETURN_IF_ERROR(store.copies_[store.live_].memory->commit());
    return store;
}

Result<> WeightStore::load(const CheckpointTensors& tensors, const std::string& source) {
    if (gpu_)
        return upload_weights(*layout_, tensors, source, *device_, *gpu_->pieces, live_data());
    return load_weights(
        *layout_, tensors, source, device_->ops(), device_->host_stream(), live_data()
    );
}

Result<std::vector<messages::PartDigest>> WeightStore::digest(
    const std::byte* arena, kernels::Stream host, const std::function<void()>& between
) {
    if (gpu_) return gpu_->digest.digest(arena, device_->ops());
    return digest_weights(*layout_, arena, device_->ops(), host, between);
}

Result<> WeightStore::stage_on_host() {
    ASSIGN_OR_RETURN(host_, HostCopy::make(bytes_));
    return Ok{};
}

// The copy that is not live has no GPU memory; its ledger describes the version in host memory.
void WeightStore::exchange(kernels::Stream steps) {
    host_->exchange(live_data(), steps);
    copies_[live_].ledger->swap_entries(*copies_[1 - live_].ledger);
}

HostCopy* WeightStore::host_target(messages::UpdateMode mode) {
    const bool is_live = mode == messages::UpdateMode::kDirect || is_lost_;
    return host_ && !is_live ? &*host_ : nullptr;
}

Arena& WeightStore::target(messages::UpdateMode mode) {
    const bool is_live = mode == messages::UpdateMode::kDirect || is_lost_;
    return *copies_[is_live ? live_ : 1 - live_].memory;
}

WeightStore::Ledgers WeightStore::ledgers(const Arena* target) {
    Copy& live = copies_[live_];
    Copy& other = copies_[1 - live_];
    return {.target = &*(target == &*live.memory ? live : other).ledger, .live = &*live.ledger};
}

void WeightStore::commit(messages::UpdateMode mode) {
    if (std::exchange(is_lost_, false) || mode == messages::UpdateMode::kDirect) return;
    if (!host_) live_ = 1 - live_;
    has_retained_ = !is_on_loan_;
}

void WeightStore::let_go_of_other() {
    Arena& other = *copies_[1 - live_].memory;
    if (other.is_committed()) CHECK(other.release());
}

void WeightStore::roll_back() {
    CHECK(has_retained_);
    if (!host_) live_ = 1 - live_;
}

Result<std::int64_t> WeightStore::release(Keep keep) {
    Arena& live = *copies_[live_].memory;
    Arena& other = *copies_[1 - live_].memory;
    const std::int64_t before = resident_bytes();
    if (keep == Keep::kYes && !is_lost_) {
        ASSIGN_OR_RETURN(Arena kept, Arena::reserve("weights kept in host memory", bytes_));
        RETURN_IF_ERROR(kept.commit());
        if (gpu_) {
            TaskPool threads(gpu_->pieces->num_threads());
            gpu_->pieces->fetch(kept.data(), live.data(), bytes_, &threads);
        } else {
            live.move_to(kept);
        }
        kept_ = std::move(kept);
    }
    for (Arena* arena : {&live, &other}) {
        if (!arena->is_committed()) continue;
        ASSIGN_OR_RETURN([[maybe_unused]] const std::int64_t freed, arena->release());
    }
    if (host_) host_->release();
    is_lost_ = !kept_.has_value();
    return before - resident_bytes();
}

Result<> WeightStore::resume() {
    Arena& live = *copies_[live_].memory;
    RETURN_IF_ERROR(live.commit());
    if (kept_ && gpu_) {
        TaskPool threads(gpu_->pieces->num_threads());
        gpu_->pieces->send(live.data(), kept_->data(), bytes_, &threads);
        gpu_->pieces->wait();
    } else if (kept_) {
        kept_->move_to(live);
    }
    kept_.reset();
    return Ok{};
}

std::int64_t WeightStore::host_bytes() const {
    return (kept_ ? kept_->resident_bytes() : 0) + (host_ ? host_->host_bytes() : 0);
}

std::int64_t WeightStore::resident_bytes() const {
    std::int64_t bytes = 0;
    for (const Copy& copy : copies_) bytes += copy.memory->resident_bytes();
    return bytes;
}

}  // namespace pitstop::tp_worker
