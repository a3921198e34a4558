// The serving weights of the tree: their version, the version that a restart must load, whether
// each replica has weights, and whether they are torn.
//
// Pure: no clock, no socket.
// Thread:  the loop thread only.
// Bounded: a flag per replica.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/weights.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
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

class ServingWeights {
  public:
    explicit ServingWeights(int num_replicas)
        : has_weights_(static_cast<std::size_t>(num_replicas), true) {}

    // Sets the version that serves from the start.
    void set_version(ServedVersion version) { decided_ = version_ = std::move(version); }
    // Records a new label of the serving version, on every replica.
    void relabel(std::string label) { decided_.label = version_.label = std::move(label); }
    // Records whether a replica has weights; it has none if they were released and not kept, or
    // never arrived.
    void set_has_weights(ReplicaId replica, bool has_weights);

    [[nodiscard]] const ServedVersion& version() const { return version_; }
    // Returns the version that a restart must load: the serving one, or the one whose commit is
    // already ordered. Some replica may already serve the latter, and may have sent tokens of it.
    [[nodiscard]] const ServedVersion& decided() const { return decided_; }
    [[nodiscard]] bool is_torn() const { return is_torn_; }
    // Returns whether every replica has weights that serve.
    [[nodiscard]] bool has_weights() const {
        return std::ranges::all_of(has_weights_, [](bool has) { return has; });
    }
    // Returns whether the next update must be complete: no version serves that a part could change.
    [[nodiscard]] bool must_be_complete() const { return is_torn_ || !has_weights(); }

    // Returns why a version with this spec cannot follow the one that serves, or nothing.
    [[nodiscard]] std::optional<Error> problem_of(const messages::UpdateSpec& spec) const;
    // Returns why the previous version cannot serve again, or nothing.
    [[nodiscard]] std::optional<Error> problem_of_rollback() const;
    // Refuses a late part: a partial update that arrives while the tree generates, and has the
    // label of a version that a collection made. Returns nothing for any other update.
    [[nodiscard]] std::optional<Error> problem_of_late_part(const std::string& label) const;

    // A stage begins, which overwrites the retained copy.
    void lose_retained() { has_retained_ = false; }
    // A commit is ordered: from now on, the previous version cannot be restored.
    void decide(ServedVersion next) { decided_ = std::move(next); }
    // A rollback is ordered: the retained version gets this epoch.
    void decide_rollback(Epoch epoch, std::string label, std::string digest);
    // A replica refused a commit although it was prepared and ready, and other replicas may have
    // committed. So no replica generates until the next complete update, which must be newer than
    // the refused one.
    void fail_commit() { version_ = decided_; }
    // Records that replicas may have different weights, or that some are half-written.
    void tear() { is_torn_ = true; }
    // The copy of the previous version: retained, or overwritten by a direct update.
    enum class Previous { kRetained, kOverwritten };
    // Every replica serves the decided version. `called_label`: the label in its calls if they
    // named no session; empty: they had no label, or named their session.
    void commit(Previous previous, std::string called_label);

  private:
    ServedVersion version_{};
    ServedVersion decided_{};
    std::vector<bool> has_weights_;  // by replica
    bool is_torn_ = false;
    std::string retained_path_{};  // checkpoint of the previous version; empty: that of version_
    bool has_retained_ = false;
    // Set if the serving version was made by calls without a session number; `label` is the label
    // in those calls.
    struct Collected {
        Epoch epoch{};
        std::string label{};
    };
    std::optional<Collected> collected_{};
};

}  // namespace pitstop::tokenizer
