// Keeps background work from slowing passes down. While passes run, a background thread uses only a
// share of one core's time; after a while without passes it runs at full speed.
//
// On busy cores every rest also costs a wait for a core. So a thread rests rarely and long:
// whenever it has used the processor time that one pass may lose. Only the thread's processor time
// counts, because waiting for a core or a disk slows no pass down. The thread has the priority of
// the computing threads. At a lower priority the kernel would decide, not the share: with nice 10
// a thread got 6 % of a core, and an update took a minute.
//
// Thread: the loop's for begin_pass() and end_pass(), any for the other functions; a Pacer belongs
// to one thread.
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
    // `share`, in (0, 1]: the part of one core's time that is used while passes run; 1: no limit.
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
    // Returns whether a pass runs, or ended so recently that another is likely to follow.
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
    explicit Pacer(const Pace& pace) : pace_(pace) { begin_to_count(); }

    // Call between two pieces of work: rests if this thread has used up its share. Returns the time
    // that it rested.
    Duration rest_if_due() {
        if (pace_.share() >= 1.0 || !pace_.is_serving()) {
            is_counting_ = false;
            return {};
        }
        if (!is_counting_) {
            begin_to_count();
            return {};
        }
        const auto share_of_pass =
            std::chrono::duration_cast<Duration>(pace_.last_pass() * pace_.share());
        const Duration quantum = std::min<Duration>(share_of_pass, kUsedMax);
        // Reading the processor time costs 0.6 us, so this first checks the time that has passed.
        if (Clock::now() - counted_from_ < quantum) return {};
        const Duration used = thread_time() - used_before_;
        if (used < quantum) return {};
        const auto rest =
            std::chrono::duration_cast<Duration>(used * ((1.0 - pace_.share()) / pace_.share()));
        const TimePoint begun = Clock::now();
        std::this_thread::sleep_for(std::min<Duration>(rest, kRestMax));
        begin_to_count();
        return counted_from_ - begun;
    }

  private:
    static constexpr auto kUsedMax = std::chrono::milliseconds(10);
    static constexpr auto kRestMax =
        std::chrono::milliseconds(200);  // so that a stage always makes progress

    static Duration thread_time() {
        std::timespec used{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
        return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
    }
    void begin_to_count() {
        is_counting_ = true;
        used_before_ = thread_time();
        counted_from_ = Clock::now();
    }

    const Pace& pace_;
    bool is_counting_ = false;  // since the last rest, while passes run
    Duration used_before_{};    // processor time of this thread when it began to count
    TimePoint counted_from_{};
};

}  // namespace pitstop::tp_worker
