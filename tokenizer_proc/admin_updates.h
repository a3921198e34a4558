// Executes the decisions of updates: puts versions on record, gives orders, answers callers, and
// keeps committed versions.
//
// A version is on record before any order or answer about it.
//
// Thread:  the loop thread only.
// Bounded: by update_coordinator.h, update_history.h and returning_adapters.h, for its members.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/keep.h"
#include "messages/status.h"
#include "tokenizer_proc/admin_outbox.h"
#include "tokenizer_proc/keep_coordinator.h"
#include "tokenizer_proc/replica_hellos.h"
#include "tokenizer_proc/returning_adapters.h"
#include "tokenizer_proc/update_coordinator.h"
#include "tokenizer_proc/update_history.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

class AdminUpdates {
  public:
    // REQUIRES: the outbox outlives this object.
    AdminUpdates(int num_replicas, messages::UpdateId first_update, AdminOutbox& out)
        : coordinator_(num_replicas, first_update), num_replicas_(num_replicas), out_(out) {}

    // Implement Admin's functions of the same names.
    void set_version(
        const ReplicaHellos& hellos,
        const std::string& weights_path,
        const std::optional<messages::LostVersion>& lost
    );
    void keep_in(TimePoint now, const std::string& directory, int tp) {
        keep_.emplace(now, directory, tp, coordinator_.version());
    }
    void bring_back(TimePoint now, ReturningAdapters::Args adapters) {
        returning_.begin(now, std::move(adapters));
    }
    [[nodiscard]] bool is_bringing_back() const { return !returning_.is_done(); }
    void give_up_bringing_back() { returning_.give_up(); }
    // Calls `load` with one update after another that loads an adapter of the previous tree, until
    // an update is in progress.
    template <class Load>
    void bring_back_next(TimePoint now, Load load) {
        returning_.go_on(
            now, [this] { return coordinator_.is_busy(); }, std::move(load)
        );
    }

    // The effects of an update on others than its caller.
    struct Events {
        std::optional<LostCollection> lost{};
        bool has_made_whole = false;  // a collection that needed every tensor took effect
        bool has_begun_session = false;
        std::vector<std::string> notes{};            // events without a caller, for the log
        std::optional<messages::UpdateReply> own{};  // the answer to a call without a peer
        // The refusal of a call that may be a part of a version.
        std::optional<Error> part_refused{};
    };
    // Calls `what` with the coordinator and its output, so that a call acts on the current update.
    // Executes the resulting decisions.
    template <class Drive>
    [[nodiscard]] Events drive(TimePoint now, Drive what) {
        UpdateOutput out;
        what(coordinator_, out);
        return execute(now, std::move(out));
    }
    void record_awaited(messages::UpdateWaits waits) {
        coordinator_.record_awaited(std::move(waits));
    }
    void set_has_weights(ReplicaId replica, bool has_weights) {
        coordinator_.set_has_weights(replica, has_weights);
    }
    void name_collection(std::string label) { coordinator_.name_collection(std::move(label)); }
    void record_lost(EndedSessions::Ended session) { coordinator_.record_lost(std::move(session)); }
    // Records a new label of the serving version, on every replica.
    void relabel(std::string label);
    // Handles a rank's report that it has kept its part of a version, or failed to.
    void record_kept(TimePoint now, const messages::WorkerKept& part);

    [[nodiscard]] const UpdateCoordinator& coordinator() const { return coordinator_; }
    [[nodiscard]] bool has_had_weights() const { return has_had_weights_; }
    // Record outcomes of calls that drive no update: of an unload, and of a call that ended before
    // its turn (nothing if it names no adapter).
    void record_unload(TimePoint now, const messages::AdapterReply& reply);
    void record_failure(
        TimePoint now, std::string_view what, const std::string& adapter, const Error& why
    );
    // Fills in the parts of the status that concern updates and versions.
    void report(TimePoint now, messages::StatusReply& reply) const;
    // Returns each version that was decided or got a new label since the last call.
    [[nodiscard]] std::vector<ServedVersion> take_serves() { return std::exchange(serves_, {}); }

  private:
    Events execute(TimePoint now, UpdateOutput&& out);
    void say_version();

    UpdateCoordinator coordinator_;
    int num_replicas_;
    AdminOutbox& out_;
    std::vector<ServedVersion> serves_{};
    ServedVersion said_{};  // the latest entry of serves_
    std::optional<KeepCoordinator> keep_{};
    ReturningAdapters returning_{};
    std::optional<messages::LostVersion> lost_{};  // until a complete update brings a new version
    UpdateHistory history_{};
    bool has_had_weights_ = false;
};

}  // namespace pitstop::tokenizer
