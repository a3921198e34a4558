// The scheduler: requests, queues, KV pages, prefix cache, pause state, weight updates of one
// replica. A pure state machine (design section 4): facts go in, decisions come out. It reads no
// clock and no socket, has no threads, and iterates nothing ordered by hash or address, so a
// recorded trace replays to the same plans, and tests/sim drives it with a virtual clock.
//
//   scheduler.cpp  the turn; requests in and out; pages, slots and leases
//   plan.cpp       which rows the next step has
//   collect.cpp    what a finished step brought; chunks and spans
//   control.cpp    pause, continue, flush, relabel
//   memory.cpp     release and resume
//   status.cpp     what it is doing
//   update.cpp     this replica's part of a weight update
//   audit.cpp      the invariants
//
// Up to two steps are in flight: the next one is planned while one runs. Workers run steps and
// commits in the order sent, so a plan may build on what an earlier one computes. Pages and slots
// that a request gives up go back only when no step in flight uses them (a Lease).
//
// Owns:    every request from its arrival to its last chunk; every page.
// Thread:  the loop thread only.
// Bounded: requests by queue_len_max and running_max, the rest by num_pages and named constants.
#pragma once

#include "base/fair_queue.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/control.h"
#include "messages/generation.h"
#include "messages/groups.h"
#include "messages/keep.h"
#include "messages/memory.h"
#include "messages/status.h"
#include "messages/steps.h"
#include "messages/update_orders.h"
#include "messages/weight_reads.h"
#include "messages/weights.h"
#include "scheduler_proc/early_ends.h"
#include "scheduler_proc/in_flight_step.h"
#include "scheduler_proc/memory_book.h"
#include "scheduler_proc/page_allocator.h"
#include "scheduler_proc/prefix_cache.h"
#include "scheduler_proc/request.h"
#include "scheduler_proc/tallies.h"
#include "scheduler_proc/update_job.h"
#include "scheduler_proc/waiting_queue.h"
#include "scheduler_proc/workers.h"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace pitstop::scheduler {

struct SchedulerConfig {
    ReplicaId replica{};
    int tp = 1;                              // ranks
    std::int64_t page_size = 16;             // tokens per page; the workers' too
    std::int64_t tokens_per_step_max = 512;  // --chunked-prefill-size
    std::int64_t running_max = 256;          // requests that hold pages; at most the workers' slots
    std::int64_t queue_len_max = 16384;      // requests that wait; at least 1
    Fairness fairness = Fairness::kFair;     // --scheduling
    Duration step_timeout = std::chrono::seconds(300);  // a pass that takes longer never ends
    // Of the weights that the workers load: another one where a tree was started again.
    Epoch epoch{1};
    std::string label{};
    std::string digest{};  // which these weights must have; empty: any
};
// What is wrong with it, or nothing.
[[nodiscard]] std::optional<Error> problem_of(const SchedulerConfig& config);

// From the doors, in the order sent. EndRequests may come with requests too.
using Control = std::variant<
    Status,
    EndRequests,
    PauseGeneration,
    ContinueGeneration,
    FlushCache,
    SetWeightLabel,
    ReleaseMemory,
    ResumeMemory,
    UpdateStage,
    UpdateFill,
    UpdateFinish,
    UpdateReady,
    UpdateCommit,
    UpdateDrop,
    UpdateRollback,
    WorkerReadTensor,
    WorkerDigest,
    WorkerGroup,
    WorkerKeep>;

// In the order of arrival; the rank in each is the sender's.
using FromWorker = std::variant<
    WorkerHello,
    StepResult,
    WorkerFilled,
    WorkerStaged,
    WorkerCommitted,
    WorkerDropped,
    WorkerTensor,
    WorkerDigests,
    WorkerMemoryDone,
    WorkerGrouped,
    WorkerKept>;

