// Reports about an update, from this replica to the door: the replica's part of an order's answer,
// and the ranks that it waits for. Each part names the version that serves here.
//
// Pure: functions of their arguments.
#pragma once

#include "base/result.h"
#include "messages/update_orders.h"
#include "scheduler_proc/update_checks.h"
#include "scheduler_proc/update_job.h"

#include <optional>
#include <string>

namespace pitstop::scheduler {

// The answer to an order of the current update: done, or failed. REQUIRES: facts.job.
[[nodiscard]] messages::UpdatePart answer_to(
    messages::UpdateOrder order, std::optional<Error> error, const UpdateFacts& facts
);
// The answer to an order that is refused.
[[nodiscard]] messages::UpdatePart refusal_of(
    messages::UpdateId update, messages::UpdateOrder order, Error error, const UpdateFacts& facts
);
// The answer to the drop of an update that was refused here, or never arrived.
[[nodiscard]] messages::UpdatePart nothing_to_drop(
    const messages::UpdateDrop& order, const UpdateFacts& facts
);
// The ranks that have not answered the current commit or drop. REQUIRES: facts.job.
[[nodiscard]] messages::UpdateWaits awaited_by(const UpdateFacts& facts);

}  // namespace pitstop::scheduler
