// Decides how often a stream gets an event: at once after a quiet time, else once per period, with
// all output since. An event costs a system call here, one at the reader, and waking the reader.
// With thousands of tokens per second and stream, events would cost more than the tokens. So the
// period grows with the number of open streams; a model whose steps are longer than the period is
// not affected.
//
// With many open streams, no event is written when its tokens arrive. A step has tokens for all
// streams at once, and a control route's answer would wait for every write. Instead, a few events
// are written at a time, and the loop polls its other sockets in between.
//
// The numbers were measured with pitstop_http_bench and pitstop_http_hold: bench/README.md.
//
// Thread:  the server's loop, which calls beat() when fd() is readable.
// Bounded: by what is held: an entry or two per open answer.
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
    static constexpr Wait kPeriodMax{20'000};  // 50 per second: more would not be noticed
    static constexpr Wait kPerStream{200};     // about 5,000 events per second
    static constexpr int kAtOnceMax = 32;      // writing this many streams takes under 1 ms
    static constexpr std::size_t kPerBeat = 32;

    // Returns the period with this many open streams.
    [[nodiscard]] static Wait period_of(int num_streams) {
        return std::clamp(num_streams * kPerStream, kPeriodMin, kPeriodMax);
    }

    EventPace();
    ~EventPace();
    EventPace(const EventPace&) = delete;
    EventPace& operator=(const EventPace&) = delete;

    // Runs `release` within `wait`; if that is zero, in the loop's next turns, after earlier ones.
    void hold(std::function<void()> release, Wait wait);

    [[nodiscard]] int fd() const { return fd_; }
    void beat();

  private:
    void arm(Wait wait);

    int fd_ = -1;                         // a timerfd; armed while anything is held
    std::optional<TimePoint> beat_at_{};  // when the armed timer is due
    std::deque<std::function<void()>> held_{};
    std::size_t num_due_ = 0;  // the first ones, which are due
};

}  // namespace pitstop::http
