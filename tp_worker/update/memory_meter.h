// Reports to the scheduler how much memory this rank really uses. Memory use grows over time: by
// pages of the KV cache when they are first written, by a second copy of the weights with the first
// staged update, by graphs of steps. The kernel counts the pages (mincore), in the background and
// during passes, never between them.
//
// Thread:  the loop's; the job that it gives to the background sends the answer.
// Bounded: one measurement at a time, at least kEvery apart, and further apart if it takes long: at
//          most 1/kShareMax of one core's time.
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
    static constexpr int kShareMax = 100;  // reads take at most 1/kShareMax of the time

    // Both outlive the meter's jobs.
    MemoryMeter(const Engine& engine, Background& background)
        : engine_(engine), background_(background) {}

    // To be called after a pass or an order, which may have taken or released memory.
    void touch() { is_touched_ = true; }
    // Returns when measure_if_due() will have something to do; nothing if it has none before the
    // next touch() or the background's next answer.
    [[nodiscard]] std::optional<TimePoint> due() const;
    void measure_if_due(TimePoint now);

  private:
    const Engine& engine_;
    Background& background_;
    bool is_touched_ = false;
    std::atomic<bool> is_under_way_{false};  // cleared after next_ is set
    TimePoint next_{};                       // owned by the background during a measurement
};

}  // namespace pitstop::tp_worker
