// Keeps work in the background from slowing passes down: while a pass runs, the background may be
// busy for a share of the time only; between passes it goes at full speed.
//
// Thread: the loop's for is_stepping, the background's for the rest.
#pragma once

#include "base/time.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace pitstop {

class Pace {
  public:
    // `share` in (0, 1]: of one core's time while passes run; 1: no limit.
    explicit Pace(double share) : share_(share) {}

    void set_stepping(bool is_stepping) {
        is_stepping_.store(is_stepping, std::memory_order_relaxed);
    }

    // A piece of work begins.
    void begin() { begun_ = Clock::now(); }
    // It has ended: rests as long as the share asks for, but no longer than kRestMax, so that a
    // stage always moves.
    void rest() {
        if (share_ >= 1.0 || !is_stepping_.load(std::memory_order_relaxed)) return;
        const Duration busy = Clock::now() - begun_;
        const auto rest = std::chrono::duration_cast<Duration>(busy * ((1.0 - share_) / share_));
        std::this_thread::sleep_for(std::min<Duration>(rest, kRestMax));
    }

  private:
    static constexpr auto kRestMax = std::chrono::milliseconds(50);

    double share_;
    std::atomic<bool> is_stepping_{false};
    TimePoint begun_{};
};

}  // namespace pitstop
