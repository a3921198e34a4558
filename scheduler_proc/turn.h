// The input and the output of a turn of the scheduler: messages and the time.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/adapter_moves.h"
#include "messages/generation.h"
#include "messages/grammars.h"
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
#include <string>
#include <variant>
#include <vector>

namespace pitstop::scheduler {

// From the doors, in the order sent: calls that every replica answers, and orders. EndRequests may
// also arrive on the socket of requests.
using Control = messages::VariantOf<decltype(
    messages::ReplicaCalls{} + messages::MessageList<
                                   messages::EndRequests,
                                   messages::EndConversations,
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

// In the order of arrival; the rank in each message is the sender's.
using FromWorker = std::variant<
    messages::WorkerHello,
    messages::StepResult,
    messages::WorkerCompiled,
    messages::WorkerNotEvicted,
    messages::WorkerRestored,
    messages::WorkerFilled,
    messages::WorkerStaged,
    messages::WorkerCommitted,
    messages::WorkerDropped,
    messages::WorkerTensor,
    messages::WorkerDigests,
    messages::WorkerMemoryDone,
    messages::WorkerGrouped,
    messages::WorkerKept>;

// Each message goes to every rank of the replica, in this order (P1).
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
    TimePoint now{};  // the time that the turn sees; never before the last turn's
    std::vector<Control> control{};
    std::vector<messages::TokenizedRequest> requests{};
    std::vector<FromWorker> workers{};
    std::int64_t num_refused = 0;  // messages that the loop refused; no sender was told
};

// The launcher gets this news, and passes it to the scheduler of a restarted tree.
struct AdapterNews {
    std::string name{};
    std::string line{};  // names the version that serves from now on; empty: none serves
};

struct TurnOutput {
    std::vector<ToWorkers> workers{};
    std::vector<ToTokenizer> tokenizer{};
    std::optional<messages::TokenBatch> batch{};  // to the detokenizer
    std::vector<AdapterNews> adapters{};
    std::optional<TimePoint> wake_at{};  // the next turn is due then even if nothing arrives
    std::optional<Error> fatal{};  // this replica cannot continue: the workers broke the protocol
};

inline constexpr std::size_t kPendingCallsMax = 1024;           // calls not yet answered, per kind
inline constexpr auto kCallTimeout = std::chrono::minutes(10);  // for calls without a timeout

// Returns when a call made at `now` is late; with 0 ms, after kCallTimeout.
[[nodiscard]] TimePoint deadline_of(TimePoint now, std::int64_t timeout_ms);

// Returns the earlier of the times that exist.
[[nodiscard]] std::optional<TimePoint> earlier(
    std::optional<TimePoint> a, std::optional<TimePoint> b
);

}  // namespace pitstop::scheduler
