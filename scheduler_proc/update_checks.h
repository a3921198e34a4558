// The objections to an order of the door about an update, before anything is done.
//
// Pure: functions of their arguments.
#pragma once

#include "base/result.h"
#include "messages/update_orders.h"
#include "messages/update_round.h"
#include "messages/weights.h"
#include "scheduler_proc/replica_weights.h"
#include "scheduler_proc/scheduler_config.h"
#include "scheduler_proc/update_job.h"

#include <optional>
#include <string>

namespace pitstop::scheduler {

// An objection of other parts of the scheduler.
using WhyNot = std::optional<std::string>;

// The state of this replica that an order meets.
struct UpdateFacts {
    const SchedulerConfig& config;
    const ReplicaWeights& weights;
    const std::optional<UpdateJob>& job;  // the current update
};

// Staging a session only opens it; the session's buckets transfer the bytes.
[[nodiscard]] messages::UpdateOrder order_of(const messages::UpdateStage& order);

[[nodiscard]] std::optional<Error> problem_of_stage(
    const messages::UpdateStage& order, const WhyNot& why_not, const UpdateFacts& facts
);
[[nodiscard]] std::optional<Error> problem_of_fill(
    const messages::UpdateFill& order, const UpdateFacts& facts
);
// Returns why no update may begin, or nothing. `order` names it in the message.
[[nodiscard]] std::optional<Error> problem_of_order(
    std::string_view order,
    messages::UpdateId update,
    const WhyNot& why_not,
    const UpdateFacts& facts
);
[[nodiscard]] std::optional<Error> problem_of_rollback(
    const messages::UpdateRollback& order, const WhyNot& why_not, const UpdateFacts& facts
);
[[nodiscard]] std::optional<Error> problem_of_ready(
    const messages::UpdateReady& order, const WhyNot& why_not, const UpdateFacts& facts
);
[[nodiscard]] std::optional<Error> problem_of_commit(
    const messages::UpdateCommit& order, const UpdateFacts& facts
);

}  // namespace pitstop::scheduler
