// The adapters of a rank, besides the model's weights. Each version has memory of its own, which is
// never written after its commit. A plan's row names the version to use.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "messages/adapters.h"
#include "tp_worker/device/arena.h"
#include "tp_worker/device/device.h"
#include "tp_worker/weights/adapter_slots.h"
#include "tp_worker/weights/bound_adapter.h"
#include "tp_worker/weights/copy_ledger.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstdint>
#include <map>
#include <memory>

namespace pitstop::tp_worker {

// One version of an adapter. Its address is constant: stages and steps point into it.
class Adapter {
  public:
    // Allocates memory, which is zero at first. Errors: kResourceExhausted.
    static Result<std::unique_ptr<Adapter>> make(AdapterSlots slots, const Device& device);
    Adapter(const Adapter&) = delete;
    Adapter& operator=(const Adapter&) = delete;

    [[nodiscard]] const WeightLayout& layout() const { return layout_; }
    [[nodiscard]] const BoundAdapter& bound() const { return bound_; }
    [[nodiscard]] std::int64_t bytes() const { return memory_.bytes(); }
    // The memory, for the stage that fills it.
    [[nodiscard]] Arena& memory() { return memory_; }
    [[nodiscard]] const Arena& memory() const { return memory_; }
    [[nodiscard]] CopyLedger& ledger() { return ledger_; }

  private:
    Adapter(AdapterSlots slots, WeightLayout layout, Arena memory);

    AdapterSlots slots_;
    WeightLayout layout_;
    Arena memory_;
    CopyLedger ledger_;
    BoundAdapter bound_;
};

// The committed versions in memory, by id. Thread: any. A version that a plan names is removed by
// nobody before the plan is run.
class Adapters {
  public:
    [[nodiscard]] const Adapter* find(messages::AdapterId id) const;  // null: none
    // Shared with whoever still writes it to the disk.
    void add(messages::AdapterId id, std::shared_ptr<Adapter> adapter);
    // Removes a version; does nothing if the id is unknown. Returns its memory, to be freed on a
    // thread that may take time.
    [[nodiscard]] std::shared_ptr<Adapter> take_out(messages::AdapterId id);

  private:
    mutable Mutex mutex_{};
    std::map<messages::AdapterId, std::shared_ptr<Adapter>> all_ GUARDED_BY(mutex_){};
};

}  // namespace pitstop::tp_worker
