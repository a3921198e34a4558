// What goes into a turn of the scheduler and what comes out: messages and the time, nothing else.
#pragma once

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

#include <chrono>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace pitstop::scheduler {

// From the doors, in the order sent. EndRequests may come with requests too.
using Control = std::variant<
    messages::Status,
    messages::EndRequests,
    messages::PauseGeneration,
    messages::ContinueGeneration,
    messages::FlushCache,
    messages::SetWeightLabel,
    messages::ReleaseMemory,
    messages::ResumeMemory,
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
    messages::WorkerKeep>;

// In the order of arrival; the rank in each is the sender's.
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

// To every rank of the replica, each the same, in this order: the order is P1.
using ToWorkers = std::variant<
    messages::StepPlan,
    messages::WorkerStage,
    messages::WorkerFill,
    messages::WorkerFinish,
    messages::WorkerCommit,
    messages::WorkerDrop,
    messages::WorkerReadTensor,
    messages::WorkerDigest,
    messages::WorkerMemory,
    messages::WorkerGroup,
    messages::WorkerKeep>;

using ToTokenizer = std::variant<
    messages::SchedulerHello,
    messages::ReplicaStatus,
    messages::PausePart,
    messages::ContinuePart,
    messages::FlushPart,
    messages::LabelPart,
    messages::MemoryPart,
    messages::UpdatePart,
    messages::UpdateWaits,
    messages::WorkerTensor,
    messages::WorkerDigests,
    messages::WorkerGrouped,
    messages::WorkerKept>;

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

inline constexpr std::size_t kPendingCallsMax = 1024;           // of one kind, not yet answered
inline constexpr auto kCallTimeout = std::chrono::minutes(10);  // of calls that name none

// When a call that was made `now` is late. 0 ms: after kCallTimeout.
[[nodiscard]] TimePoint deadline_of(TimePoint now, std::int64_t timeout_ms);

// As `now + from_seconds(s)` cannot overflow: ten years at most.
[[nodiscard]] Duration from_seconds(double seconds);

[[nodiscard]] inline double seconds(Duration duration) {
    return std::chrono::duration<double>(duration).count();
}

// The earlier of two, where there are two.
[[nodiscard]] std::optional<TimePoint> earlier(
    std::optional<TimePoint> a, std::optional<TimePoint> b
);

}  // namespace pitstop::scheduler
