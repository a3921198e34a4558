// Keeps work in the background from slowing passes down: while passes run, a background thread may
// take a share of one core's time only; when none has run for a while it goes at full speed.
//
// On busy cores every rest costs a wait for a core besides, so a thread rests rarely and long: once
// it has used as much of the processor as a pass may lose. What counts is the thread's processor
// time; waiting for a core or a disk slows nobody down. Its priority is that of the threads that
// compute: at a lower one the kernel, not the share, decides (nice 10 got 6 % of a core, and an
// update took a minute).
//
// Thread: the loop's for begin_pass() and end_pass(), any for the rest; a Pacer is its thread's
// own.
#pragma once

#include "base/time.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>

namespace pitstop::tp_worker {

class Pace {
  public:
    // `share`, in (0, 1], is of one core's time while passes run; 1: no limit.
    explicit Pace(double share) : share_(share) {}

    void begin_pass() {
        begun_ = Clock::now();
        is_in_pass_.store(true, std::memory_order_relaxed);
    }
    void end_pass() {
        const TimePoint now = Clock::now();
        pass_ns_.store((now - begun_).count(), std::memory_order_relaxed);
        ended_ns_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
        is_in_pass_.store(false, std::memory_order_relaxed);
    }

    [[nodiscard]] double share() const { return share_; }
    // A pass runs, or one ended so lately that the next is to be expected.
    [[nodiscard]] bool is_serving() const {
        if (is_in_pass_.load(std::memory_order_relaxed)) return true;
        const Duration ended{ended_ns_.load(std::memory_order_relaxed)};
        return ended.count() != 0 && Clock::now().time_since_epoch() - ended < kLull;
    }
    [[nodiscard]] Duration last_pass() const {
        return Duration{pass_ns_.load(std::memory_order_relaxed)};
    }

  private:
    static constexpr auto kLull = std::chrono::milliseconds(5);

    double share_;
    TimePoint begun_{};  // the loop's
    std::atomic<bool> is_in_pass_{false};
    std::atomic<Duration::rep> pass_ns_{0};
    std::atomic<Duration::rep> ended_ns_{0};  // 0 before the first pass
};

class Pacer {
  public:
    explicit Pacer(const Pace& pace) : pace_(pace), rested_at_(thread_time()) {}

    // This is called between two pieces of work: it rests if this thread has used up its share, and
    // returns how long it did.
    Duration rest_if_due() {
        const Duration now = thread_time();
        if (pace_.share() >= 1.0 || !pace_.is_serving()) {
            rested_at_ = now;
            return {};
        }
        const Duration used = now - rested_at_;
        const auto quantum =
            std::chrono::duration_cast<Duration>(pace_.last_pass() * pace_.share());
        if (used < std::min<Duration>(quantum, kUsedMax)) return {};
        const auto rest =
            std::chrono::duration_cast<Duration>(used * ((1.0 - pace_.share()) / pace_.share()));
        const TimePoint begun = Clock::now();
        std::this_thread::sleep_for(std::min<Duration>(rest, kRestMax));
        rested_at_ = thread_time();
        return Clock::now() - begun;
    }

  private:
    static constexpr auto kUsedMax = std::chrono::milliseconds(10);
    static constexpr auto kRestMax =
        std::chrono::milliseconds(200);  // so that a stage always moves

    static Duration thread_time() {
        std::timespec used{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
        return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
    }

    const Pace& pace_;
    Duration rested_at_;
};

}  // namespace pitstop::tp_worker
