// The calls about weights: each begins the one update over all replicas (update_driver.h),
// continues it, ends it, or is refused.
//
// A collection is a session that no call opened: partial updates of a paused tree, or of one
// without weights, are its buckets. It is committed by the call that lets generation continue, by
// commit_weights, or with the last missing tensor.
//
// Pure: time in, orders and replies out, without clock or socket.
// Thread:  the loop thread only.
// Bounded: one update at a time; a second one is refused meanwhile.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/status.h"
#include "messages/update_orders.h"
#include "messages/weights.h"
#include "tokenizer_proc/ended_sessions.h"
#include "tokenizer_proc/serving_weights.h"
#include "tokenizer_proc/tree_update.h"
#include "tokenizer_proc/update_driver.h"
#include "tokenizer_proc/update_output.h"

#include <optional>
#include <string>
#include <utility>

namespace pitstop::tokenizer {

class UpdateCoordinator {
  public:
    using Caller = UpdateCaller;
    using Out = UpdateOutput;

    explicit UpdateCoordinator(int num_replicas, messages::UpdateId first = messages::UpdateId{1})
        : driver_(num_replicas, first) {}

    // Sets the version that serves from the start.
    void set_version(ServedVersion version) { driver_.weights().set_version(std::move(version)); }
    // Records a new label of the serving version, on every replica.
    void relabel(std::string label) { driver_.weights().relabel(std::move(label)); }
    void set_has_weights(ReplicaId replica, bool has_weights) {
        driver_.weights().set_has_weights(replica, has_weights);
    }

    // Handles each call of messages/weights.h.
    void handle(TimePoint now, Caller caller, const messages::UpdateWeights& call, Out& out);
    void handle(TimePoint now, Caller caller, const messages::StageWeights& call, Out& out);
    void handle(TimePoint now, Caller caller, const messages::BeginUpdate& call, Out& out) {
        driver_.begin_session(now, std::move(caller), call, out);
    }
    void handle(TimePoint now, Caller caller, const messages::UpdateBucket& call, Out& out);
    void handle(TimePoint now, Caller caller, const messages::CommitWeights& call, Out& out);
    void handle(TimePoint now, Caller caller, const messages::DropStage& call, Out& out);
    void handle(TimePoint now, Caller caller, const messages::RollbackWeights& call, Out& out);
    // Handles an update that names no session. If a session was begun for such calls, the update
    // becomes its bucket. If such a session was lost, the update is refused. Returns false if
    // neither applies.
    bool take_unnamed(TimePoint now, Caller caller, const messages::UpdateWeights& call, Out& out);

    // Returns whether the call can be one of several that make one update. Such a call is partial,
    // of no adapter, and gives no epoch, digest or manifest of the resulting version.
    [[nodiscard]] static bool may_collect(const messages::UpdateWeights& call);
    // The content that a collection needs before it can take effect.
    enum class Brings { kParts, kAllTensors };
    // Adds a partial update to the collection, which becomes one update. The call is answered when
    // its part is staged. Only the first call's `brings` counts; if no version serves that a part
    // could change, all tensors must arrive. REQUIRES: may_collect(call).
    void collect(
        TimePoint now, Caller caller, const messages::UpdateWeights& call, Brings brings, Out& out
    );
    // Sets the label of the version that the collected calls make. REQUIRES: is_collecting().
    void name_collection(std::string label) { driver_.update().name_version(std::move(label)); }
    // The callers of a dropped collection must still be told (kDue), or know of the drop (kDone).
    enum class Telling { kDue, kDone };
    // Drops the open session or collection, because a call that may be a part of it was refused.
    void lose_part(TimePoint now, const Error& why, Out& out);
    // Drops the open session or collection because a front end refused a call. Answers the message
    // after the drop.
    void handle(TimePoint now, Caller caller, const messages::RefusedPart& call, Out& out);
    // Drops the collection for this reason. REQUIRES: has_collection().
    void drop_collection(TimePoint now, Error why, Telling telling, Out& out);

    // Handles a replica's answer. An answer to no current order is ignored and counted.
    void handle_part(TimePoint now, const messages::UpdatePart& part, Out& out) {
        driver_.handle_part(now, part, out);
    }
    // Records which ranks a replica waits for during a commit or a drop.
    void record_awaited(messages::UpdateWaits waits) { driver_.record_awaited(std::move(waits)); }
    [[nodiscard]] std::int64_t num_late_parts() const { return driver_.num_late_parts(); }

    // Acts on deadlines that have passed.
    void tick(TimePoint now, Out& out) { driver_.tick(now, out); }
    [[nodiscard]] std::optional<TimePoint> next_deadline() const { return driver_.next_deadline(); }
    // Ends the current call with this error: the tree is shutting down.
    void fail(const std::string& message, Out& out) { driver_.fail(message, out); }

