// After a restart, loads the adapters that were loaded before, one at a time. An adapter is loaded
// from its directory, if that still has the same tensors and configuration.
//
// Each load is an update like a caller's: it takes effect on all replicas or on none. An adapter
// that cannot be loaded is lost: schedulers name it in answers to its requests. All loads share a
// time limit, which the launcher takes from --start-timeout; adapters not loaded then are lost.
//
// Thread:  the loop thread only.
// Bounded: by the launcher's list.
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
    // The name of these updates in the door's list of updates.
    static constexpr std::string_view kWhat = "bring_back";

    struct Args {
        std::vector<messages::LostAdapter> adapters{};
        Duration limit = std::chrono::minutes(5);
    };
    // Adapters whose tensors a client had sent are lost at once.
    void begin(TimePoint now, Args args);
    [[nodiscard]] bool is_done() const { return waiting_.empty(); }
    // Calls `load` with the update of one adapter at a time, until an update is in progress. A load
    // that ends at once may call go_on() again; the next adapter is then loaded by the outer call.
    template <class IsBusy, class Load>
    void go_on(TimePoint now, IsBusy is_busy, Load load) {
        if (std::exchange(is_going_on_, true)) return;
        while (!is_busy() && has_next(now)) load(next(now));
        is_going_on_ = false;
    }
    // Records how the update of the first waiting adapter ended. REQUIRES: !is_done().
    void record(const messages::UpdateReply& reply);
    // The tree shuts down: no further adapter is loaded.
    void give_up() { waiting_.resize(std::min<std::size_t>(waiting_.size(), 1)); }

  private:
    // Returns whether there is an adapter to load. Gives up all if their time is over.
    [[nodiscard]] bool has_next(TimePoint now);
    [[nodiscard]] messages::UpdateWeights next(TimePoint now) const;

    TimePoint deadline_{};
    bool is_going_on_ = false;
    std::deque<messages::LostAdapter> waiting_{};  // the first is being loaded
};

}  // namespace pitstop::tokenizer
