// Defines the one state machine of a weight update, at each of its three levels: the tree
// (tokenizer_proc) asks its replicas, a replica (scheduler_proc) asks its ranks, a rank (tp_worker)
// asks its background. At each level an order asks all, collects the answers of all, and goes on
// (or one fails, and the update is dropped): update_round.h.
//
//   staged    stage -> prepared; ready -> ready; commit -> committed
//   session   open -> open; fill -> open, any number of times; stage -> prepared; and so on
//   direct    ready -> stopped; stage, over the live copy -> ready; commit -> committed
//   rollback  as staged, but nothing is brought: the retained copy is there
//
// It is pure: an enum, a table, and functions of them.
#pragma once

#include "messages/fields.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace pitstop::messages {

enum class UpdatePhase : std::uint8_t {
    kIdle,         // nothing was ordered; of a rank: nothing was written
    kOpening,      // a session's stage is being made
    kOpen,         // a session, between two calls
    kFilling,      // a bucket of it is on its way
    kStaging,      // bytes come into the shadow copy; at the end they are verified and voted for
    kPrepared,     // all have voted yes
    kReadying,     // what runs comes to where the swap can happen at once
    kReady,        // all are prepared and stand: only now may a commit be ordered
    kStopping,     // direct: what runs comes to its end
    kStopped,      // direct: nothing runs
    kOverwriting,  // direct: bytes come over the live copy
    kCommitting,   // the swap is ordered: nothing brings the version before it back
    kCommitted,
    kDropping,  // the stage is being forgotten
    kDropped,
};
template <>
struct EnumNames<UpdatePhase> {
    static constexpr std::array<std::string_view, 15> kNames{
        "idle",
        "opening",
        "open",
        "filling",
        "stage",
        "prepared",
        "readying",
        "ready",
        "stopping",
        "stopped",
        "overwriting",
        "committing",
        "committed",
        "dropping",
        "dropped"};
};

// Says what is asked of everybody on the level below.
enum class UpdateOrder : std::uint8_t { kOpen, kFill, kStage, kReady, kCommit, kDrop };
template <>
struct EnumNames<UpdateOrder> {
    static constexpr std::array<std::string_view, 6> kNames{
        "open", "fill", "stage", "ready", "commit", "drop"};
};

struct UpdateTransition {
    UpdatePhase from{};
    UpdateOrder order{};
    UpdatePhase asking{};  // until all have answered
    UpdatePhase done{};    // once all have done it

    friend bool operator==(const UpdateTransition&, const UpdateTransition&) = default;
};

// Only the drops are missing here: an update may be dropped in every phase before its commit.
inline constexpr std::array kUpdateTransitions{
    UpdateTransition{
        UpdatePhase::kIdle, UpdateOrder::kOpen, UpdatePhase::kOpening, UpdatePhase::kOpen},
    UpdateTransition{
        UpdatePhase::kOpen, UpdateOrder::kFill, UpdatePhase::kFilling, UpdatePhase::kOpen},
    UpdateTransition{
        UpdatePhase::kOpen, UpdateOrder::kStage, UpdatePhase::kStaging, UpdatePhase::kPrepared},
    UpdateTransition{
        UpdatePhase::kIdle, UpdateOrder::kStage, UpdatePhase::kStaging, UpdatePhase::kPrepared},
    UpdateTransition{
        UpdatePhase::kPrepared, UpdateOrder::kReady, UpdatePhase::kReadying, UpdatePhase::kReady},
    UpdateTransition{
        UpdatePhase::kIdle, UpdateOrder::kReady, UpdatePhase::kStopping, UpdatePhase::kStopped},
    UpdateTransition{
        UpdatePhase::kStopped, UpdateOrder::kStage, UpdatePhase::kOverwriting, UpdatePhase::kReady},
    UpdateTransition{
        UpdatePhase::kReady,
        UpdateOrder::kCommit,
        UpdatePhase::kCommitting,
        UpdatePhase::kCommitted},
};

// Returns what the order does in that phase; nothing if it may not come then.
[[nodiscard]] constexpr std::optional<UpdateTransition> transition(
    UpdatePhase from, UpdateOrder order
) {
    if (order == UpdateOrder::kDrop && from < UpdatePhase::kCommitting)
        return UpdateTransition{from, order, UpdatePhase::kDropping, UpdatePhase::kDropped};
    for (const UpdateTransition& row : kUpdateTransitions) {
        if (row.from == from && row.order == order) return row;
    }
    return std::nullopt;
}

// Returns whether `ready` was ordered: what runs has been asked to stand, and does so until the
// update is over.
[[nodiscard]] constexpr bool is_asked_to_stand(UpdatePhase phase) {
    return phase >= UpdatePhase::kReadying && phase < UpdatePhase::kCommitting;
}

// Says in what state an engine is, as callers are told.
enum class UpdateState : std::uint8_t {
    kServing,
    kAwaitingWeights,  // it has none
    kTorn,
    kCollecting,  // calls without a session that become one update
    kOpening,     // from here on it names the phase of the update under way
    kOpen,
    kFilling,
    kStaging,
    kStaged,
    kReadying,
    kCommitting,
    kDropping,
};
template <>
struct EnumNames<UpdateState> {
    static constexpr std::array<std::string_view, 12> kNames{
        "serving",
        "awaiting_weights",
        "torn",
        "collecting",
        "open_stage",
        "open",
        "fill",
        "stage",
        "staged",
        "ready",
        "commit",
        "drop"};
};

// kServing means that no update is under way.
[[nodiscard]] constexpr UpdateState state_of(UpdatePhase phase) {
    switch (phase) {
        case UpdatePhase::kOpening:
            return UpdateState::kOpening;
        case UpdatePhase::kOpen:
            return UpdateState::kOpen;
        case UpdatePhase::kFilling:
            return UpdateState::kFilling;
        case UpdatePhase::kStaging:
        case UpdatePhase::kOverwriting:
            return UpdateState::kStaging;
        case UpdatePhase::kPrepared:
            return UpdateState::kStaged;
        case UpdatePhase::kReadying:
        case UpdatePhase::kReady:
        case UpdatePhase::kStopping:
        case UpdatePhase::kStopped:
            return UpdateState::kReadying;
        case UpdatePhase::kCommitting:
            return UpdateState::kCommitting;
        case UpdatePhase::kDropping:
            return UpdateState::kDropping;
        case UpdatePhase::kIdle:
        case UpdatePhase::kCommitted:
        case UpdatePhase::kDropped:
            break;
    }
    return UpdateState::kServing;
}

}  // namespace pitstop::messages
