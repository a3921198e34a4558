// Drives --keep-committed: what was committed last is written to a directory by the workers of
// replica 0, a step at a time (messages/keep.h).
//
//   begin (rank 0) -> write (every rank) -> seal (rank 0)
//
// The newest version wins: one that is committed meanwhile ends what is under way. A step that
// fails ends the version, and is told in status; what serves does not depend on any of this.
//
// It is pure, without clock or socket: time comes in, orders go out.
// Thread:  the loop thread only.
// Bounded: one version at a time.
#pragma once

#include "base/ids.h"
#include "base/time.h"
#include "messages/keep.h"
#include "messages/status.h"
#include "tokenizer_proc/update_coordinator.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::tokenizer {

class KeepCoordinator {
  public:
    // Keeps versions in `directory`, by `num_ranks` ranks. `served` is what serves from the start.
    KeepCoordinator(
        TimePoint now, std::string directory, int num_ranks, const ServedVersion& served
    );

    // Another version is committed on every rank.
    [[nodiscard]] messages::WorkerKeep committed(TimePoint now, const ServedVersion& version);

    // Takes an answer, and returns what is to be ordered next. One to no step under way is ignored.
    [[nodiscard]] std::optional<messages::WorkerKeep> part(
        TimePoint now, const messages::WorkerKept& part
    );

    [[nodiscard]] const ServedVersion& version() const { return version_; }
    [[nodiscard]] messages::KeepStatus status(TimePoint now) const;

  private:
    using State = messages::KeepState;
    [[nodiscard]] messages::WorkerKeep order(messages::KeepStep step);
    void enter(TimePoint now, State state);

    std::string directory_;
    std::size_t num_ranks_;
    TimePoint since_{};        // its state, which status_ has
    ServedVersion version_{};  // the one that is to be kept
    CallId call_{};
    messages::KeepStep step_ = messages::KeepStep::kBegin;
    std::vector<bool> has_answered_;  // by rank; to the step under way
    messages::KeepStatus status_{};
};

}  // namespace pitstop::tokenizer
