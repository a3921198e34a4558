#include "scheduler_proc/runner.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace pitstop::scheduler {

Runner::Runner(const SchedulerConfig& config)
    : config_(config), waiting_(config.fairness), steps_(config.tp, config.step_timeout) {}

void Runner::open(const Workers& workers) {
    limits_ = workers.limits();
    pool_ = KvPool({
        .num_pages = workers.num_pages(),
        .page_size = config_.page_size,
        .num_slots = std::min(config_.running_max, workers.num_slots()),
    });
}

void Runner::begin_turn(TimePoint now) {
    now_ = now;
    ++turn_;
}

void Runner::enqueue(
    messages::TokenizedRequest arrived, const std::optional<Error>& refusal, TurnOutput& out
) {
    if (arrived.key <= last_key_) {
        ++tallies_.num_refused;  // sent twice; an answer would end the one that is open
        return;
    }
    last_key_ = arrived.key;
    ++tallies_.num_requests;
    const auto refuse_with = [&](const Error& error) {
        refuse(
            arrived,
            {
                .reason = messages::FinishReason::kError,
                .verdict = error,
            },
            out
        );
    };
    if (const auto end = early_ends_.take(arrived.key)) {
        if (end->cause != messages::EndCause::kAbort) return;
        refuse(
            arrived,
            {.reason = messages::FinishReason::kAbort,
             .verdict = messages::Verdict::done(end->message),
             .was_waiting = true},
            out
        );
        return;
    }
    if (refusal) return refuse_with(*refusal);
    if (const auto error = problem_of(arrived, limits_)) return refuse_with(*error);
    const RequestKey key = arrived.key;
    const auto [place, is_new] = requests_.try_emplace(key, std::move(arrived), limits_);
    CHECK(is_new);
    place->second.arrived_at = now_;
    waiting_.push(place->second);
    if (waiting_.size() > config_.queue_len_max) push_out(out);
}

// Too many wait: whoever has the most of them gives way, as a rule with the one that came just now.
void Runner::push_out(TurnOutput& out) {
    const Error error = make_error(
        ErrorCode::kResourceExhausted,
        "{} requests are waiting; at most {} may (--max-queued-requests)",
        waiting_.size() - 1,
        config_.queue_len_max
    );
    finish(
        requests_.at(waiting_.last_of_largest()),
        {
            .reason = messages::FinishReason::kError,
            .verdict = error,
        },
        out
    );
}

void Runner::end_requests(const messages::EndRequests& ends, TurnOutput& out) {
    for (const RequestKey key : ends.keys) end_request(key, ends.cause, ends.message, out);
}

void Runner::end_request(
    RequestKey key, messages::EndCause cause, const std::string& message, TurnOutput& out
) {
    const auto found = requests_.find(key);
    if (found == requests_.end()) {
        // Smaller keys have been here and are done; a larger one is still to come.
        if (key > last_key_) early_ends_.add(key, {cause, message.substr(0, kEndMessageBytesMax)});
        return;
    }
    Request& request = found->second;
    if (cause == messages::EndCause::kAbort) return abort(request, message, out);
    // The detokenizer learns that nothing more comes, so that it may forget the request.
    if (request.is_announced) batch_of(out).drops.push_back(key);
    tallies_.count_finish(
        cause == messages::EndCause::kStopText ? messages::FinishReason::kStop
                                               : messages::FinishReason::kAbort
    );
    forget(request);
}

void Runner::finish(Request& request, messages::Finish how, TurnOutput& out) {
    tallies_.count_finish(how.reason);
    messages::OutputChunk& chunk = chunk_of(request, out);
    chunk.counts = request.counts(config_.replica);
    chunk.finish = std::move(how);
    forget(request);
}

void Runner::abort(Request& request, const std::string& message, TurnOutput& out) {
    finish(
        request,
        {.reason = messages::FinishReason::kAbort,
         .verdict = messages::Verdict::done(message),
         .was_waiting = !request.is_running()},
        out
    );
}

void Runner::forget(Request& request) {
    if (request.is_running()) {
        leave_run(request);
    } else {
        waiting_.remove(request);
    }
    const RequestKey key = request.key;
    requests_.erase(key);
}

// Puts it back to the head of the queue: the tokens stay, the pages go. Tokens that steps in flight
// sample for it still count.
void Runner::retract(Request& request) {
    CHECK(request.is_running());
    std::erase_if(drafts_, [&](const Draft& draft) { return draft.request == &request; });
    if (request.progress.pending() == 0) {
        // Its prefill was under way: it starts over, and what steps in flight still bring of it
        // belongs to a run that is over.
        ++request.run;
        if (request.progress.outputs() == 0) request.scores = {.start = request.scores.start};
    }
    leave_run(request);
    request.progress.retract();
    ++request.num_retractions;
    ++tallies_.num_retractions;
    waiting_.push(request);
}

std::int64_t Runner::retract_all() {
    const std::vector<Request*> all = running_;
    for (Request* request : all) retract(*request);
    return static_cast<std::int64_t>(all.size());
}

// Ends every request that has run, and with `also_new` those that only waited.
std::int64_t Runner::abort_all(bool also_new, const std::string& message, TurnOutput& out) {
    std::vector<Request*> all;
    for (auto& [key, request] : requests_) {
        if (also_new || request.was_admitted) all.push_back(&request);
    }
    for (Request* request : all) abort(*request, message, out);
    return static_cast<std::int64_t>(all.size());
}

void Runner::refuse_older_kv(Epoch floor) {
    for (auto& [key, request] : requests_) {
        if (request.was_admitted) request.kv_floor = floor;
    }
}

std::int64_t Runner::num_started() const {
    return static_cast<std::int64_t>(std::ranges::count_if(requests_, [](const auto& entry) {
        return entry.second.was_admitted;
    }));
}

void Runner::leave_run(Request& request) {
    pool_.give_back(std::exchange(request.lease, {}));
    std::erase(running_, &request);
}

std::string Runner::describe_page_holders() const {
    std::size_t num_pages = 0;
    for (const Request* request : running_) num_pages += request->lease.pages.size();
    return fmt::format("{} requests hold {} pages", running_.size(), num_pages);
}

void Runner::report_to(messages::ReplicaStatus& status, TimePoint now) const {
    status.num_waiting = waiting_.size();
    status.num_running = num_running();
    status.num_steps = tallies_.num_steps;
    status.steps_in_flight = std::ssize(steps_.all());
    if (const auto began_at = steps_.began_at()) status.step_age_s = seconds(now - *began_at);
    status.pages_total = pool_.num_pages();
    status.pages_free = pool_.num_free();
    status.pages_cached = pool_.cache().num_unreferenced();
    status.page_size = config_.page_size;
    status.prompt_tokens_total = tallies_.num_prompt_tokens;
    status.cached_tokens_total = tallies_.num_cached_tokens;
    status.output_tokens_total = tallies_.num_output_tokens;
    status.requests_total = tallies_.num_requests;
    status.retractions_total = tallies_.num_retractions;
    status.refused_total = tallies_.num_refused;
    status.num_retracted = waiting_.num_retracted();
    status.running_max = pool_.num_slots();
    status.queue_len_max = config_.queue_len_max;
    status.output_tokens_per_s = tallies_.output_rate.at(now);
    status.recomputed_tokens_total = tallies_.num_recomputed_tokens;
    status.spanning_requests_total = tallies_.num_spanning_requests;
    status.cache_hits = tallies_.cache_hits_by_lag();
    status.finished = tallies_.finish_counts();
}

}  // namespace pitstop::scheduler
