// The adapters of a rank, besides the model's weights. Each version has memory of its own, which is
// never written after its commit. A plan's row names the version to use.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "messages/adapters.h"
#include "tp_worker/blocks/stack.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/device/device.h"
#include "tp_worker/device/pinned_pieces.h"
#include "tp_worker/weights/adapter_slots.h"
#include "tp_worker/weights/bound_adapter.h"
#include "tp_worker/weights/copy_ledger.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

namespace pitstop::tp_worker {

// One version of an adapter. Its address is constant: stages and steps point into it.
//
// On a GPU a version is staged in host memory, which upload() frees. The GPU's memory is allocated
// at the same time, so that a load without GPU memory fails before it begins.
class Adapter {
  public:
    // Reserves addresses; allocate() follows. `num_weights` counts the base model's
    // weights. Errors: kResourceExhausted.
    static Result<std::unique_ptr<Adapter>> make(
        AdapterSlots slots, std::size_t num_weights, const Device& device
    );
    Adapter(const Adapter&) = delete;
    Adapter& operator=(const Adapter&) = delete;

    // Allocates its memory, which is zero at first. Errors: kResourceExhausted.
    [[nodiscard]] Result<> allocate();

    [[nodiscard]] const WeightLayout& layout() const { return layout_; }
    [[nodiscard]] const BoundAdapter& bound() const { return bound_; }
    [[nodiscard]] bool is_on_gpu() const { return gpu_.has_value(); }
    // The memory that steps read. The adapter's tensors are at its start.
    [[nodiscard]] const Arena& memory() const { return gpu_ ? *gpu_ : staged_; }
    [[nodiscard]] std::int64_t bytes() const { return memory().bytes(); }
    // The host's memory, for the stage that fills it.
    [[nodiscard]] Arena& staged() { return staged_; }
    [[nodiscard]] CopyLedger& ledger() { return ledger_; }
    // Copies the bytes of another version to staged(). REQUIRES: both have the same configuration.
    void copy(const Adapter& other);

    // On a GPU, copies the staged bytes there, reads them back, and frees the host's memory; does
    // nothing on a CPU. REQUIRES: the stage is done. Errors: kDataLoss if other bytes come back.
    Result<> upload(PinnedPieces& pieces);

  private:
    Adapter(AdapterSlots slots, WeightLayout layout, Arena staged, std::optional<Arena> gpu);

    AdapterSlots slots_;
    WeightLayout layout_;
    Arena staged_;
    // The tensors, as in staged_, then the pairs of all the base model's weights.
    std::optional<Arena> gpu_;
    std::size_t num_weights_ = 0;
    CopyLedger ledger_;
    BoundAdapter bound_;
};

// Returns the memory that a rank's adapters may use: `limit` for all (--adapter-memory), plus one
// more adapter that is being loaded, with `rank_max` in each module; 0 without a limit.
[[nodiscard]] Result<std::int64_t> adapter_bytes_max(
    std::int64_t limit, std::int64_t rank_max, const Stack& stack, const Device& device
);

// The committed versions in memory, by id. Thread: any. A version is not removed before the
// plans that name it have run.
class Adapters {
  public:
    [[nodiscard]] const Adapter* find(messages::AdapterId id) const;  // null: none
    // The same for a thread that reads the version, which may be removed meanwhile.
    [[nodiscard]] std::shared_ptr<const Adapter> share(messages::AdapterId id) const;
    // The adapter is shared with a thread that may still write it to the disk.
    void add(messages::AdapterId id, std::shared_ptr<Adapter> adapter);
    // Removes a version; does nothing if the id is unknown. Returns its memory, which the caller
    // frees on a thread that may be slow.
    [[nodiscard]] std::shared_ptr<Adapter> take_out(messages::AdapterId id);

  private:
    mutable Mutex mutex_{};
    std::map<messages::AdapterId, std::shared_ptr<Adapter>> all_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop::tp_worker
