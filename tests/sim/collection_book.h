// Keeps, of the calls without a session that become one update, what they brought: whatever was
// answered as collected takes effect as one, whole and in order, or not at all (P2, P10).
#pragma once

#include "messages/weights.h"
#include "tests/sim/oracle.h"
#include "tokenizer_proc/update_coordinator.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace pitstop::sim {

class CollectionBook {
  public:
    // The oracle outlives the book.
    explicit CollectionBook(Oracle& oracle) : oracle_(oracle) {}

    // Somebody sends these bytes without a session.
    void sent(const std::string& bytes) { in_flight_.insert(bytes); }
    // That call is answered. `base` is what its update is laid over, if it is the first.
    void heard(const std::string& bytes, const messages::UpdateReply& reply, WeightsId base);
    // The coordinator orders something.
    void ordered(const tokenizer::UpdateCoordinator::Order& order);
    // A rank has committed `weights`.
    void committed(WeightsId weights);

    std::int64_t num_calls = 0;  // that were answered as collected
    std::int64_t num_committed = 0;

  private:
    Oracle& oracle_;
    std::set<std::string> in_flight_{};
    std::optional<WeightsId> collected_{};  // of the collection that is open
    std::optional<WeightsId> deciding_{};   // of the one whose commit was ordered last
};

}  // namespace pitstop::sim
