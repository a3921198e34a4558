// Collects calls without a session into one update (docs/weights.md). Also holds the calls that
// wait for that update, or for their turn.
//
// A call that lets generation continue publishes the collection: the update is committed first.
// Then the call starts, within its own deadline.
//
// Thread:  the loop thread only.
// Bounded: by held_calls.h, lost_calls.h and admin_updates.h, for its members.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/control.h"
#include "messages/memory.h"
#include "messages/replica_standing.h"
#include "messages/status.h"
#include "messages/weights.h"
#include "tokenizer_proc/admin_outbox.h"
#include "tokenizer_proc/admin_updates.h"
#include "tokenizer_proc/call_fanout.h"
#include "tokenizer_proc/held_calls.h"
#include "tokenizer_proc/lost_calls.h"
#include "tokenizer_proc/replica_standings.h"
#include "tokenizer_proc/unfinished.h"

#include <cstdint>
#include <optional>
#include <string>

namespace pitstop::tokenizer {

class CollectedUpdate {
  public:
    // REQUIRES: all arguments outlive this object. `calls`: the calls that wait for replicas.
    CollectedUpdate(
        int num_replicas, AdminUpdates& updates, const CallFanout& calls, AdminOutbox& out
    )
        : num_replicas_(num_replicas),
          updates_(updates),
          calls_(calls),
          out_(out),
          standings_(num_replicas) {}

    // Calls `what` with the coordinator and its output, so that a call acts on the current update.
    // Then handles the effects on other calls.
    template <class Drive>
    void drive(TimePoint now, Drive what) {
        react(now, updates_.drive(now, std::move(what)));
    }

    // Loads the next adapter of the previous tree, if no update is in progress.
    void bring_back_next(TimePoint now);

    // ---- calls that wait ----
    [[nodiscard]] bool must_wait(const HeldCall& call) const;
    // Lets the call wait. Errors: too many calls wait.
    Result<> hold(HeldCall call) { return held_.add(std::move(call)); }
    // Starts the calls that no longer need to wait, in the order of arrival.
    void start_held(TimePoint now);
    void tick(TimePoint now);
    [[nodiscard]] TimePoint next_deadline() const;
    // Answers every waiting call with this error; no further call starts.
    void fail_all(const Error& error);

    // ---- calls that are collected ----
    // Returns whether a partial update becomes a part of the collection.
    [[nodiscard]] bool joins(const messages::UpdateWeights& message) const;
    // REQUIRES: joins(message).
    void join(TimePoint now, const std::string& peer, const messages::UpdateWeights& message);
    // Returns whether set_weight_label names the collection, instead of the serving version.
    [[nodiscard]] bool takes_label() const { return coordinator().is_collecting() && !closing_; }
    // Sets the collection's label, and answers. REQUIRES: takes_label().
    void name(const std::string& peer, const messages::SetWeightLabel& message);
    // Returns whether a complete update with this spec replaces the collection: true in a tree
    // without weights, unless the update would be refused.
    [[nodiscard]] bool is_replaced_by(const messages::UpdateSpec& spec) const;
    // Drops the collection, and then starts the call. REQUIRES: is_replaced_by().
    Result<> replace(TimePoint now, HeldCall then) {
        return close(now, Closing::kDrop, std::move(then));
    }

    // ---- calls that let generation continue ----
    // Returns whether such a call publishes now; false if a replica would refuse the call.
    [[nodiscard]] bool lets_generation_go_on(const messages::ContinueGeneration& call) const;
    [[nodiscard]] bool lets_generation_go_on(const messages::ResumeMemory& call) const;
    // Refuses a continue that would leave collected calls without effect.
    [[nodiscard]] Result<> check_none_is_collected(TimePoint now) const;
    // Refuses the call, and drops collected calls, if its caller does not know of a loss.
    Result<> check_loss(TimePoint now, const std::string& peer);
    // Returns whether a call waits for the collection's commit or drop.
    [[nodiscard]] bool is_closing() const { return closing_.has_value(); }
    // Returns whether a collection must be committed before generation continues.
    [[nodiscard]] bool is_to_publish() const {
        return coordinator().is_collecting() && !coordinator().is_collecting_all();
    }
    // Commits the collection, and then starts the call. REQUIRES: is_to_publish().
    Result<> publish(TimePoint now, HeldCall then) {
        return close(now, Closing::kCommit, std::move(then));
    }

    // ---- lost calls ----
    // Handles the refusal of a call that may be part of a version: its trainer may ignore answers.
    void lose_part(TimePoint now, const Error& why);
    // Called when a part is refused while no call is collected: during the standstill, the
    // trainer's other calls could become a version without this part.
    void miss_part(TimePoint now, const Error& why);
    // Records the work that was unfinished when the previous tree ended.
    void begin_after(TimePoint now, const Restart& restart);
    // Refuses a part that names the label of lost calls, or that arrives too soon after a loss.
    Result<> check_late_part(TimePoint now, const std::string& label) {
        return lost_calls_.check_late_part(now, label);
    }
    void recall(TimePoint now, const std::string& label) { lost_calls_.recall(now, label); }

    // Handles a replica's report that it runs again, or has stopped.
    void handle_standing(TimePoint now, messages::ReplicaStanding standing);
    // Returns the text that a pause's answer adds about calls that are collected or lost.
    [[nodiscard]] std::string note_for_pause(TimePoint now);
    [[nodiscard]] Unfinished unfinished() const;
    [[nodiscard]] std::optional<messages::LostCalls> report_lost(TimePoint now) const {
        return lost_calls_.report(now);
    }

  private:
    enum class Closing { kCommit, kDrop };
    // A call that waits for the commit or drop of the collected update.
    struct ClosingCall {
        Closing how{};
        HeldCall then{};
        std::int64_t num_calls = 0;
        std::optional<messages::UpdateReply> outcome{};
    };
    [[nodiscard]] const UpdateCoordinator& coordinator() const { return updates_.coordinator(); }
    void react(TimePoint now, AdminUpdates::Events events);
    [[nodiscard]] static bool publishes(const HeldCall& call);
    [[nodiscard]] bool may_be_too_late() const;
    [[nodiscard]] bool must_wait_for_update(const HeldCall& call) const;
    void tell_late(TimePoint now, const HeldCall& call);
    void expire_held(TimePoint now);
    Result<> close(TimePoint now, Closing how, HeldCall then);
    void finish_closing(TimePoint now);
    // Answers the call if the commit failed. Returns whether it failed.
    bool answer_failed_commit(const ClosingCall& closing);

    int num_replicas_;
    AdminUpdates& updates_;
    const CallFanout& calls_;
    AdminOutbox& out_;
    ReplicaStandings standings_;
    HeldCalls held_{};
    bool is_starting_held_ = false;
    std::optional<ClosingCall> closing_{};
    LostCalls lost_calls_{updates_.coordinator(), standings_};
};

}  // namespace pitstop::tokenizer
