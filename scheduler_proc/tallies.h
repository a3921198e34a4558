// The counts of a replica since its start, for status only: no decision depends on them.
//
// Thread: the loop thread only.
#pragma once

#include "base/time.h"
#include "messages/status.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace pitstop::scheduler {

// A rate of events over the last complete window of about kWindow.
class Rate {
  public:
    static constexpr auto kWindow = std::chrono::seconds(1);

    void add(TimePoint now, std::int64_t num);
    // Returns events per second. A window without new events fades after kWindow.
    [[nodiscard]] double at(TimePoint now) const;
    // Makes the rate 0 from now on.
    void stop(TimePoint now);

  private:
    TimePoint begin_{};
    std::int64_t num_ = 0;
    double last_ = 0;  // rate of the previous window
};

// The durations of steps as clients see them between tokens, to measure the cost of an update that
// is staged meanwhile.
class StepTimes {
  public:
    static constexpr std::size_t kRecentMax = 64;

    // `begin`: when the step was sent. The duration counts from the end of the previous step, if
    // that was later. Returns the duration.
    Duration add(TimePoint begin, TimePoint end);
    // Counts later steps separately, and records the mean of the latest steps before.
    void watch();

    // The counts since watch().
    struct Watched {
        std::int64_t num = 0;
        Duration sum{};
        Duration longest{};
        Duration mean_before{};  // 0 if there was no step before
    };
    [[nodiscard]] const Watched& watched() const { return watched_; }

  private:
    std::array<Duration, kRecentMax> recent_{};
    std::size_t num_recent_ = 0;  // number of durations ever added
    TimePoint last_end_{};
    Watched watched_{};
};

struct Tallies {
    std::optional<messages::ExpertLoad> expert_load{};  // from rank 0's last report
    std::int64_t num_steps = 0;
    std::int64_t num_requests = 0;
    std::int64_t num_prompt_tokens = 0;
    std::int64_t num_cached_tokens = 0;
    std::int64_t num_replayed_tokens = 0;
    std::int64_t num_output_tokens = 0;
    std::int64_t num_retractions = 0;
    std::int64_t num_recomputed_tokens = 0;
    std::int64_t num_spanning_requests = 0;
    std::int64_t num_refused = 0;
    std::int64_t num_rows_dropped = 0;  // computed in vain, for requests that had ended
    messages::DraftCounts drafts{};
    Rate output_rate{};
    StepTimes step_times{};
    std::array<std::int64_t, messages::CacheHits::kLagMax + 1> cache_hits{};  // tokens, by lag
    std::array<std::int64_t, messages::EnumNames<messages::FinishReason>::kNames.size()>
        finished{};  // by reason
    std::array<std::int64_t, messages::EnumNames<messages::NotFiniteKind>::kNames.size()>
        not_finite{};  // requests that ended for this reason

    void count_cache_hit(std::int64_t lag, std::int64_t num_tokens);
    void count_finish(messages::FinishReason reason) {
        ++finished[static_cast<std::size_t>(reason)];
    }
    void count_not_finite(messages::NotFiniteKind kind) {
        ++not_finite[static_cast<std::size_t>(kind)];
    }
    // Fills in these counts; those of checkpoints only if the status has them.
    void report_to(messages::ReplicaStatus& status, TimePoint now) const;
    [[nodiscard]] std::vector<messages::CacheHits> cache_hits_by_lag() const;
    [[nodiscard]] std::vector<messages::FinishCount> finish_counts() const;
    [[nodiscard]] std::vector<messages::NotFiniteCount> not_finite_counts() const;
};

}  // namespace pitstop::scheduler
