// The weights that this replica has: the version of the next plan, the version to which a rollback
// returns, and the state of the live copy.
//
// Thread:  the loop thread only.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "scheduler_proc/in_flight_step.h"

#include <optional>
#include <string>
#include <utility>

namespace pitstop::scheduler {

class ReplicaWeights {
  public:
    // The copy of the version that served until now: retained for a rollback, or gone.
    enum class Old { kRetained, kGone };

    ReplicaWeights(Epoch epoch, std::string label) {
        version_.epoch = epoch;
        version_.label = std::move(label);
    }

    // Records what the ranks loaded.
    void open(std::string digest, bool has_weights) {
        version_.digest = std::move(digest);
        if (!has_weights) live_ = Live::kAwaited;
    }

    [[nodiscard]] const Version& version() const { return version_; }
    // Returns the version whose copy the workers retain, if a rollback may return to it.
    [[nodiscard]] const std::optional<Version>& retained() const { return retained_; }
    // ---- the live copy: nothing may run unless its weights are whole ----
    [[nodiscard]] bool are_whole() const { return live_ == Live::kWhole; }
    [[nodiscard]] bool are_torn() const { return live_ == Live::kTorn; }
    // There are no weights yet, or they were released and not kept.
    [[nodiscard]] bool are_awaited() const { return live_ == Live::kAwaited; }

    // The bytes of the live copy are gone: they were released and not kept.
    void lose() {
        if (live_ == Live::kWhole) live_ = Live::kAwaited;
    }
    // The live copy is half overwritten, here or on another replica.
    void tear() { live_ = Live::kTorn; }
    // The copy that a rollback needs is gone.
    void forget_retained() { retained_.reset(); }
    // The version that serves has a new label. Steps in flight keep the old one.
    void relabel(const std::string& label);
    // The next plan runs under version `next`. Torn weights are not retained, because no rollback
    // may return to them.
    void serve(Version next, Old old);

    // Returns what is wrong with the epoch of a new version of the model, or nothing.
    [[nodiscard]] std::optional<Error> problem_of(Epoch next) const;

  private:
    enum class Live { kWhole, kTorn, kAwaited };

    Version version_{};
    std::optional<Version> retained_{};
    Live live_ = Live::kWhole;
};

}  // namespace pitstop::scheduler
