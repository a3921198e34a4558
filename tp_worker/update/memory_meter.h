// Tells the scheduler what this rank's memory really takes: a KV cache gets its pages when it is
// first written, a second copy of the weights with the first staged update, graphs of steps while
// requests run. Counted by the kernel (mincore), in the background, beside passes and never between
// them.
//
// Thread:  the loop's; what is ordered from the background is said by it.
// Bounded: one measurement at a time, kEvery apart at least, and further where it takes long: at
//          most kShareMax of one core's time.
#pragma once

#include "base/time.h"
#include "messages/memory.h"
#include "tp_worker/model/engine.h"
#include "tp_worker/update/background.h"

#include <atomic>
#include <chrono>
#include <optional>

namespace pitstop::tp_worker {

class MemoryMeter {
  public:
    static constexpr auto kEvery = std::chrono::seconds(1);
    static constexpr int kShareMax = 100;  // one part in so many

    // Both outlive the meter's jobs.
    MemoryMeter(const Engine& engine, Background& background)
        : engine_(engine), background_(background) {}

    // Something was done that may have taken memory or given it back: a pass, an order.
    void touch() { is_touched_ = true; }
    // Returns when measure_if_due() has something to do; nothing if not until the next touch(), or
    // the next answer of the background.
    [[nodiscard]] std::optional<TimePoint> due() const;
    void measure_if_due(TimePoint now);

  private:
    const Engine& engine_;
    Background& background_;
    bool is_touched_ = false;
    std::atomic<bool> is_under_way_{false};  // cleared behind next_
    TimePoint next_{};                       // the background's while a measurement is under way
};

}  // namespace pitstop::tp_worker