// To every rank of the replica, each the same, in this order: the order is P1.
using ToWorkers = std::variant<
    StepPlan,
    WorkerStage,
    WorkerFill,
    WorkerFinish,
    WorkerCommit,
    WorkerDrop,
    WorkerReadTensor,
    WorkerDigest,
    WorkerMemory,
    WorkerGroup,
    WorkerKeep>;

using ToTokenizer = std::variant<
    SchedulerHello,
    ReplicaStatus,
    PausePart,
    ContinuePart,
    FlushPart,
    LabelPart,
    MemoryPart,
    UpdatePart,
    UpdateWaits,
    WorkerTensor,
    WorkerDigests,
    WorkerGrouped,
    WorkerKept>;

struct TurnInput {
    TimePoint now{};  // the only clock the turn sees; never before the last turn's
    std::vector<Control> control{};
    std::vector<TokenizedRequest> requests{};
    std::vector<FromWorker> workers{};
    std::int64_t num_refused = 0;  // messages that the loop refused with nobody to answer
};

struct TurnOutput {
    std::vector<ToWorkers> workers{};
    std::vector<ToTokenizer> tokenizer{};
    std::optional<TokenBatch> batch{};   // to the detokenizer
    std::optional<TimePoint> wake_at{};  // a turn is due then even if nothing arrives
    std::optional<Error> fatal{};  // this replica cannot go on: the workers broke the protocol
};

class Scheduler {
  public:
    static constexpr std::size_t kStepsInFlightMax = 2;
    static constexpr std::size_t kPendingCallsMax = 1024;  // pauses and flushes not yet answered
    static constexpr auto kCallTimeout = std::chrono::minutes(10);  // of calls that name none

    // REQUIRES: !problem_of(config).
    explicit Scheduler(SchedulerConfig config);

    [[nodiscard]] TurnOutput turn(TurnInput in);

    // What is there now, as `status` reports it.
    [[nodiscard]] ReplicaStatus status(TimePoint now, CallId call) const;

    // Which invariant is broken, or nothing. For tests and the simulator; walks everything.
    [[nodiscard]] std::optional<std::string> audit() const;

    [[nodiscard]] const Version& version() const { return version_; }
    [[nodiscard]] bool is_ready() const { return workers_.is_complete(); }
    [[nodiscard]] bool is_paused() const { return pause_.has_value(); }
    [[nodiscard]] bool is_torn() const { return weights_ == Weights::kTorn; }
    [[nodiscard]] bool has_weights() const { return weights_ == Weights::kWhole; }
    [[nodiscard]] bool is_all_resident() const { return memory_.is_all_resident(); }
    [[nodiscard]] bool has_request(RequestKey key) const { return requests_.contains(key); }
    [[nodiscard]] std::int64_t num_open() const {
        return static_cast<std::int64_t>(requests_.size());
    }
    [[nodiscard]] std::size_t num_in_flight() const { return in_flight_.size(); }
    // Results of steps not in flight, second answers, votes nobody waits for: counted, no harm.
    [[nodiscard]] std::int64_t num_late() const { return num_late_; }
    // Rows computed once too often, for requests that had ended.
    [[nodiscard]] std::int64_t num_rows_dropped() const { return num_rows_dropped_; }

  private:
    // ---- scheduler.cpp ----
    void greet(WorkerHello hello, TurnOutput& out);
    void enqueue(TokenizedRequest arrived, TurnOutput& out);
    void push_out(TurnOutput& out);
    void end_requests(const EndRequests& ends, TurnOutput& out);
    void end_request(RequestKey key, EndCause cause, const std::string& message, TurnOutput& out);
    void finish(Request& request, Finish how, TurnOutput& out);  // with its last chunk
    void abort(Request& request, const std::string& message, TurnOutput& out);  // likewise
    void forget(Request& request);                                              // without
    void retract(Request& request);
    std::int64_t retract_all();
    std::int64_t abort_all(bool also_new, const std::string& message, TurnOutput& out);
    void leave_run(Request& request);
    void give_back(Lease lease, StepId last_step);
    void release(const Lease& lease);
    [[nodiscard]] bool is_in_flight(StepId step) const;
    [[nodiscard]] std::int64_t pages_for(std::int64_t num_tokens) const {
        return (num_tokens + config_.page_size - 1) / config_.page_size;
    }

