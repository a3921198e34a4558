// Drives the current update through its phases (messages/update_phase.h) on all replicas.
//
// A session is dropped if no call continues it in time. A commit is ordered only when every rank of
// every replica has reported prepared and ready. Before that order, any failure, disagreement or
// lateness drops the stage everywhere, and the old version continues to serve (P2). After it, only
// the death of a process can prevent the commit, and that ends the tree.
//
// Pure: time in, orders and replies out, without clock or socket.
// Owns:    the current update, the serving weights' state, how sessions ended.
// Thread:  the loop thread only.
// Bounded: one update at a time.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/update_orders.h"
#include "messages/weights.h"
#include "tokenizer_proc/ended_sessions.h"
#include "tokenizer_proc/serving_weights.h"
#include "tokenizer_proc/tree_update.h"
#include "tokenizer_proc/update_output.h"

#include <cstdint>
#include <optional>
#include <string>

namespace pitstop::tokenizer {

class UpdateDriver {
  public:
    using Out = UpdateOutput;

    UpdateDriver(int num_replicas, messages::UpdateId first)
        : num_replicas_(num_replicas), next_id_(first), weights_(num_replicas) {}

    // Returns the current update, or null.
    [[nodiscard]] const TreeUpdate* current() const { return update_ ? &*update_ : nullptr; }
    // REQUIRES: there is a current update.
    [[nodiscard]] TreeUpdate& update() { return *update_; }
    [[nodiscard]] ServingWeights& weights() { return weights_; }
    [[nodiscard]] const ServingWeights& weights() const { return weights_; }
    [[nodiscard]] EndedSessions& ended() { return ended_; }
    [[nodiscard]] const EndedSessions& ended() const { return ended_; }

    [[nodiscard]] messages::UpdatePhase phase() const {
        return update_ ? update_->phase() : messages::UpdatePhase::kIdle;
    }
    // Returns the state of the engine, for answers to callers.
    [[nodiscard]] messages::UpdateState state() const;

    // ---- orders ----
    struct Begin {
        UpdateCaller caller{};
        std::int64_t timeout_ms = 0;
        messages::UpdateSpec spec{};
        messages::UpdatePhase goal = messages::UpdatePhase::kCommitted;
        bool is_rollback = false;
    };
    // REQUIRES: there is no current update.
    void begin(TimePoint now, Begin begin, Out& out);
    // Begins a session, or refuses to. With take_over, first drops the open or staged update.
    void begin_session(
        TimePoint now, UpdateCaller caller, const messages::BeginUpdate& call, Out& out
    );
    // Drops the current update on every replica. REQUIRES: there is one.
    void drop(TimePoint now, Error why, Out& out);

    // ---- answers ----
    // Handles a replica's answer. Ignores and counts an answer that belongs to no current order.
    void handle_part(TimePoint now, const messages::UpdatePart& part, Out& out);
    // Records which ranks a replica waits for during a commit or a drop.
    void record_awaited(messages::UpdateWaits waits);
    [[nodiscard]] std::int64_t num_late_parts() const { return num_late_parts_; }

    // Acts on deadlines that have passed.
    void tick(TimePoint now, Out& out);
    [[nodiscard]] std::optional<TimePoint> next_deadline() const;
    // Ends the current call with this error, because the tree is shutting down.
    void fail(const std::string& message, Out& out);

    // ---- callers ----
    // Returns an answer with the current state of the engine.
    [[nodiscard]] messages::UpdateReply reply_now(const UpdateCaller& caller) const;
    void refuse(UpdateCaller caller, Error error, Out& out) const;

  private:
    void all_answered(TimePoint now, Out& out);
    void decide();
    void finish_commit(TimePoint now, Out& out);
    void finish_drop(TimePoint now, Out& out);
    void reply(TimePoint now, const std::optional<Error>& error, Out& out);
    enum class Loss { kNone, kOfUnnamedCalls };
    void end_session(const std::string& how, Loss loss);

    int num_replicas_;
    std::optional<TreeUpdate> update_{};
    messages::UpdateId next_id_;
    ServingWeights weights_;
    EndedSessions ended_{};
    std::int64_t num_late_parts_ = 0;
};

}  // namespace pitstop::tokenizer
