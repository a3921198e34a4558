// Where the time of a stage goes: receiving, verifying, resting, waiting.
//
// Thread: the stage's.
#pragma once

#include "base/time.h"
#include "messages/weights.h"
#include "tp_worker/weights/shard_writer.h"

#include <algorithm>

namespace pitstop::tp_worker {

class StageTimes {
  public:
    // Called at the beginning and the end of each job of the stage; the time between jobs counts as
    // waiting.
    void begin_work() { wait_ += count(); }
    void end_work() { count(); }

    void add_receive(Duration duration) { receive_ += duration; }
    void add_wait(Duration duration) { wait_ += duration; }
    // Adds the time of a reception; `rest` is the part in which the work rested.
    void add_receive(Duration whole, Duration rest) {
        receive_ += whole - rest;
        rest_ += rest;
    }
    void add(const Filled& filled) {
        receive_ += filled.receive;
        verify_ += filled.verify;
        rest_ += filled.rest;
    }

    [[nodiscard]] messages::StageSeconds seconds_of_each() const {
        const Duration known = wait_ + receive_ + verify_ + rest_;
        return {
            .open_s = seconds(std::max(time_ - known, Duration{})),
            .wait_s = seconds(wait_),
            .receive_s = seconds(receive_),
            .verify_s = seconds(verify_),
            .rest_s = seconds(rest_),
        };
    }

  private:
    Duration count() {
        const TimePoint now = Clock::now();
        const Duration passed = now - counted_until_;
        time_ += passed;
        counted_until_ = now;
        return passed;
    }

    Duration receive_{};
    Duration verify_{};
    Duration rest_{};
    Duration wait_{};  // includes the time between jobs
    Duration time_{};  // from the first job until the end of the last
    TimePoint counted_until_ = Clock::now();
};

}  // namespace pitstop::tp_worker
