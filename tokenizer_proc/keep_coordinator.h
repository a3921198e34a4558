// Drives --keep-committed: the workers of replica 0 write the latest committed version to a
// directory, step by step (messages/keep.h).
//
//   begin (rank 0) -> write (every rank) -> seal (rank 0)
//
// The newest version wins: a later commit ends the current writing. A failed step ends the writing
// of its version, which the status reports. The serving version is not affected.
//
// Pure: time in, orders out, without clock or socket.
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
    // Keeps versions in `directory`, written by `num_ranks` ranks. `served`: the version that
    // serves from the start.
    KeepCoordinator(
        TimePoint now, std::string directory, int num_ranks, const ServedVersion& served
    );

    // Begins to keep a version that was committed on every rank.
    [[nodiscard]] messages::WorkerKeep committed(TimePoint now, const ServedVersion& version);

    // Handles an answer. Returns the next order, or nothing. Ignores an answer that belongs to no
    // current step.
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
    TimePoint since_{};        // when status_'s state began
    ServedVersion version_{};  // the version to keep
    CallId call_{};
    messages::KeepStep step_ = messages::KeepStep::kBegin;
    std::vector<bool> has_answered_;  // by rank: the current step
    messages::KeepStatus status_{};
};

}  // namespace pitstop::tokenizer
