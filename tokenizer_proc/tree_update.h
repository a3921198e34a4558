// One update over all replicas: its contents, its calls and their callers, its phase, and the
// phase's deadline.
//
// A session takes several calls. A collection is a session that no call opened: partial updates of
// a paused tree, or of one without weights, are its buckets.
//
// Pure: time in, orders out; sends nothing itself.
// Thread:  the loop thread only.
// Bounded: one answer per replica, one waiting caller.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/status.h"
#include "messages/update_orders.h"
#include "messages/weights.h"
#include "tokenizer_proc/serving_weights.h"
#include "tokenizer_proc/session_calls.h"
#include "tokenizer_proc/update_answers.h"
#include "tokenizer_proc/update_output.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::tokenizer {

class TreeUpdate {
  public:
    // The timeouts of calls without one, and of actions without a caller.
    static constexpr auto kCallTimeout = std::chrono::minutes(10);
    static constexpr auto kDropTimeout = std::chrono::seconds(10);
    // After its deadline, a caller waits this much longer for a drop, which usually takes less.
    static constexpr auto kDropGrace = std::chrono::milliseconds(200);
    static constexpr auto kStagedHoldMax = std::chrono::hours(1);
    static constexpr auto kSessionIdle = std::chrono::minutes(5);  // for sessions without a timeout

    struct Start {
        messages::UpdateId id{};
        messages::UpdateSpec spec{};
        Epoch new_epoch{};
        // The phase up to which the update proceeds without further calls: kOpen for a session,
        // kPrepared for a stage, until the call that commits.
        messages::UpdatePhase goal = messages::UpdatePhase::kCommitted;
        bool is_rollback = false;
    };
    TreeUpdate(TimePoint now, std::size_t num_replicas, Start start)
        : start_(std::move(start)), begun_(now), answers_(num_replicas) {}

    // Makes the update a session that a caller opened.
    void open_session(const messages::BeginUpdate& call);
    // Makes the update a collection; `first` is its first bucket.
    void open_collection(TimePoint now, messages::WeightSource first);

    // ---- what it is ----
    [[nodiscard]] messages::UpdateId id() const { return start_.id; }
    [[nodiscard]] std::uint64_t number() const { return static_cast<std::uint64_t>(start_.id); }
    [[nodiscard]] const messages::UpdateSpec& spec() const { return start_.spec; }
    [[nodiscard]] Epoch new_epoch() const { return start_.new_epoch; }
    [[nodiscard]] bool is_of_adapter() const { return !start_.spec.adapter.empty(); }
    [[nodiscard]] bool is_rollback() const { return start_.is_rollback; }
    [[nodiscard]] bool is_session() const { return kind_ == Kind::kSession; }
    [[nodiscard]] bool is_collection() const { return kind_ == Kind::kCollection; }
    // The calls of a session or a collection.
    [[nodiscard]] const SessionCalls& calls() const { return calls_; }
    [[nodiscard]] const UpdateAnswers& answers() const { return answers_; }
    // "session 7"; describe() adds the adapter, the holder, the label and what was staged.
    [[nodiscard]] std::string name() const;
    [[nodiscard]] std::string describe() const;

