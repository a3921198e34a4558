// Decides how often a stream gets an event: at once after a quiet time, otherwise once per period,
// with all output since the last one. An event costs a system call here, another at the reader, and
// a wake of the reader. At thousands of tokens per second and stream, events would cost more than
// the tokens. So the period grows with the number of open streams. A model whose steps are longer
// than the period is not affected.
//
// With many open streams, no event is written as soon as its tokens arrive: a step has tokens for
// all streams, and answers of control routes would wait until all are written. Instead, a few
// events are written at a time, and the loop polls its other sockets in between.
//
// Source of the numbers: measured with pitstop_http_bench and pitstop_http_hold (bench/README.md).
//
// Thread:  the server's loop, which calls beat() when fd() is readable.
// Bounded: by the held events, one or two per open answer.
#pragma once

#include "base/time.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>

namespace pitstop::http {

class EventPace {
  public:
    using Wait = std::chrono::microseconds;
    static constexpr Wait kPeriodMin{2'000};
    static constexpr Wait kPeriodMax{20'000};  // 50 events per second: nobody would notice more
    static constexpr Wait kPerStream{200};     // at most about 5,000 events per second in all
    static constexpr int kAtOnceMax = 32;      // writing to this many streams takes under 1 ms
    static constexpr std::size_t kPerBeat = 32;

    // Returns the period with this many open streams.
    [[nodiscard]] static Wait period_of(int num_streams) {
        return std::clamp(num_streams * kPerStream, kPeriodMin, kPeriodMax);
    }

    EventPace();
    ~EventPace();
    EventPace(const EventPace&) = delete;
    EventPace& operator=(const EventPace&) = delete;

    // Calls `release` within `wait`. If that is 0, calls it in a later turn of the loop, in order.
    void hold(std::function<void()> release, Wait wait);

    [[nodiscard]] int fd() const { return fd_; }
    void beat();

  private:
    void arm(Wait wait);

    int fd_ = -1;                         // a timerfd; armed while events are held
    std::optional<TimePoint> beat_at_{};  // when the armed timer is due
    std::deque<std::function<void()>> held_{};
    std::size_t num_due_ = 0;  // the number of first entries that are due
};

}  // namespace pitstop::http
