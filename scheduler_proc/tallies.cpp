#include "scheduler_proc/tallies.h"

#include <algorithm>

namespace pitstop::scheduler {
void Rate::add(TimePoint now, std::int64_t num) {
    const Duration age = now - begin_;
    if (age >= kWindow) {
        // After a long silence, the rate of the ended window is out of date.
        last_ = age < 2 * kWindow ? static_cast<double>(num_) / seconds(age) : 0;
        begin_ = now;
        num_ = 0;
    }
    num_ += num;
}

double Rate::at(TimePoint now) const {
    const double age = seconds(now - begin_);
    const double window = seconds(kWindow);
    if (age < window) {
        // Fills up a young window with part of the previous one.
        return static_cast<double>(num_) / window + last_ * (1 - age / window);
    }
    return age < 2 * window ? static_cast<double>(num_) / age : 0;
}

void Rate::stop(TimePoint now) {
    begin_ = now;
    num_ = 0;
    last_ = 0;
}

Duration StepTimes::add(TimePoint begin, TimePoint end) {
    const Duration took = end - std::max(begin, last_end_);
    last_end_ = end;
    recent_[num_recent_++ % kRecentMax] = took;
    ++watched_.num;
    watched_.sum += took;
    watched_.longest = std::max(watched_.longest, took);
    return took;
}

void StepTimes::watch() {
    watched_ = {};
    const std::size_t num = std::min(num_recent_, kRecentMax);
    if (num == 0) return;
    Duration sum{};
    for (std::size_t i = 0; i < num; ++i) sum += recent_[i];
    watched_.mean_before = sum / static_cast<Duration::rep>(num);
}

void Tallies::count_cache_hit(std::int64_t lag, std::int64_t num_tokens) {
    cache_hits[static_cast<std::size_t>(
        std::clamp<std::int64_t>(lag, 0, messages::CacheHits::kLagMax)
    )] += num_tokens;
}

void Tallies::report_to(messages::ReplicaStatus& status, TimePoint now) const {
    status.num_steps = num_steps;
    status.prompt_tokens_total = num_prompt_tokens;
    status.cached_tokens_total = num_cached_tokens;
    status.output_tokens_total = num_output_tokens;
    status.requests_total = num_requests;
    status.retractions_total = num_retractions;
    status.refused_total = num_refused;
    status.output_tokens_per_s = output_rate.at(now);
    status.recomputed_tokens_total = num_recomputed_tokens;
    status.spanning_requests_total = num_spanning_requests;
    status.cache_hits = cache_hits_by_lag();
    status.finished = finish_counts();
    status.not_finite = not_finite_counts();
    status.expert_load = expert_load;
    if (status.checkpoints) status.checkpoints->replayed_tokens_total = num_replayed_tokens;
}

std::vector<messages::CacheHits> Tallies::cache_hits_by_lag() const {
    std::vector<messages::CacheHits> hits;
    for (std::size_t lag = 0; lag < cache_hits.size(); ++lag) {
        if (cache_hits[lag] > 0)
            hits.push_back({.lag = static_cast<std::int64_t>(lag), .tokens = cache_hits[lag]});
    }
    return hits;
}

std::vector<messages::FinishCount> Tallies::finish_counts() const {
    std::vector<messages::FinishCount> counts;
    for (std::size_t i = 0; i < finished.size(); ++i) {
        counts.push_back({.reason = static_cast<messages::FinishReason>(i), .requests = finished[i]}
        );
    }
    return counts;
}

std::vector<messages::NotFiniteCount> Tallies::not_finite_counts() const {
    std::vector<messages::NotFiniteCount> counts;
    for (std::size_t i = 0; i < not_finite.size(); ++i) {
        counts.push_back(
            {.kind = static_cast<messages::NotFiniteKind>(i), .requests = not_finite[i]}
        );
    }
    return counts;
}

}  // namespace pitstop::scheduler
