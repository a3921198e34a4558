// Runs the replica's requests, with parts that each keep their own books:
//
//   OpenRequests   the running and waiting requests
//   Adapters       the loaded ones, and the version of each request
//   Grammars       those that the workers compile or have compiled, and the one of each request
//   KvPool         their KV pages, the prefix cache and the slots
//   Drafter        with speculation: guesses at their next tokens
//   StepPlanner    which rows the next step has
//   StepsInFlight  the steps whose results are awaited
//
// The runner connects these parts: runner.cpp handles requests in and out, collect.cpp the results
// of a finished step, in chunks and spans.
//
// Up to two steps are in flight: the next one is planned while one runs. Workers run steps and
// commits in the order sent, so a plan may build on the results of an earlier one. Drafts build on
// known tokens: while some request waits for drafts, or has drafts in the step that runs, that step
// ends before the next one is planned.
//
// Over 500 lines: the arrival of a request, each part of a result and each end change most of these
// books, in one order, which is here. What concerns one book alone belongs to its class.
//
// Pauses, flushes, updates and released memory are unknown here: the caller says how much may be
// planned, and under which version.
//
// Owns:    every open request, and the pool of KV pages.
// Thread:  the loop thread only.
// Bounded: requests by queue_len_max and running_max, pages by the workers' hellos.
#pragma once

