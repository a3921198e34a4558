// Runs the scheduler's orders about trainers' groups, on a thread of its own: a join waits for the
// other ranks, which may take long.
//
// Thread:  the loop's.
// Bounded: Background::offer().
#pragma once

#include "base/time.h"
#include "messages/frames.h"
#include "messages/groups.h"
#include "tp_worker/sources/source.h"
#include "tp_worker/update/background.h"

#include <vector>

namespace pitstop::tp_worker {

class GroupJoins {
  public:
    // Both outlive this object. `answers` sends the later answers. `worker` has the groups, and the
    // flag that ends waits with the process.
    GroupJoins(const Worker& worker, Background& answers) : worker_(worker), answers_(answers) {}

    // Returns the answers that exist at once.
    [[nodiscard]] std::vector<messages::Frames> execute(
        messages::WorkerGroup order, TimePoint deadline
    );

  private:
    const Worker& worker_;
    Background& answers_;
    Background joining_{};
};

}  // namespace pitstop::tp_worker