    // ---- which phase it is in ----
    [[nodiscard]] messages::UpdatePhase phase() const { return answers_.phase(); }
    [[nodiscard]] std::string_view phase_name() const {
        return name_of(messages::state_of(phase()));
    }
    [[nodiscard]] bool is_open() const { return phase() == messages::UpdatePhase::kOpen; }
    [[nodiscard]] bool is_staged() const { return phase() == messages::UpdatePhase::kPrepared; }
    // Returns whether no call is in progress: a session is open, or a stage is held.
    [[nodiscard]] bool is_idle() const { return is_open() || is_staged(); }
    [[nodiscard]] bool is_committing() const {
        return phase() == messages::UpdatePhase::kCommitting;
    }
    [[nodiscard]] bool is_dropping() const { return phase() == messages::UpdatePhase::kDropping; }
    [[nodiscard]] bool is_collecting() const { return is_collection() && is_open(); }
    // Returns whether the update's goal is its commit, so that it needs no further call.
    [[nodiscard]] bool is_to_commit() const {
        return start_.goal == messages::UpdatePhase::kCommitted;
    }
    [[nodiscard]] bool is_to_stay_open() const {
        return start_.goal == messages::UpdatePhase::kOpen;
    }
    // Returns whether an update_weights or update_bucket is in progress, and its caller waits.
    [[nodiscard]] bool is_receiving() const;
    // Returns whether a commit, a rollback or a drop is in progress, which ends by its deadline.
    [[nodiscard]] bool is_ending() const {
        return deadline_ != TimePoint::max() && (is_dropping() || is_to_commit());
    }
    // Returns whether the update is being committed, and its calls name no session.
    [[nodiscard]] bool is_ending_unnamed() const {
        return (is_collection() || calls_.is_unnamed()) && is_to_commit() && !is_dropping() &&
               !is_receiving();
    }
    // Returns whether the update waits for running requests to finish.
    [[nodiscard]] bool is_draining() const {
        return phase() == messages::UpdatePhase::kReadying &&
               start_.spec.kv_policy == messages::KvPolicy::kDrain;
    }
    // Returns whether a refused call may be a part of the version that is being assembled.
    [[nodiscard]] bool may_lack_part() const {
        return is_to_stay_open() && !is_dropping() &&
               (is_collection() || (calls_.is_unnamed() && !calls_.is_unnamed_refused()));
    }
    // Returns whether replicas may have different weights, or one may be half-written. True if a
    // commit was ordered. Also true if a direct stage was ordered, unless every rank has reported
    // that it wrote nothing.
    [[nodiscard]] bool may_be_torn() const;

    // ---- the calls of the update ----
    // Lets a call begin or continue it.
    void wait_for(TimePoint now, UpdateCaller caller, std::int64_t timeout_ms);
    [[nodiscard]] const std::optional<UpdateCaller>& caller() const { return caller_; }
    [[nodiscard]] TimePoint called_at() const { return called_at_; }
    // REQUIRES: a caller waits.
    UpdateCaller take_caller() { return *std::exchange(caller_, std::nullopt); }
    // Counts the call of a bucket. `label`: the version's label in the call.
    void count_bucket(SessionCalls::Names names, std::string label);
    // The first call of a collection with a label names the version; name_version() may rename it.
    void name_by_call(const std::string& label);
    void name_version(std::string label) { start_.spec.label = std::move(label); }
    // Returns whether calls that name no session are parts of the update.
    [[nodiscard]] bool may_be_mixed() const { return is_collection() || calls_.is_any_nameless(); }
    void set_kv_policy(messages::KvPolicy policy) { start_.spec.kv_policy = policy; }
    // Adds a note to the next answer that is no refusal.
    void add_note(std::string note) { note_ = std::move(note); }

    // ---- refusals ----
    // Returns the refusal of any other update; the text says what to do.
    [[nodiscard]] Error busy(TimePoint now) const;
    [[nodiscard]] Error call_under_way() const;
    // Returns why a call without a session cannot belong to the update now, or nothing. REQUIRES:
    // calls().is_unnamed().
    [[nodiscard]] std::optional<Error> not_unnamed() const;
    // ---- one session takes over from another ----
    struct Successor {
        messages::BeginUpdate call{};
        UpdateCaller caller{};
        std::string note{};       // for the successor's answer
        std::string took_over{};  // the name of the session that it replaces
        bool is_unnamed_refused = false;
    };
    // Sets the session to begin once this update is dropped.
    void set_successor(messages::BeginUpdate call) { successor_ = std::move(call); }
    // Returns the successor; nothing if none waits.
    [[nodiscard]] std::optional<Successor> take_successor(TimePoint now);
    void take_over(Successor predecessor);

