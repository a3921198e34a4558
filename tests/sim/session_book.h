// The content of the current session, of the model or of an adapter, derived from the answers to
// its callers, and the deadline of its end.
#pragma once

#include "base/time.h"
#include "messages/weights.h"
#include "tests/sim/model_worker.h"
#include "tests/sim/oracle.h"
#include "tests/sim/pusher.h"
#include "tokenizer_proc/update_output.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace pitstop::sim {

class SessionBook {
  public:
    // The version that served when a call was made. `is_whole`: a part can be laid over it; false
    // if some replica is torn or has no weights.
    struct Base {
        Epoch serving{};
        bool is_whole = true;
    };

    // The oracle outlives the book.
    SessionBook(const ModelShape& shape, Oracle& oracle) : shape_(shape), oracle_(oracle) {}

    // The coordinator orders something.
    void ordered(TimePoint now, const tokenizer::ReplicaOrder& order);
    // A caller's call is answered; base.serving was live before the call. `adapter`: the one whose
    // weights the caller brings; empty: the caller brings the model's.
    void heard(
        TimePoint now,
        const Pusher::Call& call,
        const messages::UpdateReply& reply,
        const Base& base,
        const std::string& adapter = ""
    );
    // Fails if the session should have ended by now.
    void check(TimePoint now);

    // The digest of the open session's content; empty: none is open.
    [[nodiscard]] std::string digest() const;
    // The version's digest, as the sum over all ranks of a replica.
    [[nodiscard]] std::string digest_of_weights(WeightsId weights) const;

    std::int64_t num_begun = 0;
    std::int64_t num_buckets = 0;
    std::int64_t num_committed = 0;
    std::int64_t num_expired = 0;
    std::int64_t num_taken_over = 0;
    std::int64_t num_mixed = 0;    // given up for a call with another label
    std::int64_t num_lacking = 0;  // given up because a call that may belong to it was refused
    std::int64_t num_unnamed = 0;  // buckets that named no session
    // Of the sessions above, those of adapters.
    std::int64_t num_adapters_begun = 0;
    std::int64_t num_adapters_committed = 0;
    std::int64_t num_adapters_expired = 0;

    // The adapter's (empty: the model's) last lost session that had calls without a session number,
    // until a caller is told; 0: none. Until then such a call may not become an update of its own.
    [[nodiscard]] std::uint64_t untold_loss(const std::string& adapter) const {
        const auto place = untold_losses_.find(adapter);
        return place == untold_losses_.end() ? 0 : place->second;
    }
    // Returns whether the last session replaced one whose calls named no session.
    [[nodiscard]] bool must_be_named() const { return session_ && session_->must_be_named; }
    // A call of that adapter's (empty: the model's) trainer that names no session was an update of
    // its own. When it was sent, `loss` was untold.
    void stood_alone(const std::string& adapter, std::uint64_t loss);

  private:
    enum class At { kIdle, kBusy, kEnding };
    struct Session {
        std::uint64_t id = 0;
        At at = At::kIdle;
        std::string adapter{};  // empty: the session is of the model's weights
        std::string label{};
        WeightsId weights{};
        Duration idle_timeout{};
        TimePoint idle_since{};
        std::int64_t num_filling = 0;  // buckets that are ordered, and not answered
        bool is_unnamed = false;
        bool must_be_named = false;
        bool is_finishing = false;
        bool is_given_up = false;      // for a call that was refused
        std::int64_t num_unnamed = 0;  // buckets that named none
        std::set<std::string> bytes{};
    };
    struct Bucket {
        std::uint64_t session = 0;
        bool is_unnamed = false;
        std::string bytes{};
        std::string label{};
        std::string adapter{};  // that the call names
    };

    void begun(
        TimePoint now,
        const messages::BeginUpdate& call,
        const messages::UpdateReply& reply,
        const Base& base
    );
    void dropped(TimePoint now, const std::string& reason);
    void filled(TimePoint now, const Bucket& bucket, const messages::UpdateReply& reply);
    void told(const Pusher::Call& call, const std::string& adapter);
    void committed(const messages::CommitWeights& call, const messages::UpdateReply& reply);
    [[nodiscard]] std::optional<WeightsId> committed_weights(Epoch version) const;
    [[nodiscard]] bool is_about(messages::UpdateId update) const {
        return session_ && session_->id == static_cast<std::uint64_t>(update);
    }

    const ModelShape& shape_;
    Oracle& oracle_;
    std::optional<Session> session_{};       // the session that was begun last
    messages::UpdateId committed_update_{};  // the update whose commit was ordered last
    std::map<std::string, std::uint64_t> untold_losses_{};  // by adapter
    std::uint64_t taken_over_ = 0;  // the last replaced session that had unnamed calls
};

}  // namespace pitstop::sim
