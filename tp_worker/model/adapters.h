// The adapters that a rank holds, beside the model's weights: each version has memory of its own,
// which nothing writes to once it is committed. A plan's row names the version that it is computed
// with.
#pragma once

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

// One version. Stays where it is: stages and steps point into it.
class Adapter {
  public:
    // Takes memory, which starts as zeros. Errors: kResourceExhausted.
    static Result<std::unique_ptr<Adapter>> make(AdapterSlots slots, const Device& device);
    Adapter(const Adapter&) = delete;
    Adapter& operator=(const Adapter&) = delete;

    [[nodiscard]] const WeightLayout& layout() const { return layout_; }
    [[nodiscard]] const BoundAdapter& bound() const { return bound_; }
    [[nodiscard]] std::int64_t bytes() const { return memory_.bytes(); }
    // For the stage that fills it.
    [[nodiscard]] Arena& memory() { return memory_; }
    [[nodiscard]] CopyLedger& ledger() { return ledger_; }

  private:
    Adapter(AdapterSlots slots, WeightLayout layout, Arena memory);

    AdapterSlots slots_;
    WeightLayout layout_;
    Arena memory_;
    CopyLedger ledger_;
    BoundAdapter bound_;
};

// Thread: the loop's.
class Adapters {
  public:
    [[nodiscard]] const Adapter* find(messages::AdapterId id) const;  // null: none
    void add(messages::AdapterId id, std::unique_ptr<Adapter> adapter);
    // What is not there is left alone. Returns the memory, to be given back where nobody waits.
    [[nodiscard]] std::unique_ptr<Adapter> take_out(messages::AdapterId id);

  private:
    std::map<messages::AdapterId, std::unique_ptr<Adapter>> all_{};
};

}  // namespace pitstop::tp_worker