    // ---- orders to the replicas; the phase must allow each ----
    // Returns the first order: to stage, to stop running work for a direct update, or to roll back.
    [[nodiscard]] ReplicaOrder begin(TimePoint now);
    [[nodiscard]] ReplicaOrder stage(TimePoint now);
    [[nodiscard]] ReplicaOrder fill(TimePoint now, messages::WeightSource source);
    // Called when the session has all its buckets.
    [[nodiscard]] ReplicaOrder finish(TimePoint now, std::string label, std::string digest);
    [[nodiscard]] ReplicaOrder ready(TimePoint now);
    [[nodiscard]] ReplicaOrder commit(TimePoint now);
    [[nodiscard]] ReplicaOrder drop(TimePoint now, Error why);
    // Returns, once, the bucket that arrived while the collection was being opened.
    [[nodiscard]] std::optional<messages::WeightSource> take_first_source() {
        return std::exchange(first_source_, std::nullopt);
    }
    void commit_when_staged() { start_.goal = messages::UpdatePhase::kCommitted; }

    // ---- answers ----
    // REQUIRES: answers().awaits(part).
    messages::UpdateRound::Progress record(const messages::UpdatePart& part) {
        return answers_.record(part);
    }
    // Records which ranks a replica waits for. Returns false if the replica does not exist, or no
    // commit or drop is in progress.
    bool record_awaited(messages::UpdateWaits waits);
    // Called when every replica has the new version, whose label and digest are in the answers.
    void record_prepared(TimePoint now);
    // Called when every replica is ready for the next call: its session is open, or it is prepared.
    void record_idle(TimePoint now);
    // Returns whether a caller was told that the session is open.
    [[nodiscard]] bool has_been_open() const { return idle_since_.has_value(); }
    [[nodiscard]] TimePoint deadline() const { return deadline_; }
    [[nodiscard]] Duration idle_timeout() const { return idle_timeout_; }
    // The caller stops waiting; the order completes when the replica answers.
    void wait_without_deadline() { deadline_ = TimePoint::max(); }
    [[nodiscard]] const Error& failure() const { return failure_; }
    // REQUIRES: record_prepared().
    [[nodiscard]] const std::string& label() const { return label_; }
    [[nodiscard]] const std::string& digest() const { return digest_; }

    // Records that the callers of a dropped collection know of the drop.
    void tell_loss() { is_loss_told_ = true; }
    // Returns the calls that take no effect if the collection is dropped for this reason; nothing
    // if no caller needs to be told.
    [[nodiscard]] std::optional<LostCollection> loss(const std::string& why) const;

    // ---- answers to callers ----
    // Returns the answer to the waiting caller. `state`: the engine's state.
    [[nodiscard]] messages::UpdateReply reply(
        TimePoint now,
        const std::optional<Error>& error,
        messages::UpdateState state,
        const ServedVersion& serving
    );
    [[nodiscard]] std::optional<messages::CollectingStatus> collecting(TimePoint now) const;
    // Returns nothing for a collection, or for an update that no further call continues.
    [[nodiscard]] std::optional<messages::SessionStatus> session(TimePoint now) const;

  private:
    enum class Kind : std::uint8_t {
        kSingle,      // one call; or a stage and its commit
        kSession,     // opened by a caller
        kCollection,  // a session that no call opened
    };
    [[nodiscard]] std::int64_t time_of_replicas(TimePoint now) const;

    Start start_;
    Kind kind_ = Kind::kSingle;
    // The times are for the answer's list of durations.
    TimePoint begun_;              // arrival of the first call
    TimePoint called_at_{};        // arrival of the current call
    TimePoint deadline_{};         // latest end of the current phase
    TimePoint caller_deadline_{};  // latest time of the caller's answer
    TimePoint collecting_since_{};
    std::optional<TimePoint> idle_since_{};  // time of the latest answer; absent: not open yet
    TimePoint last_prepared_{};
    TimePoint commit_ordered_{};
    std::optional<UpdateCaller> caller_{};  // absent while a stage is held
    // The members below are for sessions and collections only.
    Duration idle_timeout_{};
    SessionCalls calls_{};
    std::optional<messages::BeginUpdate> successor_{};
    std::optional<messages::WeightSource> first_source_{};
    std::string note_{};  // to be added to the next answer
    bool is_loss_told_ = false;

    UpdateAnswers answers_;
    std::string label_{};  // of the new version
    std::string digest_{};
    std::string config_digest_{};  // of an adapter
    Error failure_{};              // why it is being dropped
};

}  // namespace pitstop::tokenizer
