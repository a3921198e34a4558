// Decides how often a stream gets an event: at once after a quiet time, else every period, with all
// that came since. An event costs a system call here, one at the reader, and waking it; a model
// that makes thousands of tokens a second per stream would spend more on that than on the tokens.
// So the more streams are open, the longer the period; a model whose steps take longer never
// notices.
//
// Where many are open, no event is written where its tokens arrive: a step brings tokens for all of
// them at once, and what waits behind (the answer of a control route) would wait for every write.
// They are written some at a time, and the loop looks at its other sockets in between.
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
    static constexpr Wait kPeriodMax{20'000};  // 50 a second: nobody reads faster
    static constexpr Wait kPerStream{200};     // some 5,000 events a second
    static constexpr int kAtOnceMax = 32;      // the writes of so many streams take under 1 ms
    static constexpr std::size_t kPerBeat = 32;

    // Returns the period with so many streams open.
    [[nodiscard]] static Wait period_of(int num_streams) {
        return std::clamp(num_streams * kPerStream, kPeriodMin, kPeriodMax);
    }

    EventPace();
    ~EventPace();
    EventPace(const EventPace&) = delete;
    EventPace& operator=(const EventPace&) = delete;

    // Runs `release` within `wait`; with none, in the loop's next turns, after those before it.
    void hold(std::function<void()> release, Wait wait);

    [[nodiscard]] int fd() const { return fd_; }
    void beat();

  private:
    void arm(Wait wait);

    int fd_ = -1;                         // a timerfd; armed while something is held
    std::optional<TimePoint> beat_at_{};  // when the armed timer is due
    std::deque<std::function<void()>> held_{};
    std::size_t num_due_ = 0;  // the first ones, whose time has come
};

}  // namespace pitstop::http