#include "scheduler_proc/adapters.h"
#include "scheduler_proc/draft_budget.h"
#include "scheduler_proc/drafter.h"
#include "scheduler_proc/early_ends.h"
#include "scheduler_proc/grammars.h"
#include "scheduler_proc/kv_pool.h"
#include "scheduler_proc/open_requests.h"
#include "scheduler_proc/scheduler_config.h"
#include "scheduler_proc/step_planner.h"
#include "scheduler_proc/steps_in_flight.h"
#include "scheduler_proc/tallies.h"
#include "scheduler_proc/turn.h"
#include "scheduler_proc/workers.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class Runner {
  public:
    explicit Runner(const SchedulerConfig& config);

    // The model and the pool are known. REQUIRES: workers.is_complete(); no request was added
    // before.
    void open(const Workers& workers);
    void begin_turn(TimePoint now);

    // ---- requests ----
    // `refusal`: why no request is accepted now. The request is answered in any case.
    void enqueue(
        messages::TokenizedRequest arrived, const std::optional<Error>& refusal, TurnOutput& out
    );
    void end_requests(const messages::EndRequests& ends, TurnOutput& out);
    void end_conversations(const messages::EndConversations& ends) {
        for (const auto id : ends.ids) pool_.end_conversation(id);
    }
    // Puts all running requests back to the head of the queue: their tokens stay, their pages are
    // freed. Returns how many.
    std::int64_t retract_all();
    // The same for those requests only that are to be scored: a commit makes them start anew (P3).
    std::int64_t retract_scorings();
    // Returns how many were aborted.
    std::int64_t abort_all(OpenRequests::Which which, const std::string& message, TurnOutput& out);
    // Requests that ran before no longer get KV of older versions, whatever they tolerate.
    void refuse_older_kv(Epoch floor);

    // ---- adapters ----
    [[nodiscard]] Adapters& adapters() { return adapters_; }
    bool handle_moved(const messages::AdapterMove auto& answer, TurnOutput& out) {
        return adapters_.record(now_, answer, out);
    }
    [[nodiscard]] const Adapters& adapters() const { return adapters_; }
    // From now on the version serves its name. `policy` decides how open requests for the replaced
    // version continue. Returns how many were retracted.
    std::int64_t commit_adapter(AdapterUse loaded, messages::AdapterPolicy policy, TurnOutput& out);

    // ---- grammars ----
    // The requests that wait for the grammar may start, or end with why it cannot be compiled.
    // Returns false if it was not ordered.
    bool handle_compiled(const messages::WorkerCompiled& answer, TurnOutput& out);

    // ---- steps ----
    using Scope = StepPlanner::Scope;
    // Returns the next step, which runs under `version`; nothing if no request can advance, or
    // enough steps are in flight. Also orders what waiting requests need of adapters.
    [[nodiscard]] std::optional<messages::StepPlan> plan_step(
        Scope scope, const Version& version, TurnOutput& out
    );
    // Returns false if the rank's result belongs to no step in flight, or arrived before.
    bool collect_result(messages::StepResult result, TurnOutput& out);

    // ---- the prefix cache ----
    std::int64_t clear_cache() { return pool_.clear_cache(); }
    void begin_epoch(Epoch serving) { pool_.begin_epoch(serving); }

    [[nodiscard]] const StepsInFlight& steps() const { return steps_; }
    [[nodiscard]] std::optional<TimePoint> next_deadline() const {
        return earlier(steps_.next_deadline(), adapters_.places().next_deadline());
    }
    [[nodiscard]] const OpenRequests& requests() const { return requests_; }
    [[nodiscard]] const ModelLimits& limits() const { return limits_; }

    // Counts messages that were refused with nobody to answer.
    void count_refused(std::int64_t num) { tallies_.num_refused += num; }
    // Nothing is generated now: the rate is 0 until something is again.
    void stop_rate() { tallies_.output_rate.stop(now_); }
    // Counts the durations of steps separately from now on, for an update that is staged meanwhile.
    void watch_steps() { tallies_.step_times.watch(); }
    [[nodiscard]] const StepTimes::Watched& watched_steps() const {
        return tallies_.step_times.watched();
    }
    // Fills in the runner's fields of the status.
    void report_to(messages::ReplicaStatus& status, TimePoint now) const;
    // The rows that were computed once too often, for requests that had ended.
    [[nodiscard]] std::int64_t num_rows_dropped() const { return tallies_.num_rows_dropped; }

    // Returns which invariant is broken, or nothing; steps in flight run under `serving` or older.
    [[nodiscard]] std::optional<std::string> audit(Epoch serving) const;

  private:
    // ---- runner.cpp ----
    void retract(Request& request);
    void push_out(TurnOutput& out);
    void end_request(
        RequestKey key, messages::EndCause cause, const std::string& message, TurnOutput& out
    );
    void take_grammar(Request& request, const messages::Grammar& grammar, TurnOutput& out);
    void remove(Request& request, TurnOutput& out);
    // Both with its last chunk.
    void finish(Request& request, messages::Finish how, TurnOutput& out);
    void abort(Request& request, const std::string& message, TurnOutput& out);

    [[nodiscard]] std::optional<messages::StepPlan> next_plan(Scope scope, const Version& version);
    void settle_adapters(TurnOutput& out);

    // ---- collect.cpp ----
    void finish_step(const InFlightStep& step, TurnOutput& out);
    void collect_row(
        const InFlightStep& step, const StepRow& row, ResultReader& reader, TurnOutput& out
    );
    // The part of a row that ends with a sampled token, or the whole row.
    struct RowPart {
        std::int64_t end = 0;  // positions [0, end) have KV then
        std::int64_t output_index = 0;
        const SampledToken* sampled = nullptr;  // null: the row does not sample
        std::span<const std::uint8_t> routes{};
        const messages::NotFiniteRow* bad = nullptr;  // of the whole row
    };
    void collect_drafted(
        const InFlightStep& step,
        const StepRow& row,
        RowPart part,
        std::span<const SampledToken> sampled,
        std::span<const std::uint8_t> routes,
        TurnOutput& out
    );
    void collect_part(
        Request& request,
        const InFlightStep& step,
        const StepRow& row,
        const RowPart& part,
        const RowScores& scores,
        TurnOutput& out
    );
    void note_version(Request& request, const InFlightStep& step, const StepRow& row);
    void count_drafts(Request& request, const StepRow& row, std::size_t num_sampled);
    void forget_pages(const StepRow& row, std::int64_t position);
    void collect_token(
        Request& request,
        const InFlightStep& step,
        const StepRow& row,
        const RowPart& part,
        TurnOutput& out
    );
    [[nodiscard]] bool awaits_drafts();
    [[nodiscard]] bool is_worth_waiting();
    messages::OutputChunk& chunk_of(Request& request, TurnOutput& out);
    void tell_counts(const Request& request, messages::OutputChunk& chunk) const;
    void refuse(messages::TokenizedRequest& arrived, messages::Finish how, TurnOutput& out);
    [[nodiscard]] messages::TokenBatch& batch_of(TurnOutput& out) const;

    SchedulerConfig config_;
    ModelLimits limits_{};

    KvPool pool_{};
    OpenRequests requests_;
    Adapters adapters_;
    Grammars grammars_{};
    std::optional<Drafter> drafter_{};     // empty: no speculation
    std::optional<DraftBudget> budget_{};  // --speculate auto
    EarlyEnds early_ends_{};
    RequestKey last_key_{};

    StepsInFlight steps_;
    TimePoint now_{};         // time of this turn
    std::uint64_t turn_ = 0;  // counted from 1
    Tallies tallies_{};
};

}  // namespace pitstop::scheduler
