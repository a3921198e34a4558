#include "scheduler_proc/scheduler.h"

#include "base/check.h"
#include "base/digest.h"
#include "base/log.h"
#include "messages/checks.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

template <class... Fs>
struct Overloaded : Fs... {
    using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

// Above these a flag is a mistake.
constexpr int kTpMax = 1024;
constexpr std::int64_t kPageSizeMax = 4096;
constexpr std::int64_t kQueueLenMax = std::int64_t{1} << 24;
constexpr std::int64_t kTokensPerStepMax =
    static_cast<std::int64_t>(StepPlan::kTokensMax - StepPlan::kRowsMax);

std::optional<Error> out_of_range(
    std::string_view flag, std::int64_t value, std::int64_t low, std::int64_t high
) {
    if (value >= low && value <= high) return std::nullopt;
    return make_error(
        ErrorCode::kInvalidArgument, "{} is {}; accepted is [{}, {}]", flag, value, low, high
    );
}

}  // namespace

std::optional<Error> problem_of(const SchedulerConfig& config) {
    if (auto e = out_of_range("--replica", raw(config.replica), 0, kTpMax)) return e;
    if (auto e = out_of_range("--tp", config.tp, 1, kTpMax)) return e;
    if (auto e = out_of_range("--page-size", config.page_size, 1, kPageSizeMax)) return e;
    if (auto e = out_of_range(
            "--chunked-prefill-size", config.tokens_per_step_max, 1, kTokensPerStepMax
        ))
        return e;
    if (auto e = out_of_range("--max-running-requests", config.running_max, 1, StepPlan::kRowsMax))
        return e;
    if (auto e = out_of_range("--epoch", raw(config.epoch), 1, raw(kEpochMax))) return e;
    if (const auto problem = invalid_label(config.label))
        return Error{ErrorCode::kInvalidArgument, "--" + *problem};
    if (!config.digest.empty() && !digest_from_hex(config.digest)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "--digest is '{}'; accepted are 32 lower-case hex digits",
            printable(config.digest)
        );
    }
    return out_of_range("--max-queued-requests", config.queue_len_max, 1, kQueueLenMax);
}

Scheduler::Scheduler(SchedulerConfig config)
    : config_(config), workers_(config.tp), waiting_(config.fairness), memory_(config.tp) {
    CHECK(!problem_of(config));
    version_.epoch = config_.epoch;
    version_.label = config_.label;
}

// One turn: facts in, decisions out.
TurnOutput Scheduler::turn(TurnInput in) {
    TurnOutput out;
    CHECK(in.now >= now_);
    now_ = in.now;
    ++turn_;
    tallies_.num_refused += in.num_refused;

    std::vector<CallId> status_calls;
    const auto obey = Overloaded{
        [&](Status& call) { status_calls.push_back(call.call); },
        [&](EndRequests& ends) { end_requests(ends, out); },
        [&](PauseGeneration& call) { pause(call, out); },
        [&](ContinueGeneration& call) { go_on(call, out); },
        [&](FlushCache& call) { flush(call, out); },
        [&](SetWeightLabel& call) { set_label(call, out); },
        [&](ReleaseMemory& call) { release_memory(call, out); },
        [&](ResumeMemory& call) { resume_memory(call, out); },
        [&](UpdateStage& order) { stage(std::move(order), out); },
        [&](UpdateFill& order) { fill(std::move(order), out); },
        [&](UpdateFinish& order) { finish_session(order, out); },
        [&](UpdateReady& order) { make_ready(order, out); },
        [&](UpdateCommit& order) { commit(order, out); },
        [&](UpdateDrop& order) { drop(order, out); },
        [&](UpdateRollback& order) { roll_back(order, out); },
        [&](WorkerReadTensor& call) { read_tensor(call, out); },
        [&](WorkerDigest& call) { digest_weights(call, out); },
        [&](WorkerGroup& call) {
            if (is_ready()) out.workers.emplace_back(std::move(call));
        },
        [&](WorkerKeep& step) {
            if (is_ready()) out.workers.emplace_back(std::move(step));
        },
    };
    const auto hear = Overloaded{
        [&](WorkerHello& hello) { greet(std::move(hello), out); },
        [&](StepResult& result) { collect(std::move(result), out); },
        [&](WorkerFilled& answer) { filled(std::move(answer), out); },
        [&](WorkerStaged& vote) { staged(std::move(vote), out); },
        [&](WorkerCommitted& answer) { committed(answer, out); },
        [&](WorkerDropped& answer) { dropped(answer, out); },
        [&](WorkerTensor& tensor) {
            tensor.replica = config_.replica;
            out.tokenizer.emplace_back(std::move(tensor));
        },
        [&](WorkerDigests& digests) {
            digests.replica = config_.replica;
            if (digests.epoch == version_.epoch) digests.label = version_.label;
            out.tokenizer.emplace_back(std::move(digests));
        },
        [&](WorkerMemoryDone& answer) { hear_memory(answer); },
        [&](WorkerGrouped& answer) {
            answer.replica = config_.replica;
            out.tokenizer.emplace_back(std::move(answer));
        },
        [&](WorkerKept& answer) { out.tokenizer.emplace_back(std::move(answer)); },
    };

    for (Control& message : in.control) std::visit(obey, message);  // before generation (P5)
    for (TokenizedRequest& request : in.requests) enqueue(std::move(request), out);
    for (FromWorker& message : in.workers) std::visit(hear, message);
    act_on_time(out);
    settle(out);

    while (!out.fatal && in_flight_.size() < kStepsInFlightMax) {
        const Scope what = scope();
        if (what == Scope::kNothing) break;
        std::optional<StepPlan> plan = plan_step(what, now_);
        if (!plan) break;
        out.workers.emplace_back(*std::move(plan));
    }
    for (const CallId call : status_calls) out.tokenizer.emplace_back(status(now_, call));
    out.wake_at = next_deadline();
    return out;
}

