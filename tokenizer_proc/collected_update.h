// Calls without a session that become one update (docs/weights.md), and the calls that wait for
// that update, or for their turn.
//
// A call that lets generation continue publishes the collection: first the update is committed, and
// then the call starts, within its own deadline.
//
// Thread:  the loop thread only.
// Bounded: held_calls.h, lost_calls.h and admin_updates.h bound what it owns.
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
    // All outlive this. `calls` are those that wait for the replicas.
    CollectedUpdate(
        int num_replicas, AdminUpdates& updates, const CallFanout& calls, AdminOutbox& out
    )
        : num_replicas_(num_replicas),
          updates_(updates),
          calls_(calls),
          out_(out),
          standings_(num_replicas) {}

    // Lets a call act on the current update, with all that follows for other calls. `what` is
    // called with the coordinator and its output.
    template <class Drive>
    void drive(TimePoint now, Drive what) {
        react(now, updates_.drive(now, std::move(what)));
    }

    // Loads the next adapter of the previous tree, if no update is in progress.
    void bring_back_next(TimePoint now);

    // ---- calls that wait ----
    [[nodiscard]] bool must_wait(const HeldCall& call) const;
    // Errors: too many wait.
    Result<> hold(HeldCall call) { return held_.add(std::move(call)); }
    // Starts the calls that no longer need to wait, in the order of arrival.
    void start_held(TimePoint now);
    void tick(TimePoint now);
    [[nodiscard]] TimePoint next_deadline() const;
    // Answers every call that waits with this error, and starts none any more.
    void fail_all(const Error& error);

    // ---- calls that are collected ----
    // Returns whether a partial update becomes a part of the collection.
    [[nodiscard]] bool joins(const messages::UpdateWeights& message) const;
    // REQUIRES: joins(message).
    void join(TimePoint now, const std::string& peer, const messages::UpdateWeights& message);
    // Returns whether the label of a set_weight_label is the collection's.
    [[nodiscard]] bool takes_label() const { return coordinator().is_collecting() && !closing_; }
    // Names the collection, and answers. REQUIRES: takes_label().
    void name(const std::string& peer, const messages::SetWeightLabel& message);
    // Returns whether a complete update with this spec replaces the collection: in a tree without
    // weights it does, unless it would be refused.
    [[nodiscard]] bool is_replaced_by(const messages::UpdateSpec& spec) const;
    // Drops the collection, and then starts the call. REQUIRES: is_replaced_by().
    Result<> replace(TimePoint now, HeldCall then) {
        return close(now, Closing::kDrop, std::move(then));
    }

    // ---- calls that let generation continue ----
    // Returns whether such a call publishes now; one that a replica would refuse does not.
    [[nodiscard]] bool lets_generation_go_on(const messages::ContinueGeneration& call) const;
    [[nodiscard]] bool lets_generation_go_on(const messages::ResumeMemory& call) const;
    // Refuses a continue that would leave collected calls behind.
    [[nodiscard]] Result<> check_none_is_collected(TimePoint now) const;
    // Refuses the call, and drops what is collected, if its caller does not know of lost calls.
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

    // ---- what is lost ----
    // A call was refused that may be a part of a version: its trainer may ignore answers.
    void lose_part(TimePoint now, const Error& why);
    // A part was refused while no call is collected: during the standstill, the trainer's other
    // calls could become a version without it.
    void miss_part(TimePoint now, const Error& why);
    // Handles what was unfinished when the previous tree ended.
    void begin_after(TimePoint now, const Restart& restart);
    // Refuses a part that names the label of lost calls, or comes too soon after them.
    Result<> check_late_part(TimePoint now, const std::string& label) {
        return lost_calls_.check_late_part(now, label);
    }
    void recall(TimePoint now, const std::string& label) { lost_calls_.recall(now, label); }

    // A replica reports that it runs again, or has stopped.
    void handle_standing(TimePoint now, messages::ReplicaStanding standing);
    // Returns what a pause's answer says of calls that are collected or lost.
    [[nodiscard]] std::string note_for_pause(TimePoint now);
    [[nodiscard]] Unfinished unfinished() const;
    [[nodiscard]] std::optional<messages::LostCalls> report_lost(TimePoint now) const {
        return lost_calls_.report(now);
    }

  private:
    enum class Closing { kCommit, kDrop };
    // A call that waits while the collected update is being committed or dropped.
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
    // Answers the call if the commit has failed. Returns whether it has.
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
