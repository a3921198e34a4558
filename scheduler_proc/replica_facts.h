// The state of the replica, computed from all parts of its scheduler, and the objections to a
// call.
//
// Pure: functions of the parts, which must outlive this struct.
#pragma once

#include "base/result.h"
#include "messages/memory.h"
#include "messages/replica_standing.h"
#include "messages/status.h"
#include "scheduler_proc/pause.h"
#include "scheduler_proc/replica_memory.h"
#include "scheduler_proc/replica_update.h"
#include "scheduler_proc/runner.h"
#include "scheduler_proc/scheduler_config.h"
#include "scheduler_proc/workers.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

struct ReplicaFacts {
    const SchedulerConfig& config;
    const Workers& workers;
    const Runner& runner;
    const Pause& pause;
    const ReplicaUpdate& update;
    const ReplicaMemory& memory;

    [[nodiscard]] messages::ReplicaState state() const;
    // Returns the state that the door must know; it is sent whenever it changes.
    [[nodiscard]] messages::ReplicaStanding standing() const;
    // Returns the current state, as `status` reports it.
    [[nodiscard]] messages::ReplicaStatus status(TimePoint now) const;
    // Returns how much may be planned, leaving flushes aside.
    [[nodiscard]] Runner::Scope scope() const;

    // ---- objections; nothing if there is none ----
    // Objections to any call, until all ranks have loaded.
    [[nodiscard]] std::optional<Error> why_not_ready() const;
    // Objections to generating any token.
    [[nodiscard]] std::optional<Error> why_idle() const;
    // Objections to the end of a pause. Missing weights are no objection: open requests continue as
    // soon as an update brings weights.
    [[nodiscard]] std::optional<Error> why_not_on() const;
    // Objections to letting running requests finish (drain).
    [[nodiscard]] std::optional<std::string> why_no_drain() const;
    // Objections to an update: ranks are still loading, or memory of the weights is released.
    [[nodiscard]] std::optional<std::string> why_no_update() const;
    // Objections to reading the live weights. Torn weights can be read: digests show what is torn.
    [[nodiscard]] std::optional<Error> why_unreadable() const;
    // Objections to a new label of the serving version.
    [[nodiscard]] std::optional<Error> why_no_label() const;
    // Objections to a release of these tags.
    [[nodiscard]] std::optional<Error> why_no_release(const std::vector<messages::MemoryTag>& tags
    ) const;
    // Objections to a resume of memory.
    [[nodiscard]] std::optional<Error> why_no_resume() const;

  private:
    // Returns whether some memory is neither resident nor lent.
    [[nodiscard]] bool is_released() const { return !memory.lacks_nothing_but_loan(); }
};

}  // namespace pitstop::scheduler
