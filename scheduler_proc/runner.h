// Runs the replica's requests. Each part has its own state:
//
//   OpenRequests   the running and waiting requests
//   Adapters       the loaded adapters, and the version of each request
//   Grammars       the grammars in the workers, and the grammar of each request
//   KvPool         KV pages, the prefix cache and the slots
//   Drafter        with speculation: guesses at the next tokens of requests
//   StepPlanner    the rows of the next step
//   StepsInFlight  the steps whose results are awaited
//
// The runner connects these parts: runner.cpp admits and ends requests; collect.cpp turns the
// results of a finished step into chunks and spans.
//
// Up to two steps are in flight: the next one is planned while one runs. Workers run steps and
// commits in the order sent, so a plan may build on the results of an earlier one. Drafts build on
// known tokens. So while some request waits for drafts, or has drafts in the step that runs, the
// next step is planned after that step has ended.
//
// Over 500 lines: the arrival of a request, each part of a result and each end change most of these
// parts, in an order that this class sets. Code that concerns one part belongs to its class.
//
// The runner knows no pauses, flushes, updates or released memory: its caller says how much may be
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

    // Takes over the model's limits and makes the pool. REQUIRES: workers.is_complete(); no request
    // was added before.
    void open(const Workers& workers);
    void begin_turn(TimePoint now);

    // ---- requests ----
    // `refusal`: why no request is accepted now. Every request is answered.
    void enqueue(
        messages::TokenizedRequest arrived, const std::optional<Error>& refusal, TurnOutput& out
    );
    void end_requests(const messages::EndRequests& ends, TurnOutput& out);
    void end_conversations(const messages::EndConversations& ends) {
        for (const auto id : ends.ids) pool_.end_conversation(id);
    }
    // Puts all running requests back to the head of the queue: their tokens stay, their pages are
    // freed. Returns how many requests were retracted.
    std::int64_t retract_all();
    // Retracts only the requests that are to be scored: a commit makes them start anew (P3).
    std::int64_t retract_scorings();
    // Aborts requests. Returns how many.
    std::int64_t abort_all(OpenRequests::Which which, const std::string& message, TurnOutput& out);
    // Requests that have run no longer get KV of epochs before `floor`, whatever they tolerate.
    void refuse_older_kv(Epoch floor);

    // ---- adapters ----
    [[nodiscard]] Adapters& adapters() { return adapters_; }
    bool handle_moved(const messages::AdapterMove auto& answer, TurnOutput& out) {
        return adapters_.record(now_, answer, out);
    }
    // From now on the version serves its name. `policy` decides how open requests of the replaced
    // version continue. Returns how many requests were retracted.
    std::int64_t commit_adapter(AdapterUse loaded, messages::AdapterPolicy policy, TurnOutput& out);

    // ---- grammars ----
    // Requests that wait for the grammar may start, or end with an error if it cannot be compiled.
    // Returns false if no such compilation was ordered.
    bool handle_compiled(const messages::WorkerCompiled& answer, TurnOutput& out);

    // ---- steps ----
    using Scope = StepPlanner::Scope;
    // Returns the next step, under `version`; nothing if no request can advance, or enough steps
    // are in flight. Also orders the restores of adapters that waiting requests need.
    [[nodiscard]] std::optional<messages::StepPlan> plan_step(
        Scope scope, const Version& version, TurnOutput& out
    );
    // Returns false if the rank's result belongs to no step in flight, or is its second one.
    bool collect_result(messages::StepResult result, TurnOutput& out);

    // ---- the prefix cache ----
    std::int64_t clear_cache() { return pool_.clear_cache(); }
    void begin_epoch(Epoch serving) { pool_.begin_epoch(serving); }

    [[nodiscard]] const StepsInFlight& steps() const { return steps_; }
    [[nodiscard]] std::optional<TimePoint> next_deadline() const {
        return earlier(
            earlier(steps_.next_deadline(), adapters_.places().next_deadline()),
            pool_.conversations().next_deadline()
        );
    }
    [[nodiscard]] const OpenRequests& requests() const { return requests_; }
    [[nodiscard]] const ModelLimits& limits() const { return limits_; }

    // Counts messages that were refused with nobody to answer.
    void count_refused(std::int64_t num) { tallies_.num_refused += num; }
    // Sets the rate to 0 until tokens are generated again.
    void stop_rate() { tallies_.output_rate.stop(now_); }
    // From now on, counts the durations of steps separately, for an update that is being staged.
    void watch_steps() { tallies_.step_times.watch(); }
    [[nodiscard]] const StepTimes::Watched& watched_steps() const {
        return tallies_.step_times.watched();
    }
    // Fills in the runner's fields of the status.
    void report_to(messages::ReplicaStatus& status, TimePoint now) const;
    // The number of rows that were computed in vain, for requests that had ended.
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
    // finish() and abort() send the request's last chunk.
    void finish(Request& request, messages::Finish how, TurnOutput& out);
    void abort(Request& request, const std::string& message, TurnOutput& out);

    [[nodiscard]] std::optional<messages::StepPlan> next_plan(Scope scope, const Version& version);
    void settle_adapters(TurnOutput& out);

    // ---- collect.cpp ----
    void finish_step(const InFlightStep& step, TurnOutput& out);
    void collect_row(
        const InFlightStep& step, const StepRow& row, ResultReader& reader, TurnOutput& out
    );
    // The whole row, or the part of a row with drafts that ends with one sampled token.
    struct RowPart {
        std::int64_t end = 0;  // positions [0, end) have KV after this part
        std::int64_t output_index = 0;
        const SampledToken* sampled = nullptr;  // null: the row does not sample
        std::span<const std::uint8_t> routes{};
        const messages::NotFiniteRow* bad = nullptr;  // concerns the whole row
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
    std::optional<DraftBudget> budget_{};  // with --speculate auto
    EarlyEnds early_ends_{};
    RequestKey last_key_{};

    StepsInFlight steps_;
    TimePoint now_{};         // time of this turn
    std::uint64_t turn_ = 0;  // counted from 1
    Tallies tallies_{};
};

}  // namespace pitstop::scheduler
