// Drives one weight update over all replicas (messages/update_phase.h has its phases).
//
// A session is dropped if no call continues it in time. A collection is a session that no call
// opened: partial updates of a paused tree, or of one without weights, are its buckets. It is
// committed by the call that lets generation continue, by commit_weights, or with the last
// missing tensor.
//
// A commit is ordered only when every rank of every replica has reported prepared and ready. Before
// that, any failure, disagreement or lateness drops the stage everywhere, and the old version
// continues to serve (P2). After that order only a process can fail, which ends the tree.
//
// Pure: time in, orders and replies out, without clock or socket.
// Owns:    the current update, and what is known of the version that serves.
// Thread:  the loop thread only.
// Bounded: one update at a time; a second one is refused meanwhile.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/status.h"
#include "messages/update_orders.h"
#include "messages/update_round.h"
#include "messages/weights.h"
#include "tokenizer_proc/ended_sessions.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pitstop::tokenizer {

// The version that serves, the same on every replica.
struct ServedVersion {
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::string path{};  // the checkpoint it came from; empty: no single directory has all of it

    friend bool operator==(const ServedVersion&, const ServedVersion&) = default;
};

class UpdateCoordinator {
  public:
    // The caller to be answered.
    struct Caller {
        std::string peer{};
        CallId call{};
        std::string_view what{};  // the call's type
        // Whether the call may be a part of a version whose calls name no session.
        bool may_be_part = false;
    };
    using Order = std::variant<
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
        std::string told{};  // the peer whose commit failed, and which therefore knows; empty: none
        std::string label{};  // the label that the calls named
    };
    struct Out {
        std::vector<Order> orders{};  // each goes to every replica
        std::vector<std::pair<Caller, messages::UpdateReply>> replies{};
        std::vector<std::string> notes{};  // events that no caller asked for, for the log
        std::optional<LostCollection> lost{};
        // Why a call that may be a part of a version was refused.
        std::optional<Error> part_refused{};
        bool has_made_whole = false;  // a collection that needed every tensor took effect
    };

    // The timeouts of calls without one, and of actions without a caller.
    static constexpr auto kCallTimeout = std::chrono::minutes(10);
    static constexpr auto kDropTimeout = std::chrono::seconds(10);
    // After its deadline, a caller waits this much longer for a drop, which usually takes less.
    static constexpr auto kDropGrace = std::chrono::milliseconds(200);
    static constexpr auto kStagedHoldMax = std::chrono::hours(1);
    static constexpr auto kSessionIdle = std::chrono::minutes(5);  // for sessions without a timeout

    explicit UpdateCoordinator(int num_replicas, messages::UpdateId first = messages::UpdateId{1})
        : num_replicas_(num_replicas),
          next_id_(first),
          has_weights_(static_cast<std::size_t>(num_replicas), true) {}

    // Sets the version that serves from the start.
    void set_version(ServedVersion version) { decided_ = version_ = std::move(version); }
    // Records a new label of the serving version, on every replica.
    void relabel(std::string label) { decided_.label = version_.label = std::move(label); }
    // Records whether a replica has weights; it has none if they were released and not kept, or
    // never arrived.
    void set_has_weights(ReplicaId replica, bool has_weights);

    // Handles each call of messages/weights.h.
    void handle(TimePoint now, Caller caller, const messages::UpdateWeights& call, Out& out);
    void handle(TimePoint now, Caller caller, const messages::StageWeights& call, Out& out);
    void handle(TimePoint now, Caller caller, const messages::BeginUpdate& call, Out& out);
    void handle(TimePoint now, Caller caller, const messages::UpdateBucket& call, Out& out);
    // Handles an update that names no session: as a bucket of the session that was begun for such
    // calls, or with a refusal if such a session was lost. Returns false if neither applies.
    bool take_unnamed(TimePoint now, Caller caller, const messages::UpdateWeights& call, Out& out);
    // What a collection must contain before it can take effect.
    enum class Brings { kParts, kAllTensors };
    // Adds a partial update to the collection, which becomes one update. The call is answered when
    // its part is staged. Only the first call's `brings` counts; if no version serves that a part
    // could change, all tensors must arrive. REQUIRES: may_collect(call).
    void collect(
        TimePoint now, Caller caller, const messages::UpdateWeights& call, Brings brings, Out& out
    );
    // Sets the label of the version that the collected calls make. REQUIRES: is_collecting().
    void name_collection(std::string label) { job_->spec.label = std::move(label); }
    // Whether the callers of a dropped collection were told, or must still learn of it.
    enum class Telling { kDue, kDone };
    // Drops the open session or collection, because a call that may be a part of it was refused.
    void lose_part(TimePoint now, const Error& why, Out& out);
    // Drops it because a front end refused a call; answers the message after the drop.
    void handle(TimePoint now, Caller caller, const messages::RefusedPart& call, Out& out);
    // Drops the collection for this reason. REQUIRES: has_collection().
    void drop_collection(TimePoint now, Error why, Telling telling, Out& out);
    // Returns why a version with this spec cannot follow the one that serves, or nothing; a current
    // update is no reason.
    [[nodiscard]] std::optional<Error> problem_of(const messages::UpdateSpec& spec) const;
    void handle(TimePoint now, Caller caller, const messages::CommitWeights& call, Out& out);
    void handle(TimePoint now, Caller caller, const messages::DropStage& call, Out& out);
    void handle(TimePoint now, Caller caller, const messages::RollbackWeights& call, Out& out);

    // Handles a replica's answer. An answer to no current order is ignored and counted.
    void handle_part(TimePoint now, const messages::UpdatePart& part, Out& out);
    // Records which ranks a replica waits for during a commit or a drop.
    void record_awaited(messages::UpdateWaits waits);

    // Acts on deadlines that have passed.
    void tick(TimePoint now, Out& out);
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;

    // Ends the current call with this error: the tree is shutting down.
    void fail(const std::string& message, Out& out);

    [[nodiscard]] bool is_torn() const { return is_torn_; }
    // Returns whether a staged update waits for its commit or drop.
    [[nodiscard]] bool is_staged() const { return phase() == messages::UpdatePhase::kPrepared; }
    // Returns whether a session is open and waits for its next call.
    [[nodiscard]] bool is_open() const { return phase() == messages::UpdatePhase::kOpen; }
    // Returns whether this call can be one of several that make one update: it declares nothing
    // about only the version after it.
    [[nodiscard]] static bool may_collect(const messages::UpdateWeights& call);
    // Returns whether no serving version exists that a part could change.
    [[nodiscard]] bool must_be_complete() const { return is_torn_ || !has_weights(); }
    // Returns whether calls were collected, their commit is not ordered, and none of them
    // is in progress.
    [[nodiscard]] bool is_collecting() const { return is_open() && job_->is_collection; }
    // Returns whether a collection exists; one of its calls may be in progress.
    [[nodiscard]] bool has_collection() const {
        return job_ && job_->is_collection && job_->goal == messages::UpdatePhase::kOpen &&
               phase() != messages::UpdatePhase::kDropping;
    }
    // Returns whether a collection exists whose commit is not ordered.
    [[nodiscard]] bool has_undecided_collection() const {
        return job_ && job_->is_collection && phase() != messages::UpdatePhase::kCommitting;
    }
    // Returns the label that the collected calls name; empty: none does. REQUIRES:
    // has_collection().
    [[nodiscard]] const std::string& collection_label() const { return job_->called_label; }
    // REQUIRES: has_collection().
    [[nodiscard]] bool is_collecting_all() const { return !job_->spec.partial; }
    // Returns whether an update_weights or update_bucket is in progress, and its caller waits.
    [[nodiscard]] bool is_receiving() const;
    // Returns whether a commit, a rollback or a drop is in progress, which ends by its deadline.
    [[nodiscard]] bool is_ending() const {
        return job_ && job_->deadline != TimePoint::max() &&
               (phase() == messages::UpdatePhase::kDropping ||
                job_->goal == messages::UpdatePhase::kCommitted);
    }
    // Returns whether an update whose calls name no session is being ended: a call that arrives now
    // may have been meant for it.
    [[nodiscard]] bool is_ending_unnamed() const {
        return job_ && (job_->is_collection || job_->is_unnamed) &&
               job_->goal == messages::UpdatePhase::kCommitted &&
               phase() != messages::UpdatePhase::kDropping && !is_receiving();
    }
    // Returns whether the commit of a collection is ordered, and not complete.
    [[nodiscard]] bool is_committing_collection() const {
        return job_ && job_->is_collection && phase() == messages::UpdatePhase::kCommitting;
    }
    // Returns the refusal of any other update, with what to do. REQUIRES: is_busy().
    [[nodiscard]] Error busy(TimePoint now) const;

    // Returns the session whose calls name none, open or lost, which a restart would
    // forget; or nothing.
    [[nodiscard]] std::optional<EndedSessions::Ended> unnamed_at_stake() const;
    // Records a session during which the previous tree ended.
    void record_lost(EndedSessions::Ended session) {
        ended_.record(std::move(session));
        ended_.record_loss();
    }
    [[nodiscard]] std::optional<messages::CollectingStatus> collecting(TimePoint now) const;
    [[nodiscard]] bool is_busy() const { return job_.has_value(); }
    // Returns the current session or stage, or nothing.
    [[nodiscard]] std::optional<messages::SessionStatus> session(TimePoint now) const;
    [[nodiscard]] bool is_dropping() const { return phase() == messages::UpdatePhase::kDropping; }
    // Returns whether the update waits for running requests to finish.
    [[nodiscard]] bool is_draining() const {
        return phase() == messages::UpdatePhase::kReadying &&
               job_->spec.kv_policy == messages::KvPolicy::kDrain;
    }
    [[nodiscard]] messages::UpdateState state() const;
    [[nodiscard]] const ServedVersion& version() const { return version_; }
    // Returns the version that a restart must load: the serving one, or the one whose commit is
    // already ordered, because some replica may serve it and may have sent tokens of it.
    [[nodiscard]] const ServedVersion& decided() const { return decided_; }
    // Returns whether every replica has weights that serve.
    [[nodiscard]] bool has_weights() const;
    [[nodiscard]] std::int64_t num_late_parts() const { return num_late_parts_; }

  private:
    // The current update. Times are for the waterfall.
    struct Job {
        explicit Job(std::size_t num_replicas)
            : round(num_replicas), answers(num_replicas), outcomes(num_replicas) {}

        [[nodiscard]] bool is_of_adapter() const { return !spec.adapter.empty(); }

        messages::UpdateId id{};
        messages::UpdateRound round;  // asks the replicas
        // The phase up to which the job proceeds without further calls: kOpen for a session,
        // kPrepared for a stage, until the call that commits.
        messages::UpdatePhase goal = messages::UpdatePhase::kCommitted;
        bool is_rollback = false;
        messages::UpdateSpec spec{};
        Epoch new_epoch{};
        std::optional<Caller> caller{};  // absent while a stage is held
        TimePoint begun{};               // arrival of its first call
        TimePoint started{};             // arrival of the current call
        TimePoint deadline{};            // end of the current phase, at the latest
        TimePoint caller_deadline{};     // the caller's answer, at the latest
        Duration idle_timeout{};         // session
        std::int64_t num_buckets = 0;    // session: ordered so far
        bool is_session = false;         // opened by a caller
        bool is_collection = false;      // a session that no call opened
        bool is_unnamed = false;         // session: begun for calls without a session number
        std::int64_t num_unnamed = 0;    // calls of such a session so far
        std::int64_t num_nameless = 0;   // session: buckets so far whose calls did not name it
        std::string took_over{};  // session: what it took over from, whose calls might still arrive
        // such calls might come without a session, so those are refused
        bool is_unnamed_refused = false;
        std::string holder{};                   // session: the caller that began it
        std::string bucket_label{};             // session: the version's label in the latest bucket
        std::optional<TimePoint> idle_since{};  // time of the latest answer; absent: not open yet
        // the session to begin when this one is dropped
        std::optional<messages::BeginUpdate> successor{};
        std::string note{};         // an addition to the answer
        bool is_loss_told = false;  // the collection is dropped, and its callers know
        TimePoint collecting_since{};
        std::string called_label{};  // the version's label in a session's calls; empty: none
        std::optional<messages::WeightSource> first_source{};  // collected while the session opens
        TimePoint last_prepared{};
        TimePoint commit_ordered{};
        std::vector<messages::UpdatePart> answers;       // the latest ones, by replica
        std::vector<std::vector<Rank>> awaited{};        // by replica, the ranks that are not done
        std::vector<messages::ReplicaOutcome> outcomes;  // the latest ones, by replica
        std::string label{};                             // of the new version
        std::string digest{};
        Error failure{};  // why it is being dropped
    };

    [[nodiscard]] std::optional<Error> refusal(TimePoint now, const messages::UpdateSpec* spec)
        const;
    // ---- sessions (update_sessions.cpp) ----
    // Returns whether no call is in progress: a session is open, or a stage is held.
    [[nodiscard]] bool is_idle() const { return is_open() || is_staged(); }
    [[nodiscard]] std::int64_t bytes_staged() const;
    [[nodiscard]] std::string name_of_job() const;
    [[nodiscard]] std::string describe() const;
    enum class For { kFill, kCommit, kDrop };
    [[nodiscard]] std::optional<Error> not_at(std::uint64_t session, For what) const;
    [[nodiscard]] Error must_be_named() const;
    [[nodiscard]] bool are_all_named() const {
        return job_->num_buckets > 0 && job_->num_unnamed == 0;
    }
    [[nodiscard]] std::optional<Error> not_unnamed() const;
    [[nodiscard]] std::optional<Error> not_committable(
        TimePoint now, const messages::CommitWeights& call
    );
    // Returns the refusal of a late part: a partial update that arrives while the tree generates
    // and names the version that a collection made. Nothing for an update of its own.
    [[nodiscard]] std::optional<Error> problem_of_late_part(const messages::UpdateWeights& call
    ) const;
    [[nodiscard]] Error call_under_way() const;
    // What a bucket's call names: its session, or whichever is open, or nothing.
    enum class Names { kSession, kAny, kNothing };
    struct Bucket {
        Caller caller{};
        std::int64_t timeout_ms = 0;
        std::string label{};
        messages::WeightSource source{};
        Names names = Names::kAny;
    };
    void fill(TimePoint now, Bucket bucket, Out& out);
    void take_over(TimePoint now, Caller caller, const messages::BeginUpdate& call, Out& out);
    void begin_successor(TimePoint now, Out& out);
    void drop_nothing(TimePoint now, Caller caller, Out& out);
    enum class Loss { kNone, kOfUnnamedCalls };
    void end_session(const std::string& how, Loss loss);

    void begin_waiting(TimePoint now, Caller caller, std::int64_t timeout_ms);
    [[nodiscard]] std::int64_t time_of_replicas(TimePoint now) const;
    struct Begin {
        Caller caller{};
        std::int64_t timeout_ms = 0;
        messages::UpdateSpec spec{};
        messages::UpdatePhase goal = messages::UpdatePhase::kCommitted;
        bool is_rollback = false;
    };
    void begin(TimePoint now, Begin begin, Out& out);
    void order(messages::UpdateOrder what, Order order, Out& out);
    void order_finish(TimePoint now, const std::string& label, const std::string& digest, Out& out);
    void order_fill(TimePoint now, messages::WeightSource source, Out& out);
    // ---- collections (update_collection.cpp) ---- Returns whether a version is being assembled of
    // which a refused call may be a part.
    [[nodiscard]] bool may_lack_part() const;
    [[nodiscard]] std::int64_t num_missing() const;
    [[nodiscard]] bool is_of_another_version(const std::string& label) const;
    void name_by_call(const std::string& label);
    void refuse_mixture(TimePoint now, Caller caller, const std::string& label, Out& out);
    void refuse_stranger(Caller caller, const std::string& label, Out& out) const;
    void order_stage(TimePoint now, Out& out);
    void order_ready(TimePoint now, Out& out);
    void all_answered(TimePoint now, Out& out);
    [[nodiscard]] std::optional<Error> problem_of_stages() const;
    [[nodiscard]] bool may_be_torn() const;
    void begin_drop(TimePoint now, Error failure, Out& out);
    void decide();
    void finish_commit(TimePoint now, Out& out);
    void finish_drop(TimePoint now, Out& out);
    void reply(TimePoint now, std::optional<Error> error, Out& out);
    [[nodiscard]] messages::UpdateReply reply_now(const Caller& caller) const;
    void refuse(Caller caller, Error error, Out& out) const;
    [[nodiscard]] std::string who_is_missing() const;
    [[nodiscard]] messages::UpdatePhase phase() const {
        return job_ ? job_->round.phase() : messages::UpdatePhase::kIdle;
    }
    [[nodiscard]] std::string_view phase_name() const {
        return job_ ? name_of(messages::state_of(phase())) : name_of(messages::UpdatePhase::kIdle);
    }

    int num_replicas_;
    std::optional<Job> job_{};
    messages::UpdateId next_id_;
    ServedVersion version_{};
    ServedVersion decided_{};
    std::vector<bool> has_weights_;  // by replica
    std::string retained_path_{};
    bool has_retained_ = false;
    bool is_torn_ = false;
    // The serving version, if it was made by calls without a session number; `label` is the one
    // that the calls named.
    struct Collected {
        Epoch epoch{};
        std::string label{};
    };
    std::optional<Collected> collected_{};
    std::int64_t num_late_parts_ = 0;
    EndedSessions ended_{};
};

}  // namespace pitstop::tokenizer
