// The scheduler core of one replica: a pure state machine (design section 4). Facts go in,
// decisions come out. The class reads no clock and no socket, has no threads, and iterates over
// nothing ordered by hash or address. So a recorded trace replays to the same plans, and tests/sim
// drives the class with a virtual clock.
//
// Five state machines, independent of each other; only turn() connects them:
//
//   Runner         requests, queue, pages, prefix cache, steps in flight
//   Pause          the pause of generation, and the calls that wait for it
//   CacheFlushes   the calls that wait for a flush of the prefix cache
//   ReplicaUpdate  this replica's part of a weight update, and its weights
//   ReplicaMemory  the memory that is released
//
// Thread:  the loop thread only.
// Bounded: by the bounds of its parts.
#pragma once

#include "scheduler_proc/cache_flushes.h"
#include "scheduler_proc/pause.h"
#include "scheduler_proc/replica_facts.h"
#include "scheduler_proc/replica_memory.h"
#include "scheduler_proc/replica_update.h"
#include "scheduler_proc/runner.h"
#include "scheduler_proc/scheduler_config.h"
#include "scheduler_proc/turn.h"
#include "scheduler_proc/workers.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

class Scheduler {
  public:
    // REQUIRES: !problem_of(config).
    explicit Scheduler(SchedulerConfig config);
    // Not copyable: a copy's requests would point into the original.
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;
    Scheduler(Scheduler&&) = default;
    Scheduler& operator=(Scheduler&&) = default;

    [[nodiscard]] TurnOutput turn(TurnInput in);

    // Returns the current state, as `status` reports it.
    [[nodiscard]] messages::ReplicaStatus status(TimePoint now, CallId call) const;

    // Returns which invariant is broken, or nothing. For tests and the simulator:
    // visits everything.
    [[nodiscard]] std::optional<std::string> audit() const;

    [[nodiscard]] const Version& version() const { return update_.weights().version(); }
    [[nodiscard]] bool is_ready() const { return workers_.is_complete(); }
    [[nodiscard]] bool is_paused() const { return pause_.is_paused(); }
    [[nodiscard]] bool is_torn() const { return update_.weights().are_torn(); }
    [[nodiscard]] bool has_weights() const { return update_.weights().are_whole(); }
    [[nodiscard]] bool is_all_resident() const { return memory_.is_all_resident(); }
    [[nodiscard]] bool has_request(RequestKey key) const { return runner_.requests().has(key); }
    [[nodiscard]] std::int64_t num_open() const { return runner_.requests().num_open(); }
    [[nodiscard]] std::size_t num_in_flight() const { return runner_.steps().all().size(); }
    // The number of late messages, all harmless: results of steps not in flight, second answers,
    // unexpected votes.
    [[nodiscard]] std::int64_t num_late() const { return num_late_; }
    // The number of rows that were computed in vain, for requests that had ended.
    [[nodiscard]] std::int64_t num_rows_dropped() const { return runner_.num_rows_dropped(); }

  private:
    // ---- scheduler.cpp: the turn ----
    void handle_control(Control& message, std::vector<CallId>& status_calls, TurnOutput& out);
    void handle_worker(FromWorker& message, TurnOutput& out);
    void handle_hello(messages::WorkerHello hello, TurnOutput& out);
    void advance(TurnOutput& out);          // answers calls whose condition is met
    void end_late_calls(TurnOutput& out);   // answers calls whose deadline has passed
    void report_standing(TurnOutput& out);  // if it differs from the last report
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;
    [[nodiscard]] Runner::Scope scope() const {
        return flushes_.holds_plans() ? Runner::Scope::kNothing : facts().scope();
    }
    // The combined state of the parts, and their objections to calls.
    [[nodiscard]] ReplicaFacts facts() const {
        return {config_, workers_, runner_, pause_, update_, memory_};
    }

    // ---- calls.cpp: the effects of a call on all five machines ----
    void handle(const messages::PauseGeneration& call, TurnOutput& out);
    void handle(const messages::ContinueGeneration& call, TurnOutput& out);
    void handle(const messages::FlushCache& call, TurnOutput& out);
    void handle(const messages::SetWeightLabel& call, TurnOutput& out);
    void handle(const messages::UnloadAdapter& call, TurnOutput& out);
    void handle(const messages::ReleaseMemory& call, TurnOutput& out);
    void handle(const messages::ResumeMemory& call, TurnOutput& out);
    void handle(const messages::UpdateReady& order, TurnOutput& out);
    void handle(const messages::UpdateCommit& order, TurnOutput& out);
    void handle(const messages::WorkerReadTensor& call, TurnOutput& out);
    void handle(const messages::WorkerDigest& call, TurnOutput& out);
    void advance_memory(TurnOutput& out);
    // ---- loan.cpp: the KV cache's memory, lent to an update ----
    void stage(messages::UpdateStage order, TurnOutput& out);
    void roll_back(const messages::UpdateRollback& order, TurnOutput& out);
    void finish_loan(TurnOutput& out);
    void answer_memory(std::optional<messages::MemoryPart> part, TurnOutput& out) const;

    SchedulerConfig config_;
    Workers workers_;
    Runner runner_;
    Pause pause_;
    CacheFlushes flushes_;
    ReplicaUpdate update_;
    ReplicaMemory memory_;
    TimePoint now_{};                   // time of this turn
    messages::ReplicaStanding told_{};  // the last report to the door
    std::int64_t num_late_ = 0;
};

}  // namespace pitstop::scheduler
