#include "scheduler_proc/runner.h"

#include "base/check.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pitstop::scheduler {
namespace {

// The least probability that all drafts of a row are right: a draft that would lower it further is
// left out. In passes bound by reading weights, a draft costs about kLikelyMin times a pass of its
// own. A budget measures the cost of drafts, and may accept less likely ones.
constexpr double kLikelyMin = 0.3;
constexpr double kLikelyMinOfBudget = 0.05;

}  // namespace

Runner::Runner(const SchedulerConfig& config)
    : config_(config),
      requests_(config.fairness),
      adapters_(config),
      steps_(config.tp, config.step_timeout, config.nodes) {}

void Runner::open(const Workers& workers) {
    limits_ = workers.limits();
    adapters_.open(workers.adapter_rank_max());
    grammars_.open(workers.no_grammars());
    // With --speculate auto, speculation is off if the workers verify no drafts.
    const std::int64_t drafts_max = std::min(config_.drafts_max, workers.drafted_max());
    if (drafts_max > 0) {
        drafter_.emplace(Drafter::Limits{
            .drafts_max = drafts_max,
            .memory_max = config_.draft_memory,
            .likely_min = config_.has_draft_budget ? kLikelyMinOfBudget : kLikelyMin,
        });
        if (config_.has_draft_budget) budget_.emplace();
    }
    KvPool::Size size{
        .num_pages = workers.num_pages(),
        .page_size = config_.page_size,
        .num_slots = std::min(config_.running_max, workers.num_slots()),
        .trail_tokens = config_.trail_tokens,
        .spare_tokens = config_.spare_tokens,
        .held_pages_max = static_cast<std::int64_t>(
            config_.session_memory * static_cast<double>(workers.num_pages())
        ),
    };
    // Each checkpoint belongs to a page.
    if (workers.have_state()) size.num_places = std::min(workers.num_checkpoints(), size.num_pages);
    pool_ = KvPool(size);
}

void Runner::begin_turn(TimePoint now) {
    now_ = now;
    ++turn_;
    pool_.conversations().begin_round(limits_.pool_tokens, now);
}

