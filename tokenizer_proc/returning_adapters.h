// The adapters that were loaded before a restart, to be loaded again one after the other: each from
// its directory, if that still has the same tensors and configuration.
//
// Each is an update like those of callers: in effect on all replicas or on none. One that cannot be
// loaded is lost: schedulers name it in the answers to its requests.
//
// Thread:  the loop thread only.
// Bounded: by the list that the launcher kept.
#pragma once

#include "messages/adapters.h"
#include "messages/weights.h"

#include <algorithm>
#include <deque>
#include <string_view>
#include <vector>

namespace pitstop::tokenizer {

class ReturningAdapters {
  public:
    // What their updates are called in the door's list of updates.
    static constexpr std::string_view kWhat = "bring_back";

    // Those whose tensors were sent are lost at once.
    void begin(std::vector<messages::LostAdapter> adapters);
    [[nodiscard]] bool is_done() const { return waiting_.empty(); }
    // Returns the update that loads the next one. REQUIRES: !is_done().
    [[nodiscard]] messages::UpdateWeights next() const;
    // Records how the update that next() returned has ended. REQUIRES: !is_done().
    void record(const messages::UpdateReply& reply);
    // The tree shuts down: none follows the one that is being loaded.
    void give_up() { waiting_.resize(std::min<std::size_t>(waiting_.size(), 1)); }

  private:
    std::deque<messages::LostAdapter> waiting_{};  // the first is being loaded
};

}  // namespace pitstop::tokenizer
