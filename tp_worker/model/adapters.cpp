#include "tp_worker/model/adapters.h"

#include "base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

// Returns whether a GPU's memory has these bytes. Reads a piece at a time.
bool has_same(
    PinnedPieces& pieces,
    const std::byte* device_bytes,
    const std::byte* bytes,
    std::int64_t num_bytes
) {
    std::vector<std::byte> piece;
    for (std::int64_t at = 0; at < num_bytes; at += std::ssize(piece)) {
        piece.resize(static_cast<std::size_t>(std::min(PinnedPieces::kPieceBytes, num_bytes - at)));
        pieces.fetch(piece.data(), device_bytes + at, std::ssize(piece));
        if (std::memcmp(piece.data(), bytes + at, piece.size()) != 0) return false;
    }
    return true;
}

}  // namespace

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
    }
    // With --ep a rank may have none of an adapter's experts: an arena is never empty.
    const std::int64_t bytes = std::max<std::int64_t>(layout.bytes(), 1);
    ASSIGN_OR_RETURN(Arena staged, Arena::reserve("adapter", bytes));
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

Result<> Adapter::allocate() {
    if (gpu_) RETURN_IF_ERROR(gpu_->commit());
    return staged_.commit();
}

void Adapter::copy(const Adapter& other) {
    other.memory().fetch(0, {staged_.data(), static_cast<std::size_t>(layout_.bytes())});
}

Result<> Adapter::upload(PinnedPieces& pieces) {
    if (!gpu_) return Ok{};
    const std::int64_t tensors = layout_.bytes();
    const std::vector<kernels::LowRankPair> pairs = bound_.pairs_of_rows(num_weights_);
    const auto pairs_bytes = static_cast<std::int64_t>(pairs.size() * sizeof(pairs[0]));
    pieces.send(gpu_->data(), staged_.data(), tensors);
    pieces.send(
        gpu_->data() + tensors, reinterpret_cast<const std::byte*>(pairs.data()), pairs_bytes
    );
    const bool is_same = has_same(pieces, gpu_->data(), staged_.data(), tensors) &&
                         has_same(
                             pieces,
                             gpu_->data() + tensors,
                             reinterpret_cast<const std::byte*>(pairs.data()),
                             pairs_bytes
                         );
    if (!is_same) {
        return Error{
            ErrorCode::kDataLoss,
            "the adapter's bytes on the GPU differ from those that were staged"};
    }
    ASSIGN_OR_RETURN([[maybe_unused]] const std::int64_t freed, staged_.release());
    bound_.set_table(reinterpret_cast<const kernels::LowRankPair*>(gpu_->data() + tensors));
    return Ok{};
}

Result<std::int64_t> adapter_bytes_max(
    std::int64_t limit, std::int64_t rank_max, const Stack& stack, const Device& device
) {
    if (limit == 0 || rank_max == 0) return 0;
    const std::string widest = fmt::format(
        R"({{"peft_type": "LORA", "r": {}, "lora_alpha": 1, "target_modules": "all-linear"}})",
        rank_max
    );
    ASSIGN_OR_RETURN(const AdapterConfig config, AdapterConfig::parse(widest, "all modules"));
    ModuleSearch search(config);
    ASSIGN_OR_RETURN(
        AdapterSlots slots, AdapterSlots::make(stack.slots(), stack.adaptable(), search, rank_max)
    );
    ASSIGN_OR_RETURN(
        const std::unique_ptr<Adapter> largest,
        Adapter::make(std::move(slots), stack.slots().list().size(), device)
    );
    return limit + std::min(limit, largest->bytes());
}

const Adapter* Adapters::find(messages::AdapterId id) const {
    const MutexLock lock(mutex_);
    const auto place = all_.find(id);
    return place == all_.end() ? nullptr : place->second.get();
}

std::shared_ptr<const Adapter> Adapters::share(messages::AdapterId id) const {
    const MutexLock lock(mutex_);
    const auto place = all_.find(id);
    return place == all_.end() ? nullptr : place->second;
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