void Scheduler::greet(WorkerHello hello, TurnOutput& out) {
    if (raw(hello.rank) < 0 || raw(hello.rank) >= workers_.tp() || workers_.has(hello.rank)) {
        ++num_late_;  // a rank that is here already, or none of ours
        return;
    }
    if (auto added = workers_.add(std::move(hello), config_.page_size); !added) {
        out.fatal = added.error();
        return;
    }
    if (!workers_.is_complete()) return;
    Result<std::string> digest = workers_.digest();
    if (!digest) {
        out.fatal = digest.error();
        return;
    }
    if (!config_.digest.empty() && *digest != config_.digest) {
        out.fatal = make_error(
            ErrorCode::kDataLoss,
            "the weights that were loaded have the digest {}; those that are to serve have {}",
            digest->empty() ? "(none)" : *digest,
            config_.digest
        );
        return;
    }
    version_.digest = *std::move(digest);
    if (!workers_.have_weights()) weights_ = Weights::kAwaited;
    limits_ = workers_.limits();
    pages_ = PageAllocator(workers_.num_pages());
    cache_ = PrefixCache(workers_.num_pages(), config_.page_size);
    num_slots_ = std::min(config_.running_max, workers_.num_slots());
    for (std::int64_t slot = num_slots_; slot-- > 0;) {
        free_slots_.push_back(static_cast<SlotId>(slot));
    }
    out.tokenizer.emplace_back(SchedulerHello{
        .replica = config_.replica,
        .model_type = workers_.model_type(),
        .context_len = limits_.context_len,
        .vocab_size = limits_.vocab_size,
        .pool_tokens = limits_.pool_tokens,
        .page_size = config_.page_size,
        .queue_len_max = config_.queue_len_max,
        .tp = config_.tp,
        .eos_ids = limits_.eos_ids,
        .epoch = version_.epoch,
        .label = version_.label,
        .digest = version_.digest,
        .has_weights = weights_ == Weights::kWhole,
    });
}

void Scheduler::enqueue(TokenizedRequest arrived, TurnOutput& out) {
    if (arrived.key <= last_key_) {
        ++tallies_.num_refused;  // sent twice; an answer would end the one that is open
        return;
    }
    last_key_ = arrived.key;
    ++tallies_.num_requests;
    const auto refuse_with = [&](const Error& error) {
        refuse(
            arrived,
            {.reason = FinishReason::kError,
             .code = std::string(name_of(error.code)),
             .message = error.message},
            out
        );
    };
    if (const auto end = early_ends_.take(arrived.key)) {
        if (end->cause != EndCause::kAbort) return;
        refuse(
            arrived,
            {.reason = FinishReason::kAbort, .message = end->message, .was_waiting = true},
            out
        );
        return;
    }
    if (!is_ready()) return refuse_with(not_ready());
    if (!pause_) {
        if (const auto reason = why_idle()) return refuse_with(*reason);
    }
    if (const auto error = problem_of(arrived, limits_)) return refuse_with(*error);
    const RequestKey key = arrived.key;
    const auto [place, is_new] = requests_.try_emplace(key, std::move(arrived), limits_);
    CHECK(is_new);
    waiting_.push(place->second);
    if (waiting_.size() > config_.queue_len_max) push_out(out);
}

