// The turn to have NCCL work in flight: only one of the groups of this process has it at a time.
//
// Communicators' kernels spin until the peers arrive, and NCCL guarantees nothing for two
// communicators of one GPU whose kernels do not run in the same order on every rank. With one at a
// time, no order can be wrong. A step's sums (rank_nccl.h) take the turn only if it is free and no
// group waits for it, so a group gets its turn even if steps follow each other closely. Source:
// NCCL documentation, "Using multiple NCCL communicators concurrently".
//
// Thread: any.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "tp_worker/groups/patience.h"

#include <optional>
#include <string>
#include <utility>

namespace pitstop::tp_worker {

class NcclTurn {
  public:
    // The turn of one owner, until destroyed.
    class Held {
      public:
        explicit Held(NcclTurn& turn) : turn_(&turn) {}
        Held(Held&& other) noexcept : turn_(std::exchange(other.turn_, nullptr)) {}
        Held& operator=(Held&&) = delete;
        ~Held() {
            if (turn_ != nullptr) turn_->give_back();
        }

      private:
        NcclTurn* turn_;
    };

    // Takes the turn if it is free and nothing waits for it. Does not wait.
    [[nodiscard]] std::optional<Held> try_take(const std::string& group);
    // Waits for the turn. Errors: kDeadlineExceeded names the group that has the turn; kAborted.
    Result<Held> take(const std::string& group, const Patience& patience);
    // Limits how long a group may have the turn. Needed if the replica's own steps use NCCL as well
    // (nodes_communicator.h).
    void bound(Duration held_max);
    // Returns `patience`, limited by the bound. REQUIRES: the turn was taken just now.
    [[nodiscard]] Patience within_bound(const Patience& patience) const;
    // Returns how many calls of take() wait.
    [[nodiscard]] int num_waiting() const;

  private:
    Result<> wait_until_free(const std::string& group, const Patience& patience, MutexLock& lock)
        REQUIRES(mutex_);
    void give_back();

    mutable Mutex mutex_{};
    Condition is_free_{};
    bool is_taken_ GUARDED_BY(mutex_) = false;
    int num_waiting_ GUARDED_BY(mutex_) = 0;
    std::optional<Duration> held_max_ GUARDED_BY(mutex_){};
    std::string group_ GUARDED_BY(mutex_){};  // the group that has the turn
};

}  // namespace pitstop::tp_worker
