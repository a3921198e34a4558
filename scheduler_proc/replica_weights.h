// The weights that this replica has: the version of the next plan, the one to which a rollback
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
    // What becomes of the version that served until now.
    enum class Old { kRetained, kGone };

    ReplicaWeights(Epoch epoch, std::string label) {
        version_.epoch = epoch;
        version_.label = std::move(label);
    }

    // Records what the ranks loaded, or that they loaded nothing.
    void open(std::string digest, bool has_weights) {
        version_.digest = std::move(digest);
        if (!has_weights) live_ = Live::kAwaited;
    }

    [[nodiscard]] const Version& version() const { return version_; }
    // Returns the version whose copy the workers still hold, if a rollback may return to it.
    [[nodiscard]] const std::optional<Version>& retained() const { return retained_; }
    // ---- the live copy: nothing may run unless it is whole ----
    [[nodiscard]] bool are_whole() const { return live_ == Live::kWhole; }
    [[nodiscard]] bool are_torn() const { return live_ == Live::kTorn; }
    // No weights yet, or they were released and not kept.
    [[nodiscard]] bool are_awaited() const { return live_ == Live::kAwaited; }

    // The live copy's bytes are gone: they were released and not kept.
    void lose() {
        if (live_ == Live::kWhole) live_ = Live::kAwaited;
    }
    // The live copy is half overwritten, here or on another replica.
    void tear() { live_ = Live::kTorn; }
    // The copy that a rollback needs is gone.
    void forget_retained() { retained_.reset(); }
    // The version that serves has a new label. Steps in flight keep theirs.
    void relabel(const std::string& label);
    // The next plan runs under this version. Torn weights are not retained: they are no version to
    // return to.
    void serve(Version next, Old old);

    // Returns what is wrong with the epoch of a new version of the model.
    [[nodiscard]] std::optional<Error> problem_of(Epoch next) const;

  private:
    enum class Live { kWhole, kTorn, kAwaited };

    Version version_{};
    std::optional<Version> retained_{};
    Live live_ = Live::kWhole;
};

}  // namespace pitstop::scheduler