    // ---- the weights that serve ----
    [[nodiscard]] messages::UpdateState state() const { return driver_.state(); }
    [[nodiscard]] const ServedVersion& version() const { return weights().version(); }
    [[nodiscard]] const ServedVersion& decided() const { return weights().decided(); }
    [[nodiscard]] bool has_weights() const { return weights().has_weights(); }
    [[nodiscard]] bool is_torn() const { return weights().is_torn(); }
    [[nodiscard]] bool must_be_complete() const { return weights().must_be_complete(); }
    // Returns why a version with this spec cannot follow the one that serves, or nothing; a current
    // update is no reason.
    [[nodiscard]] std::optional<Error> problem_of(const messages::UpdateSpec& spec) const {
        return weights().problem_of(spec);
    }

    // ---- the current update ----
    [[nodiscard]] bool is_busy() const { return current() != nullptr; }
    // Returns whether the current update is of this adapter.
    [[nodiscard]] bool is_of(const std::string& adapter) const {
        return current() && current()->spec().adapter == adapter;
    }
    // Returns whether that is a session whose calls name no session.
    [[nodiscard]] bool is_unnamed_session_of(const std::string& adapter) const {
        return is_of(adapter) && current()->calls().is_unnamed();
    }
    // Returns the refusal of any other update, with what to do. REQUIRES: is_busy().
    [[nodiscard]] Error busy(TimePoint now) const { return current()->busy(now); }
    // Returns whether a staged update waits for its commit or drop.
    [[nodiscard]] bool is_staged() const { return current() && current()->is_staged(); }
    // Returns whether a session is open and waits for its next call.
    [[nodiscard]] bool is_open() const { return current() && current()->is_open(); }
    [[nodiscard]] bool is_dropping() const { return current() && current()->is_dropping(); }
    [[nodiscard]] bool is_receiving() const { return current() && current()->is_receiving(); }
    [[nodiscard]] bool is_ending() const { return current() && current()->is_ending(); }
    [[nodiscard]] bool is_draining() const { return current() && current()->is_draining(); }
    // Returns whether an update whose calls name no session is being ended: a call that arrives now
    // may belong to that update.
    [[nodiscard]] bool is_ending_unnamed() const {
        return current() && current()->is_ending_unnamed();
    }
    // Returns the current session or stage, or nothing.
    [[nodiscard]] std::optional<messages::SessionStatus> session(TimePoint now) const {
        return current() ? current()->session(now) : std::nullopt;
    }
    // Returns the session for unnamed calls, open or lost, that a restart would forget; or nothing.
    [[nodiscard]] std::optional<EndedSessions::Ended> unnamed_at_stake() const;
    // Records the session that was open when the previous tree ended.
    void record_lost(EndedSessions::Ended session) {
        driver_.ended().record(std::move(session));
        driver_.ended().record_loss();
    }

    // ---- the collection ----
    // Returns whether calls were collected, no such call is in progress, and their commit is not
    // ordered.
    [[nodiscard]] bool is_collecting() const { return current() && current()->is_collecting(); }
    // Returns whether there is a collection; one of its calls may be in progress.
    [[nodiscard]] bool has_collection() const {
        return current() && current()->is_collection() && current()->is_to_stay_open() &&
               !current()->is_dropping();
    }
    // Returns whether there is a collection whose commit is not ordered.
    [[nodiscard]] bool has_undecided_collection() const {
        return current() && current()->is_collection() && !current()->is_committing();
    }
    // Returns whether the commit of a collection is ordered, but not complete.
    [[nodiscard]] bool is_committing_collection() const {
        return current() && current()->is_collection() && current()->is_committing();
    }
    // Returns the label in the collected calls; empty: no call has one. REQUIRES:
    // has_collection().
    [[nodiscard]] const std::string& collection_label() const {
        return current()->calls().called_label();
    }
    // REQUIRES: has_collection().
    [[nodiscard]] bool is_collecting_all() const { return !current()->spec().partial; }
    [[nodiscard]] std::optional<messages::CollectingStatus> collecting(TimePoint now) const {
        return current() ? current()->collecting(now) : std::nullopt;
    }

  private:
    [[nodiscard]] const TreeUpdate* current() const { return driver_.current(); }
    [[nodiscard]] const ServingWeights& weights() const { return driver_.weights(); }
    // Returns why an update with this spec cannot begin now, or nothing.
    [[nodiscard]] std::optional<Error> refusal(TimePoint now, const messages::UpdateSpec& spec)
        const;
    // Returns the adapter of the session (0: the current update) that a call continues; empty: it
    // is of the model's weights, or unknown.
    [[nodiscard]] std::string adapter_at(std::uint64_t session) const;
    enum class For { kFill, kCommit, kDrop };
    [[nodiscard]] std::optional<Error> not_at(std::uint64_t session, For what) const;
    [[nodiscard]] std::optional<Error> not_committable(
        TimePoint now, const messages::CommitWeights& call
    );
    struct Bucket {
        Caller caller{};
        std::int64_t timeout_ms = 0;
        std::string label{};
        messages::WeightSource source{};
        SessionCalls::Names names = SessionCalls::Names::kAny;
    };
    void fill(TimePoint now, Bucket bucket, Out& out);
    // Drops the current update, and refuses a call for another version, because a mixture of two
    // models must not become a version.
    void refuse_mixture(TimePoint now, Caller caller, const std::string& label, Out& out);
    void drop_nothing(TimePoint now, Caller caller, Out& out);

    UpdateDriver driver_;
};

}  // namespace pitstop::tokenizer
