// Defines what goes into a turn of the scheduler and what comes out: messages and the time, nothing
// else.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/generation.h"
#include "messages/greeting.h"
#include "messages/keep.h"
#include "messages/replica_calls.h"
#include "messages/replica_standing.h"
#include "messages/steps.h"
#include "messages/update_orders.h"
#include "messages/worker_orders.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace pitstop::scheduler {

// Comes from the doors, in the order sent: calls that every replica answers, and orders.
// EndRequests may come with requests too.
using Control = messages::VariantOf<decltype(
    messages::ReplicaCalls{} + messages::MessageList<
                                   messages::EndRequests,
                                   messages::UpdateStage,
                                   messages::UpdateFill,
                                   messages::UpdateFinish,
                                   messages::UpdateReady,
                                   messages::UpdateCommit,
                                   messages::UpdateDrop,
                                   messages::UpdateRollback,
                                   messages::WorkerReadTensor,
                                   messages::WorkerDigest,
                                   messages::WorkerGroup,
                                   messages::WorkerKeep>{}
)>::Type;

// They come in the order of arrival; the rank in each is the sender's.
using FromWorker = std::variant<
    messages::WorkerHello,
    messages::StepResult,
    messages::WorkerFilled,
    messages::WorkerStaged,
    messages::WorkerCommitted,
    messages::WorkerDropped,
    messages::WorkerTensor,
    messages::WorkerDigests,
    messages::WorkerMemoryDone,
    messages::WorkerGrouped,
    messages::WorkerKept>;

// These go to every rank of the replica, each the same, in this order: the order is P1.
using ToWorkers = messages::VariantOf<
    decltype(messages::MessageList<messages::StepPlan>{} + messages::WorkerOrders{})>::Type;

using ToTokenizer = messages::VariantOf<decltype(
    messages::ReplicaParts{} + messages::MessageList<
                                   messages::SchedulerHello,
                                   messages::UpdatePart,
                                   messages::UpdateWaits,
                                   messages::ReplicaStanding,
                                   messages::WorkerTensor,
                                   messages::WorkerDigests,
                                   messages::WorkerGrouped,
                                   messages::WorkerKept>{}
)>::Type;

struct TurnInput {
    TimePoint now{};  // the only clock the turn sees; never before the last turn's
    std::vector<Control> control{};
    std::vector<messages::TokenizedRequest> requests{};
    std::vector<FromWorker> workers{};
    std::int64_t num_refused = 0;  // messages that the loop refused with nobody to answer
};

struct TurnOutput {
    std::vector<ToWorkers> workers{};
    std::vector<ToTokenizer> tokenizer{};
    std::optional<messages::TokenBatch> batch{};  // to the detokenizer
    std::optional<TimePoint> wake_at{};           // a turn is due then even if nothing arrives
    std::optional<Error> fatal{};  // this replica cannot go on: the workers broke the protocol
};

inline constexpr std::size_t kPendingCallsMax = 1024;           // not yet answered, per kind
inline constexpr auto kCallTimeout = std::chrono::minutes(10);  // for calls that name none

// Returns when a call that was made `now` is late; with 0 ms, after kCallTimeout.
[[nodiscard]] TimePoint deadline_of(TimePoint now, std::int64_t timeout_ms);

// Returns the earlier of two, where there are two.
[[nodiscard]] std::optional<TimePoint> earlier(
    std::optional<TimePoint> a, std::optional<TimePoint> b
);

}  // namespace pitstop::scheduler
