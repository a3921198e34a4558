// What the parts of a scheduler say together: the state of the replica, and what speaks against a
// call.
//
// Pure: functions of the parts, which outlive this.
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
    // Returns what the door must know, whenever it changes.
    [[nodiscard]] messages::ReplicaStanding standing() const;
    // Returns the present state, as `status` reports it.
    [[nodiscard]] messages::ReplicaStatus status(TimePoint now) const;
    // Returns how much may be planned. A flush has no say here.
    [[nodiscard]] Runner::Scope scope() const;

    // ---- what speaks against something, or nothing ----
    // Against any call, until all ranks have loaded.
    [[nodiscard]] std::optional<Error> why_not_ready() const;
    // Against the generation of anything.
    [[nodiscard]] std::optional<Error> why_idle() const;
    // Against the end of a pause. Missing weights are no reason: open requests continue as soon as
    // an update brings weights.
    [[nodiscard]] std::optional<Error> why_not_on() const;
    // Against running requests finishing (drain).
    [[nodiscard]] std::optional<std::string> why_no_drain() const;
    // Against an update: there are no weights to stage over, roll back to or make ready.
    [[nodiscard]] std::optional<std::string> why_no_update() const;
    // Against reading the live weights. Torn weights can be read: digests show what is torn.
    [[nodiscard]] std::optional<Error> why_unreadable() const;
    // Against a new label of the version that serves.
    [[nodiscard]] std::optional<Error> why_no_label() const;
    // Against a release of these tags.
    [[nodiscard]] std::optional<Error> why_no_release(const std::vector<messages::MemoryTag>& tags
    ) const;
    // Against a resume of memory.
    [[nodiscard]] std::optional<Error> why_no_resume() const;

  private:
    // Returns whether some memory is not resident, and not lent either.
    [[nodiscard]] bool is_released() const { return !memory.lacks_nothing_but_loan(); }
};

}  // namespace pitstop::scheduler