// Too many wait: whoever has the most of them gives way, as a rule with the one that came just now.
void Scheduler::push_out(TurnOutput& out) {
    const Error error = make_error(
        ErrorCode::kResourceExhausted,
        "{} requests are waiting; at most {} may (--max-queued-requests)",
        waiting_.size() - 1,
        config_.queue_len_max
    );
    finish(
        requests_.at(waiting_.last_of_largest()),
        {.reason = FinishReason::kError,
         .code = std::string(name_of(error.code)),
         .message = error.message},
        out
    );
}

void Scheduler::end_requests(const EndRequests& ends, TurnOutput& out) {
    for (const RequestKey key : ends.keys) end_request(key, ends.cause, ends.message, out);
}

void Scheduler::end_request(
    RequestKey key, EndCause cause, const std::string& message, TurnOutput& out
) {
    const auto found = requests_.find(key);
    if (found == requests_.end()) {
        // Smaller keys have been here and are done; a larger one is still to come.
        if (key > last_key_) early_ends_.add(key, {cause, message.substr(0, kEndMessageBytesMax)});
        return;
    }
    Request& request = found->second;
    if (cause == EndCause::kAbort) return abort(request, message, out);
    // The detokenizer learns that nothing more comes, so that it may forget the request.
    if (request.is_announced) batch_of(out).drops.push_back(key);
    tallies_.count_finish(
        cause == EndCause::kStopText ? FinishReason::kStop : FinishReason::kAbort
    );
    forget(request);
}

void Scheduler::finish(Request& request, Finish how, TurnOutput& out) {
    tallies_.count_finish(how.reason);
    OutputChunk& chunk = chunk_of(request, out);
    chunk.counts = request.counts(config_.replica);
    chunk.finish = std::move(how);
    forget(request);
}

void Scheduler::abort(Request& request, const std::string& message, TurnOutput& out) {
    finish(
        request,
        {.reason = FinishReason::kAbort, .message = message, .was_waiting = !request.is_running},
        out
    );
}

void Scheduler::forget(Request& request) {
    if (request.is_running) {
        leave_run(request);
    } else {
        waiting_.remove(request);
    }
    const RequestKey key = request.key;
    requests_.erase(key);
}

// Back to the head of the queue: the tokens stay, the pages go. Tokens that steps in flight sample
// for it still count.
void Scheduler::retract(Request& request) {
    CHECK(request.is_running);
    std::erase_if(drafts_, [&](const Draft& draft) { return draft.request == &request; });
    if (request.num_pending == 0) {
        // Its prefill was under way: it starts over, and what steps in flight still bring of it
        // belongs to a run that is over.
        ++request.run;
        if (request.num_outputs() == 0) request.scores = {.start = request.scores.start};
    }
    request.num_lost = request.num_planned;
    leave_run(request);
    ++request.num_retractions;
    ++tallies_.num_retractions;
    waiting_.push(request);
}

std::int64_t Scheduler::retract_all() {
    const std::vector<Request*> all = running_;
    for (Request* request : all) retract(*request);
    return static_cast<std::int64_t>(all.size());
}

// Ends every request that has run, and with `also_new` those that only waited.
std::int64_t Scheduler::abort_all(bool also_new, const std::string& message, TurnOutput& out) {
    std::vector<Request*> all;
    for (auto& [key, request] : requests_) {
        if (also_new || request.was_admitted) all.push_back(&request);
    }
    for (Request* request : all) abort(*request, message, out);
    return static_cast<std::int64_t>(all.size());
}

void Scheduler::leave_run(Request& request) {
    give_back(
        {.pages = std::move(request.pages), .num_shared = request.num_shared, .slot = request.slot},
        request.last_step
    );
    std::erase(running_, &request);
    request.leave_run();
}

// Releases the lease, once the step `last_step` that may use it is done.
void Scheduler::give_back(Lease lease, StepId last_step) {
    if (!is_in_flight(last_step)) return release(lease);
    const auto at = static_cast<std::size_t>(raw(last_step) - raw(in_flight_.front().step));
    in_flight_[at].leases.push_back(std::move(lease));
}

void Scheduler::release(const Lease& lease) {
    const std::span<const PageId> all = lease.pages;
    cache_.unlock(all.first(lease.num_shared));
    pages_.release(all.subspan(lease.num_shared));
    if (lease.slot) free_slots_.push_back(*lease.slot);
}

bool Scheduler::is_in_flight(StepId step) const {
    return !in_flight_.empty() && step >= in_flight_.front().step && step <= in_flight_.back().step;
}

}  // namespace pitstop::scheduler
