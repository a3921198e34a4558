#include "tp_worker/update/memory_meter.h"

#include "messages/codec.h"
#include "tp_worker/update/memory_tags.h"

#include <algorithm>

namespace pitstop::tp_worker {

std::optional<TimePoint> MemoryMeter::due() const {
    if (!is_touched_ || is_under_way_.load(std::memory_order_acquire)) return std::nullopt;
    return next_;
}

void MemoryMeter::measure_if_due(TimePoint now) {
    const std::optional<TimePoint> at = due();
    if (!at || now < *at) return;
    is_under_way_.store(true, std::memory_order_relaxed);
    // Read on this thread, because the loop makes graphs while the background runs.
    const StepGraphs* const graphs = engine_.graphs();
    const std::int64_t graph_bytes = graphs != nullptr ? graphs->bytes() : 0;
    const bool is_given = background_.offer([this, graph_bytes] {
        const TimePoint begun = Clock::now();
        messages::WorkerMemoryDone measured = measure_memory(engine_);
        measured.graph_bytes = graph_bytes;
        const TimePoint done = Clock::now();
        next_ = done + std::max<Duration>(kEvery, (done - begun) * kShareMax);
        is_under_way_.store(false, std::memory_order_release);
        return std::vector{encode(measured)};
    });
    if (is_given) {
        is_touched_ = false;
    } else {  // many orders wait, and each measures memory, too
        next_ = now + kEvery;
        is_under_way_.store(false, std::memory_order_relaxed);
    }
}

}  // namespace pitstop::tp_worker
