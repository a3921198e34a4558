// The output of an update: orders to the replicas, answers to callers.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/update_orders.h"
#include "messages/weights.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace pitstop::tokenizer {

// The caller to answer.
struct UpdateCaller {
    std::string peer{};
    CallId call{};
    std::string_view what{};  // the call's type
    // True if the call may be a part of a version whose calls name no session.
    bool may_be_part = false;
    std::string adapter{};  // the adapter that the call is for; empty: the model's weights
};

using ReplicaOrder = std::variant<
    messages::UpdateStage,
    messages::UpdateFill,
    messages::UpdateFinish,
    messages::UpdateReady,
    messages::UpdateCommit,
    messages::UpdateDrop,
    messages::UpdateRollback>;

// Calls that were answered as collected, but take no effect.
struct LostCollection {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;  // staged, over all ranks
    std::string why{};       // empty: drop_stage dropped them
    std::string told{};      // the peer whose commit failed, and which knows of that; empty: none
    std::string label{};     // the label in the calls
};

struct UpdateOutput {
    std::vector<ReplicaOrder> orders{};  // each order goes to every replica
    std::vector<std::pair<UpdateCaller, messages::UpdateReply>> replies{};
    std::vector<std::string> notes{};  // events without a caller, for the log
    std::optional<LostCollection> lost{};
    // The refusal of a call that may be a part of a version.
    std::optional<Error> part_refused{};
    bool has_made_whole = false;  // a collection that needed every tensor took effect
};

}  // namespace pitstop::tokenizer
