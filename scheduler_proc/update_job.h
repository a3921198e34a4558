// This replica's part of the current weight update: the orders of the door and the answers of the
// ranks. The door (tokenizer_proc) drives the update over all replicas.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/update_orders.h"
#include "messages/update_round.h"
#include "messages/version_digest.h"
#include "messages/weights.h"
#include "scheduler_proc/adapters.h"
#include "scheduler_proc/tallies.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::scheduler {

// The error for an order that cannot be run now.
[[nodiscard]] Error wrong_order(
    std::string_view order, messages::UpdateId id, std::string_view why
);

// The adapter version whose tensors the new version starts with.
struct Beginning {
    AdapterUse version{};
    bool is_rollback = false;  // the new version is the same

    void put_into(messages::WorkerStage& order) const;
    // Returns the directory that has the new version; empty if tensors were changed.
    [[nodiscard]] std::string path() const { return is_rollback ? version.path : ""; }
};
// The stage of a rollback. It declares the previous version's digest, so that other bytes are
// refused.
[[nodiscard]] messages::UpdateStage stage_of(
    const messages::UpdateRollback& order, const AdapterUse& previous
);

struct UpdateJob {
    enum class Kind { kStaged, kDirect, kRollback };
    messages::UpdateId id{};
    Kind kind = Kind::kStaged;
    messages::UpdateRound round;  // asks the ranks; the replica itself answers `ready`

    // With --update-mode lend, the update is staged in the memory of the KV cache, once the ranks
    // have released the KV.
    bool is_on_loan = false;
    std::optional<messages::WorkerStage> held{};
    std::int64_t num_retracted = 0;  // requests that were retracted to make room for the stage

    std::int64_t bucket = 0;  // of a session: the last bucket ordered; 0: the opening

    messages::UpdateSpec spec{};
    messages::KvPolicy kv_policy = messages::KvPolicy::kKeep;
    Epoch new_epoch{};
    std::string label{};                   // of the new version
    std::string digest{};                  // of the new version, once prepared
    std::optional<Beginning> beginning{};  // of an adapter's update
    std::string adapter_config_digest{};   // of an adapter's configuration, once prepared
    std::int64_t adapter_bytes = 0;        // an adapter's memory, on the rank that needs most

    std::vector<messages::RankOutcome> ranks{};                // by rank
    std::vector<std::vector<messages::PartDigest>> digests{};  // by rank
    std::vector<std::string> config_digests{};  // by rank: of the adapter's configuration there
    // the resident names of declared tensors whose names have another form
    std::map<std::string, std::string> declared{};

    TimePoint deadline = TimePoint::max();      // of the current order
    std::optional<TimePoint> standing_since{};  // direct or on loan: no step has run since then
    TimePoint commit_ordered{};
    // on loan: when all ranks had committed, and the KV began to take its memory back
    std::optional<TimePoint> committed{};
    std::string drop_reason{};
    messages::ReplicaOutcome outcome{};  // without ranks, which are in `ranks`

    UpdateJob(messages::UpdateId update, Kind update_kind, int tp);

    [[nodiscard]] messages::UpdatePhase phase() const { return round.phase(); }
    // Returns whether the order is of this update, and allowed now.
    [[nodiscard]] bool may(messages::UpdateId update, messages::UpdateOrder order) const {
        return id == update && round.may(order);
    }
    [[nodiscard]] bool is_of_adapter() const { return !spec.adapter.empty(); }
    // Returns whether workers may have begun to write staged weights.
    [[nodiscard]] bool is_stage_sent() const {
        return kind != Kind::kRollback && !held && phase() != messages::UpdatePhase::kStopping &&
               phase() != messages::UpdatePhase::kStopped;
    }
    // Returns the ranks that have not answered the latest order.
    [[nodiscard]] std::vector<Rank> silent_ranks() const;
    // Returns the silent ranks in words: "rank 0, rank 2".
    [[nodiscard]] std::string names_of_silent_ranks() const;

    // Returns the problems of every rank that voted no, as many as a message has room for.
    // REQUIRES: a rank has voted no.
    [[nodiscard]] Error error_of_votes() const;

    // Returns the resident name of a declared tensor.
    [[nodiscard]] const std::string& resident_name_of(const std::string& name) const;
    // Adds up the ranks' digests and compares them with the declared ones.
    // REQUIRES: every rank voted ok.
    // Errors: kDataLoss, naming tensors and ranks.
    [[nodiscard]] Result<std::string> verified_digest() const;
    // Returns the digest of the adapter's configuration; empty if the update is of no adapter.
    // REQUIRES: every rank voted ok.
    // Errors: kDataLoss, naming two ranks with different configurations.
    [[nodiscard]] Result<std::string> verified_config_digest() const;

    // Sets the new version's digests. REQUIRES: every rank voted ok. Errors: those of both above.
    [[nodiscard]] Result<> verify();

    // Records the durations of steps since the stage was ordered. Call at the vote: the time until
    // the commit does not belong to the stage.
    void record_steps(const StepTimes::Watched& steps);
    // Records how long the commit took, and how long no step could run. REQUIRES: committed.
    void record_commit(TimePoint now);
    // Records that the loan of the KV's memory has ended. REQUIRES: committed.
    void record_return(TimePoint now);
    [[nodiscard]] messages::ReplicaOutcome full_outcome() const;

    // Returns the adapter that the update loads, for requests to use; nothing if the update is of
    // the model's weights. REQUIRES: every rank voted ok.
    [[nodiscard]] std::optional<AdapterUse> new_adapter() const;
};

}  // namespace pitstop::scheduler
