// The adapters that were loaded before a restart, to be loaded again one after the other: each from
// its directory, if that still has the same tensors and configuration.
//
// Each is an update like those of callers: in effect on all replicas or on none. One that cannot be
// loaded is lost: schedulers name it in the answers to its requests. All have a time together,
// which the launcher takes from --start-timeout: those that are not back by then are lost, too.
//
// Thread:  the loop thread only.
// Bounded: by the list that the launcher kept.
#pragma once

#include "base/time.h"
#include "messages/adapters.h"
#include "messages/weights.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {

class ReturningAdapters {
  public:
    // What their updates are called in the door's list of updates.
    static constexpr std::string_view kWhat = "bring_back";

    struct Args {
        std::vector<messages::LostAdapter> adapters{};
        Duration limit = std::chrono::minutes(5);
    };
    // Those whose tensors were sent are lost at once.
    void begin(TimePoint now, Args args);
    [[nodiscard]] bool is_done() const { return waiting_.empty(); }
    // Calls `load` with the update of one after the other, until one is under way. A load that ends
    // at once may call this again: then the next one is loaded after it, and not in it.
    template <class IsBusy, class Load>
    void go_on(TimePoint now, IsBusy is_busy, Load load) {
        if (std::exchange(is_going_on_, true)) return;
        while (!is_busy() && has_next(now)) load(next(now));
        is_going_on_ = false;
    }
    // Records how the update of the first has ended. REQUIRES: !is_done().
    void record(const messages::UpdateReply& reply);
    // The tree shuts down: none follows the one that is being loaded.
    void give_up() { waiting_.resize(std::min<std::size_t>(waiting_.size(), 1)); }

  private:
    // Gives up all if their time is over.
    [[nodiscard]] bool has_next(TimePoint now);
    [[nodiscard]] messages::UpdateWeights next(TimePoint now) const;

    TimePoint deadline_{};
    bool is_going_on_ = false;
    std::deque<messages::LostAdapter> waiting_{};  // the first is being loaded
};

}  // namespace pitstop::tokenizer
