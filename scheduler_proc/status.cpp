// What the replica is doing, for status: answered at once, always (P5).
#include "scheduler_proc/scheduler.h"

#include <algorithm>
#include <chrono>

namespace pitstop::scheduler {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

std::string Scheduler::state() const {
    if (!is_ready()) return "loading";
    if (weights_ == Weights::kTorn) return "torn";
    if (!memory_.is_all_resident()) return "released";
    if (weights_ == Weights::kAwaited) return "awaiting_weights";
    if (pause_) return pause_->is_standing ? "paused" : "pausing";
    if (scope() != Scope::kEverything) return "updating";
    return "running";
}

ReplicaStatus Scheduler::status(TimePoint now, CallId call) const {
    ReplicaStatus status;
    status.call = call;
    status.replica = config_.replica;
    status.state = state();
    status.epoch = version_.epoch;
    status.label = version_.label;
    status.digest = version_.digest;
    status.num_waiting = waiting_.size();
    status.num_running = static_cast<std::int64_t>(running_.size());
    status.num_steps = tallies_.num_steps;
    status.steps_in_flight = static_cast<std::int64_t>(in_flight_.size());
    if (!in_flight_.empty()) status.step_age_s = seconds(now - in_flight_.front().sent_at);
    status.pages_total = pages_.num_pages();
    status.pages_free = pages_.num_free();
    status.pages_cached = cache_.num_unreferenced();
    status.page_size = config_.page_size;
    status.prompt_tokens_total = tallies_.num_prompt_tokens;
    status.cached_tokens_total = tallies_.num_cached_tokens;
    status.output_tokens_total = tallies_.num_output_tokens;
    status.requests_total = tallies_.num_requests;
    status.retractions_total = tallies_.num_retractions;
    status.refused_total = tallies_.num_refused + num_late_;
    status.workers = workers_.status();
    status.has_weights = weights_ == Weights::kWhole;
    status.pauses_total = tallies_.num_pauses;
    if (pause_) {
        status.pause_mode = name_of(pause_->mode);
        status.paused_s = seconds(now - pause_->since);
    }
    status.paused_s_total = seconds(tallies_.paused) + status.paused_s;
    status.memory = memory_.totals();
    status.num_retracted = waiting_.num_retracted();
    status.running_max = num_slots_;
    status.queue_len_max = config_.queue_len_max;
    status.output_tokens_per_s = pause_ && pause_->is_standing ? 0 : tallies_.output_rate.at(now);
    status.recomputed_tokens_total = tallies_.num_recomputed_tokens;
    status.spanning_requests_total = tallies_.num_spanning_requests;
    status.cache_hits = tallies_.cache_hits_by_lag();
    status.finished = tallies_.finish_counts();
    status.pause_expiry = pause_expiry_;
    return status;
}

}  // namespace pitstop::scheduler