    // ---- plan.cpp ----
    // What may be planned now.
    enum class Scope { kNothing, kStarted, kEverything };
    [[nodiscard]] Scope scope() const;
    struct Draft {
        Request* request = nullptr;
        std::int64_t num_new = 0;
    };
    [[nodiscard]] std::optional<StepPlan> plan_step(Scope scope, TimePoint now);
    void draft_decodes();
    void draft_prefills(std::int64_t& tokens_left);
    void admit(Scope scope, std::int64_t& tokens_left);
    void admit_next(
        Scope scope, std::int64_t& tokens_left, std::vector<const Request*>& passed_over
    );
    void start(Request& request, PrefixCache::Match match);
    [[nodiscard]] bool draft_row(Request& request, std::int64_t num_new);
    [[nodiscard]] bool reserve_pages(Request& request, std::int64_t num_tokens);
    [[nodiscard]] std::int64_t num_pages_coming() const;
    [[nodiscard]] std::int64_t num_pages_claimed() const;
    [[nodiscard]] StepPlan build_plan(TimePoint now);
    void add_row(const Draft& draft, StepPlan& plan, InFlightStep& step);
    void stamp_pages(Request& request, std::int64_t begin, std::int64_t end);
    enum class Duplicates { kKeep, kReplace };
    void cache_pages(Request& request, std::int64_t num_tokens, StepId step, Duplicates duplicates);

    // ---- collect.cpp ----
    void collect(StepResult result, TurnOutput& out);
    void finish_step(TurnOutput& out);
    void collect_row(
        const InFlightStep& step, const StepRow& row, ResultReader& reader, TurnOutput& out
    );
    void collect_scores(Request& request, const StepRow& row, const RowScores& scores);
    void collect_token(
        Request& request,
        const InFlightStep& step,
        const StepRow& row,
        const SampledToken& sampled,
        TurnOutput& out
    );
    OutputChunk& chunk_of(Request& request, TurnOutput& out);
    void refuse(TokenizedRequest& arrived, Finish how, TurnOutput& out);
    [[nodiscard]] TokenBatch& batch_of(TurnOutput& out) const;

    // ---- control.cpp ----
    struct Pause {
        PauseMode mode = PauseMode::kAbort;
        TimePoint since{};
        std::optional<TimePoint> until{};  // goes on by itself
        bool is_standing = false;          // no step in flight, nothing left to run out
    };
    struct PauseCall {
        CallId call{};
        TimePoint started{};
        TimePoint deadline{};
        PausePart part{};
    };
    struct FlushCall {
        CallId call{};
        TimePoint deadline{};
        bool waits_idle = false;  // else only for steps in flight, and nothing new starts meanwhile
    };
    void pause(const PauseGeneration& call, TurnOutput& out);
    void go_on(const ContinueGeneration& call, TurnOutput& out);
    [[nodiscard]] std::optional<Error> why_not_on() const;
    void end_overdue_pause(TurnOutput& out);
    void end_pause(const std::string& why, TurnOutput& out);
    void flush(const FlushCache& call, TurnOutput& out);
    void answer_flush(CallId call, TurnOutput& out);
    void set_label(const SetWeightLabel& call, TurnOutput& out);
    void read_tensor(const WorkerReadTensor& call, TurnOutput& out);
    void digest_weights(const WorkerDigest& call, TurnOutput& out);
    // Whether a request that ran before is still to run out.
    [[nodiscard]] bool has_started_requests() const {
        return !running_.empty() || waiting_.has_retracted();
    }
    void settle(TurnOutput& out);       // answers calls whose condition has come true
    void act_on_time(TurnOutput& out);  // and those whose deadline has come
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;
    [[nodiscard]] TimePoint deadline_of(std::int64_t timeout_ms) const;
    [[nodiscard]] std::string step_in_flight() const;
    [[nodiscard]] std::string who_holds_pages() const;
    [[nodiscard]] std::string state() const;

