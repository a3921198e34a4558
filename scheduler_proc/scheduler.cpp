#include "scheduler_proc/scheduler.h"

#include "base/check.h"

#include <utility>
#include <variant>

namespace pitstop::scheduler {
namespace {

template <class... Fs>
struct Overloaded : Fs... {
    using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

// Returns why this rank cannot verify the drafts that --speculate asks for, or nothing.
std::optional<Error> problem_of_drafts(
    const SchedulerConfig& config, const messages::WorkerHello& hello
) {
    if (config.drafts_max <= hello.drafted_max || config.has_draft_budget) return std::nullopt;
    const std::string why =
        hello.state_bytes > 0
            ? fmt::format(
                  "{} has a recurrent state, over which only CPUs verify drafts", hello.model_type
              )
            : fmt::format("it verifies no drafts on {}", hello.device);
    return make_error(
        ErrorCode::kUnsupported,
        "--speculate {}: rank {} verifies at most {} drafts per row: {}; leave the flag out",
        config.drafts_max,
        raw(hello.rank),
        hello.drafted_max,
        why
    );
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config)
    : config_(std::move(config)),
      workers_(config_.tp),
      runner_(config_),
      pause_(config_.replica),
      flushes_(config_.replica),
      update_(config_),
      memory_(config_.replica, config_.tp) {
    CHECK(!problem_of(config_));
}

// One turn: facts in, decisions out.
TurnOutput Scheduler::turn(TurnInput in) {
    TurnOutput out;
    CHECK(in.now >= now_);
    now_ = in.now;
    runner_.begin_turn(now_);
    runner_.count_refused(in.num_refused);

    std::vector<CallId> status_calls;
    for (Control& message : in.control) {  // before generation (P5)
        handle_control(message, status_calls, out);
    }
    for (messages::TokenizedRequest& request : in.requests) {
        std::optional<Error> refusal;
        if (!is_ready()) {
            refusal = facts().why_not_ready();
        } else if (!is_paused()) {
            refusal = facts().why_idle();
        }
        runner_.enqueue(std::move(request), refusal, out);
    }
    for (FromWorker& message : in.workers) handle_worker(message, out);
    end_late_calls(out);
    advance(out);

    while (!out.fatal) {
        std::optional<messages::StepPlan> plan = runner_.plan_step(scope(), version(), out);
        if (!plan) break;
        out.workers.emplace_back(*std::move(plan));
    }
    report_standing(out);
    for (const CallId call : status_calls) out.tokenizer.emplace_back(status(now_, call));
    out.wake_at = next_deadline();
    return out;
}

// Sends the report before this turn's answers: when a client learns of a pause, the door knows it
// already.
void Scheduler::report_standing(TurnOutput& out) {
    if (!is_ready()) return;
    messages::ReplicaStanding standing = facts().standing();
    if (standing == told_) return;
    told_ = standing;
    out.tokenizer.emplace(out.tokenizer.begin(), std::move(standing));
}

void Scheduler::handle_control(
    Control& message, std::vector<CallId>& status_calls, TurnOutput& out
) {
    const auto pass_on = [&](auto& order) {
        if (is_ready()) out.workers.emplace_back(std::move(order));
    };
    const auto visitor = Overloaded{
        [&](messages::Status& call) { status_calls.push_back(call.call); },
        [&](messages::EndRequests& ends) { runner_.end_requests(ends, out); },
        [&](messages::EndConversations& ends) { runner_.end_conversations(ends); },
        [&](messages::UpdateStage& order) { stage(std::move(order), out); },
        [&](messages::UpdateFill& order) { update_.fill(std::move(order), now_, out); },
        [&](messages::UpdateFinish& order) { update_.finish_session(order, now_, out); },
        [&](messages::UpdateDrop& order) { update_.drop(order, out); },
        [&](messages::UpdateRollback& order) { roll_back(order, out); },
        [&](messages::WorkerGroup& call) { pass_on(call); },
        [&](messages::WorkerKeep& step) { pass_on(step); },
        [&](auto& call) { handle(call, out); },
    };
    std::visit(visitor, message);
}

void Scheduler::handle_worker(FromWorker& message, TurnOutput& out) {
    const auto pass_on = [&](auto& answer) {
        answer.replica = config_.replica;
        out.tokenizer.emplace_back(std::move(answer));
        return true;
    };
    // Each handler returns false if nothing waited for the message.
    const auto visitor = Overloaded{
        [&](messages::WorkerHello& hello) {
            const bool is_ours = raw(hello.rank) >= 0 && raw(hello.rank) < workers_.tp() &&
                                 !workers_.has(hello.rank);
            if (is_ours) handle_hello(std::move(hello), out);
            return is_ours;
        },
        [&](messages::StepResult& result) {
            return runner_.collect_result(std::move(result), out);
        },
        [&](messages::WorkerCompiled& answer) { return runner_.handle_compiled(answer, out); },
        [&](messages::AdapterMove auto& answer) { return runner_.handle_moved(answer, out); },
        [&](messages::WorkerFilled& answer) {
            update_.record_steps(runner_.watched_steps());
            return update_.handle_filled(std::move(answer), out);
        },
        [&](messages::WorkerStaged& vote) {
            update_.record_steps(runner_.watched_steps());
            return update_.handle_vote(std::move(vote), out);
        },
        [&](messages::WorkerCommitted& answer) {
            return update_.handle_committed(answer, now_, out);
        },
        [&](messages::WorkerDropped& answer) { return update_.handle_dropped(answer, out); },
        [&](messages::WorkerDigests& digests) {
            if (digests.epoch == version().epoch) digests.label = version().label;
            return pass_on(digests);
        },
        [&](messages::WorkerMemoryDone& answer) { return memory_.handle_done(answer); },
        [&](auto& answer) { return pass_on(answer); },
        [&](messages::WorkerKept& answer) {
            out.tokenizer.emplace_back(std::move(answer));
            return true;
        },
    };
    if (!std::visit(visitor, message)) ++num_late_;
}

void Scheduler::handle_hello(messages::WorkerHello hello, TurnOutput& out) {
    if (const auto problem = problem_of_drafts(config_, hello)) {
        out.fatal = problem;
        return;
    }
    if (auto added = workers_.handle_hello(std::move(hello), config_.page_size); !added) {
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
            "the loaded weights have digest {}; --digest requires {}",
            digest->empty() ? "(none)" : *digest,
            config_.digest
        );
        return;
    }
    update_.open(*std::move(digest), workers_.have_weights(), workers_.lend());
    told_ = {.replica = config_.replica, .has_weights = has_weights()};  // as the hello says
    runner_.open(workers_);
    const ModelLimits& limits = runner_.limits();
    out.tokenizer.emplace_back(messages::SchedulerHello{
        .replica = config_.replica,
        .model_type = workers_.model_type(),
        .context_len = limits.context_len,
        .vocab_size = limits.vocab_size,
        .pool_tokens = limits.pool_tokens,
        .page_size = config_.page_size,
        .queue_len_max = config_.queue_len_max,
        .tp = config_.tp,
        .eos_ids = limits.eos_ids,
        .epoch = version().epoch,
        .label = version().label,
        .digest = version().digest,
        .has_weights = has_weights(),
        .routes = limits.routes,
        .dense_layers = limits.dense_layers,
    });
}

void Scheduler::advance(TurnOutput& out) {
    const Pause::Load load{
        .is_still = runner_.steps().empty(),
        .is_run_out = !runner_.requests().has_started(),
        .num_running = runner_.requests().num_running(),
        .num_waiting = runner_.requests().num_waiting(),
    };
    if (pause_.advance(load, now_, out)) {
        if (pause_.mode() == messages::PauseMode::kAbort) runner_.clear_cache();
        runner_.stop_rate();
    }
    if (!flushes_.empty() && load.num_running == 0 && load.is_still)
        flushes_.advance(runner_.clear_cache(), out);
    update_.advance(now_, load.is_still, load.is_run_out, out);
    advance_memory(out);
    finish_loan(out);
}

void Scheduler::end_late_calls(TurnOutput& out) {
    if (pause_.is_overdue(now_)) pause_.end_if_overdue(now_, facts().why_not_on(), out);
    const std::optional<TimePoint> first = next_deadline();
    if (!first || now_ < *first) return;
    const std::string step = runner_.steps().describe(now_);
    pause_.end_late_calls(now_, step, runner_.requests().num_running(), out);
    flushes_.end_late_calls(
        now_, fmt::format("{}; {}", runner_.requests().describe_page_holders(), step), out
    );
    answer_memory(memory_.end_late_call(now_, step), out);
    update_.end_late(
        now_, fmt::format("{}; {} requests still run", step, runner_.requests().num_running()), out
    );
    // A rank that never answers would hold every request forever (P5). So this replica ends, and
    // with it the tree; the ending tree answers the requests.
    if (runner_.steps().is_late(now_)) out.fatal = Error{ErrorCode::kDeadlineExceeded, step};
}

std::optional<TimePoint> Scheduler::next_deadline() const {
    std::optional<TimePoint> first = pause_.next_deadline(now_, !facts().why_not_on());
    first = earlier(first, flushes_.next_deadline());
    first = earlier(first, runner_.next_deadline());
    first = earlier(first, update_.next_deadline());
    return earlier(first, memory_.next_deadline());
}

messages::ReplicaStatus Scheduler::status(TimePoint now, CallId call) const {
    messages::ReplicaStatus status = facts().status(now);
    status.call = call;
    status.refused_total += num_late_;
    return status;
}

std::optional<std::string> Scheduler::audit() const { return runner_.audit(version().epoch); }

}  // namespace pitstop::scheduler