void Runner::enqueue(
    messages::TokenizedRequest arrived, const std::optional<Error>& refusal, TurnOutput& out
) {
    if (arrived.key <= last_key_) {
        ++tallies_.num_refused;  // sent twice; an answer would end the request that is open
        return;
    }
    last_key_ = arrived.key;
    ++tallies_.num_requests;
    const auto refuse_with = [&](const Error& error) {
        refuse(arrived, {.reason = messages::FinishReason::kError, .verdict = error}, out);
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
    if (const auto error = grammars_.problem_of(arrived.sampling)) return refuse_with(*error);
    std::optional<AdapterUse> adapter;
    if (!arrived.adapter.empty()) {
        Result<AdapterUse> taken = adapters_.take(arrived.adapter);
        if (!taken) return refuse_with(taken.error());
        adapter = *std::move(taken);
    }
    const RequestKey key = arrived.key;
    const std::optional<messages::Grammar> grammar = messages::grammar_of(arrived.sampling);
    requests_.add(std::move(arrived), limits_, now_);
    Request& request = *requests_.find(key);
    request.adapter = std::move(adapter);
    if (request.conversation) pool_.conversations().begin_turn(*request.conversation);
    if (grammar) take_grammar(request, *grammar, out);
    if (drafter_) request.drafts.emplace();
    if (requests_.num_waiting() > config_.queue_len_max) push_out(out);
}

// Replaces the grammar's text by its id, which the setups of the request send.
void Runner::take_grammar(Request& request, const messages::Grammar& grammar, TurnOutput& out) {
    messages::SamplingParams& sampling = request.sampling;
    for (std::string* text :
         {&sampling.json_schema, &sampling.regex, &sampling.ebnf, &sampling.structural_tag})
        *text = {};
    request.grammar = grammars_.take(grammar, out);
    request.awaits_grammar = !grammars_.is_compiled(*request.grammar);
}

bool Runner::handle_compiled(const messages::WorkerCompiled& answer, TurnOutput& out) {
    if (!grammars_.record(answer, out)) return false;
    for (Request* request : requests_.all(OpenRequests::Which::kAll)) {
        if (request->grammar != answer.id) continue;
        request->awaits_grammar = false;
        if (answer.verdict.is_done()) continue;
        finish(
            *request,
            {.reason = messages::FinishReason::kError, .verdict = answer.verdict.error()},
            out
        );
    }
    return true;
}

// Drops the newest request of the client that has the most queued, because the queue is full. That
// is usually the request just added.
void Runner::push_out(TurnOutput& out) {
    const Error error = make_error(
        ErrorCode::kResourceExhausted,
        "{} requests are waiting; at most {} may wait (--max-queued-requests)",
        requests_.num_waiting() - 1,
        config_.queue_len_max
    );
    finish(
        requests_.last_of_largest(),
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
    Request* request = requests_.find(key);
    if (request == nullptr) {
        // A smaller key belongs to a request that has ended; a larger key to one that has not
        // arrived.
        if (key > last_key_) early_ends_.add(key, {cause, message.substr(0, kEndMessageBytesMax)});
        return;
    }
    if (cause == messages::EndCause::kAbort) return abort(*request, message, out);
    // Tells the detokenizer to forget the request: no chunk follows.
    if (request->is_announced) batch_of(out).drops.push_back(key);
    tallies_.count_finish(
        cause == messages::EndCause::kStopText ? messages::FinishReason::kStop
                                               : messages::FinishReason::kAbort
    );
    remove(*request, out);
}

void Runner::remove(Request& request, TurnOutput& out) {
    if (request.adapter) adapters_.give_back(request.adapter->id, out);
    if (request.grammar) grammars_.give_back(*request.grammar, out);
    if (drafter_) drafter_->remove(request);
    const std::optional<PrefixHolder> holder = request.holder();
    pool_.give_back(requests_.remove(request), holder);
}

void Runner::finish(Request& request, messages::Finish how, TurnOutput& out) {
    tallies_.count_finish(how.reason);
    messages::OutputChunk& chunk = chunk_of(request, out);
    tell_counts(request, chunk);
    chunk.finish = std::move(how);
    remove(request, out);
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

void Runner::retract(Request& request) {
    pool_.give_back(requests_.retract(request));
    ++tallies_.num_retractions;
}

std::int64_t Runner::retract_all() {
    const std::vector<Request*> all = requests_.running();
    for (Request* request : all) retract(*request);
    return std::ssize(all);
}

std::int64_t Runner::retract_scorings() {
    std::vector<Request*> scorings = requests_.running();
    std::erase_if(scorings, [](const Request* request) { return !request->is_to_score(); });
    for (Request* request : scorings) retract(*request);
    return std::ssize(scorings);
}

// All scores of a request belong to one version (P3), so a request to be scored starts anew.
std::int64_t Runner::commit_adapter(
    AdapterUse loaded, messages::AdapterPolicy policy, TurnOutput& out
) {
    const std::optional<messages::AdapterId> replaced = adapters_.serving(loaded.version.name);
    adapters_.commit(std::move(loaded), out);
    if (!replaced || policy == messages::AdapterPolicy::kFinish) return 0;
    std::int64_t num_retracted = 0;
    for (Request* request : requests_.all(OpenRequests::Which::kAll)) {
        if (request->adapter_id() != replaced) continue;
        const bool starts_anew =
            policy == messages::AdapterPolicy::kRecompute || request->is_to_score();
        if (request->is_running() && starts_anew) {
            retract(*request);
            ++num_retracted;
        } else if (request->is_running()) {
            pool_.stop_sharing(request->lease);
        }
        request->adapter = adapters_.move(*replaced, out);
    }
    return num_retracted;
}

std::int64_t Runner::abort_all(
    OpenRequests::Which which, const std::string& message, TurnOutput& out
) {
    const std::vector<Request*> all = requests_.all(which);
    for (Request* request : all) abort(*request, message, out);
    return std::ssize(all);
}

void Runner::refuse_older_kv(Epoch floor) {
    for (Request* request : requests_.all(OpenRequests::Which::kStarted)) request->kv_floor = floor;
}

std::optional<messages::StepPlan> Runner::plan_step(
    Scope scope, const Version& version, TurnOutput& out
) {
    std::optional<messages::StepPlan> plan = next_plan(scope, version);
    if (adapters_.places().is_limited()) settle_adapters(out);
    pool_.serve_adapters(adapters_.all_serving());
    return plan;
}

// The orders may precede the plan, because none concerns the adapter version of a planned row:
// requests of the planned step count as running.
void Runner::settle_adapters(TurnOutput& out) {
    for (const auto& [id, why] : adapters_.advance(now_, requests_.started_adapters(), out)) {
        for (Request* request : requests_.all(OpenRequests::Which::kAll)) {
            if (request->adapter_id() == id && !request->is_running())
                finish(*request, {.reason = messages::FinishReason::kError, .verdict = why}, out);
        }
    }
}

std::optional<messages::StepPlan> Runner::next_plan(Scope scope, const Version& version) {
    if (steps_.is_full() || awaits_drafts()) return std::nullopt;
    StepPlanner planner({
        .requests = requests_,
        .pool = pool_,
        .tallies = tallies_,
        .adapters = adapters_.places(),
        .step = steps_.next_step(),
        .version = version,
        .now = now_,
        .tokens_max = config_.tokens_per_step_max,
        .routes = limits_.routes,
        .drafter = drafter_ ? &*drafter_ : nullptr,
        .budget = budget_ ? &*budget_ : nullptr,
    });
    std::optional<StepPlanner::Planned> planned = planner.plan(scope);
    if (!planned) return std::nullopt;
    steps_.push(std::move(planned->step));
    return std::move(planned->plan);
}

// Returns whether the step that runs determines what some request drafts next.
bool Runner::awaits_drafts() {
    if (!drafter_ || steps_.empty()) return false;
    const auto has_drafts = [](const Request* request) { return request->progress.drafted() > 0; };
    return std::ranges::any_of(requests_.running(), has_drafts) || is_worth_waiting();
}

// Returns whether drafts that are worth their cost are likely to follow the tokens being sampled.
bool Runner::is_worth_waiting() {
    std::size_t num_rows = 0;
    std::vector<DraftBudget::Offer> offers;
    for (const Request* request : requests_.running()) {
        if (request->progress.pending() == 0) continue;
        const std::size_t row = num_rows++;
        if (!Drafter::may_draft(*request)) continue;
        for (const double likelihood : drafter_->awaited(*request)) {
            if (!budget_) return true;
            offers.push_back({likelihood, row});
        }
    }
    if (!budget_) return false;
    DraftBudget::sort(offers);
    return budget_->is_worth(static_cast<std::int64_t>(num_rows), offers);
}

void Runner::report_to(messages::ReplicaStatus& status, TimePoint now) const {
    pool_.report_to(status);
    tallies_.report_to(status, now);
    status.num_waiting = requests_.num_waiting();
    status.num_running = requests_.num_running();
    status.steps_in_flight = std::ssize(steps_.all());
    if (const auto began_at = steps_.began_at()) status.step_age_s = seconds(now - *began_at);
    status.num_retracted = requests_.num_retracted();
    status.queue_len_max = config_.queue_len_max;
    status.adapters = adapters_.status();
    status.lost_adapters = adapters_.lost();
    if (drafter_) status.drafts = tallies_.drafts;
}

std::optional<std::string> Runner::audit(Epoch serving) const {
    std::vector<const Lease*> held;
    for (const Request* request : requests_.running()) {
        held.push_back(&request->lease);
        if (pool_.pages_for(request->progress.planned()) > std::ssize(request->lease.pages))
            return fmt::format("request {}: positions without pages", raw(request->key));
    }
    if (auto problem = pool_.audit(held, {serving, adapters_.all_serving()})) return problem;
    if (auto problem = adapters_.audit(requests_.num_by_adapter())) return problem;
    if (auto problem = steps_.audit(serving)) return problem;
    return requests_.audit(steps_.num_sampled());
}

}  // namespace pitstop::scheduler
