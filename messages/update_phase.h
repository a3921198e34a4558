// The state machine of a weight update, for each of its three levels. The tree (tokenizer_proc)
// asks its replicas, a replica (scheduler_proc) its ranks, and a rank (tp_worker) its background
// thread. Each level sends an order to all its participants. Once all have answered, the update
// proceeds; if one fails, the update is dropped (update_round.h).
//
//   staged    stage -> prepared; ready -> ready; commit -> committed
//   session   open -> open; fill -> open, any number of times; then as staged
//   direct    ready -> stopped; stage, over the live copy -> ready; commit -> committed
//   rollback  as staged, but nothing is transferred: the retained copy is used
//
// Pure: an enum, a table, and functions of both.
#pragma once

#include "messages/fields.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace pitstop::messages {

enum class UpdatePhase : std::uint8_t {
    kIdle,         // no order was given; for a rank: nothing was written
    kOpening,      // a session's stage is being created
    kOpen,         // between two calls of a session
    kFilling,      // a bucket of the session is being transferred
    kStaging,      // the shadow copy is being filled; then it is verified and voted on
    kPrepared,     // all participants have voted yes
    kReadying,     // running work proceeds to a point where the swap can happen at once
    kReady,        // all are prepared and generation has stopped; only now may a commit be ordered
    kStopping,     // direct: running work is being stopped
    kStopped,      // direct: nothing runs
    kOverwriting,  // direct: the live copy is being overwritten
    kCommitting,   // the swap is ordered: the previous version cannot be restored
    kCommitted,
    kDropping,  // the stage is being discarded
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

// The orders of a level to all its participants.
enum class UpdateOrder : std::uint8_t { kOpen, kFill, kStage, kReady, kCommit, kDrop };
template <>
struct EnumNames<UpdateOrder> {
    static constexpr std::array<std::string_view, 6> kNames{
        "open", "fill", "stage", "ready", "commit", "drop"};
};

struct UpdateTransition {
    UpdatePhase from{};
    UpdateOrder order{};
    UpdatePhase asking{};  // the phase until all participants have answered
    UpdatePhase done{};    // the phase once all have completed the order

    friend bool operator==(const UpdateTransition&, const UpdateTransition&) = default;
};

// All transitions except drops: an update may be dropped in every phase before its commit.
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

// Returns the transition for this order in that phase; nothing if the order is not allowed.
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

// Returns whether `ready` was ordered: running work must stop until the update has ended.
[[nodiscard]] constexpr bool is_asked_to_stand(UpdatePhase phase) {
    return phase >= UpdatePhase::kReadying && phase < UpdatePhase::kCommitting;
}

// The state of an engine, as reported to callers.
enum class UpdateState : std::uint8_t {
    kServing,
    kAwaitingWeights,  // the tree has no weights
    kTorn,
    kCollecting,  // calls without a session, which will become one update
    kOpening,     // kOpening and all later states are phases of the update
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

// Returns the state of an engine whose update has this phase; kServing: no update is in progress.
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