    // ---- memory.cpp ----
    // Of the live copy. kAwaited: none came yet, or they were released and not kept.
    enum class Weights { kWhole, kTorn, kAwaited };
    void release_memory(const ReleaseMemory& call, TurnOutput& out);
    void resume_memory(const ResumeMemory& call, TurnOutput& out);
    void settle_memory(TurnOutput& out);
    void hear_memory(const WorkerMemoryDone& answer);
    void end_late_memory_call(TurnOutput& out);
    void answer_memory(CallId call, std::optional<Error> error, bool was_done, TurnOutput& out)
        const;
    [[nodiscard]] std::optional<Error> problem_of_release(const std::vector<MemoryTag>& tags) const;
    [[nodiscard]] std::optional<Error> why_idle() const;
    [[nodiscard]] std::optional<Error> why_unreadable() const;
    [[nodiscard]] Error not_ready() const;

    // ---- update.cpp ----
    void stage(UpdateStage order, TurnOutput& out);
    void fill(UpdateFill order, TurnOutput& out);
    void finish_session(const UpdateFinish& order, TurnOutput& out);
    void make_ready(const UpdateReady& order, TurnOutput& out);
    void commit(const UpdateCommit& order, TurnOutput& out);
    void drop(const UpdateDrop& order, TurnOutput& out);
    void roll_back(const UpdateRollback& order, TurnOutput& out);
    void filled(WorkerFilled answer, TurnOutput& out);
    void staged(WorkerStaged vote, TurnOutput& out);
    void committed(const WorkerCommitted& answer, TurnOutput& out);
    void dropped(const WorkerDropped& answer, TurnOutput& out);
    void settle_update(TurnOutput& out);
    void fail_vote(Error error, TurnOutput& out);
    void end_late_stand(TurnOutput& out);
    void say_who_waits(TurnOutput& out) const;
    void swap_version();
    void apply_kv_policy(TurnOutput& out);
    void finish_drop(TurnOutput& out);
    void answer_update(std::string_view phase, std::optional<Error> error, TurnOutput& out) const;
    void refuse_update(UpdateId update, std::string_view phase, Error error, TurnOutput& out) const;
    [[nodiscard]] UpdatePart update_part(UpdateId update, std::string_view phase) const;
    [[nodiscard]] std::string_view update_state() const;

    SchedulerConfig config_;
    Workers workers_;
    ModelLimits limits_{};

    PageAllocator pages_{};
    PrefixCache cache_{};
    std::vector<SlotId> free_slots_{};  // a stack
    std::int64_t num_slots_ = 0;

    std::map<RequestKey, Request> requests_{};  // every open one
    WaitingQueue waiting_;
    std::vector<Request*> running_{};  // eldest first; the youngest gives way under pressure
    EarlyEnds early_ends_{};
    RequestKey last_key_{};

    StepId next_step_{1};
    std::deque<InFlightStep> in_flight_{};  // in the order sent
    std::vector<Draft> drafts_{};           // of the plan being made

    Version version_{};                  // that the next plan runs under
    std::optional<Version> retained_{};  // whose copy the workers still hold
    std::optional<UpdateJob> job_{};
    Weights weights_ = Weights::kWhole;  // anything else: nothing may run

    MemoryBook memory_;
    bool are_weights_kept_ = false;  // while they are released: in host memory
    std::uint64_t num_memory_orders_ = 0;

    std::optional<Pause> pause_{};
    std::string pause_expiry_{};  // ReplicaStatus::pause_expiry
    std::vector<PauseCall> pause_calls_{};
    std::vector<FlushCall> flush_calls_{};

    TimePoint now_{};         // of this turn
    std::uint64_t turn_ = 0;  // counted from 1
    Tallies tallies_{};
    std::int64_t num_late_ = 0;
    std::int64_t num_rows_dropped_ = 0;
};

}  // namespace pitstop::scheduler
