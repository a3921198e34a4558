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

    // What a collection is laid over; a whole one must bring every tensor.
    enum class Over { kServing, kNothing };

    // Somebody sends these bytes without a session.
    void sent(const std::string& bytes) { in_flight_.insert(bytes); }
    // That call is answered, and what it collected is being dropped.
    void answered(const std::string& bytes, const messages::UpdateReply& reply);
    // That call is answered. `serving` is live, if the collection is laid over it.
    void heard(
        const std::string& bytes, const messages::UpdateReply& reply, Over over, WeightsId serving
    );
    // The coordinator orders something while `serving` is live. `is_published`: somebody waits for
    // a call that publishes. A pause that comes later ends no commit under way.
    void ordered(
        const tokenizer::UpdateCoordinator::Order& order, bool is_published, Epoch serving
    );
    // A rank has committed `weights`.
    void committed(WeightsId weights);

    // A call that lets generation go on, or brings weights, is told of the loss.
    void told_of_loss() { lost_at_.reset(); }
    // Calls that were answered as collected take no effect, and nobody was told: the version that
    // served then is `serving` still.
    [[nodiscard]] bool is_lost(Epoch serving) const { return lost_at_ == serving; }

    std::int64_t num_calls = 0;  // that were answered as collected
    std::int64_t num_committed = 0;
    std::int64_t num_lost = 0;  // collections
    std::int64_t num_dropped = 0;

  private:
    struct Collected {
        WeightsId weights{};
        std::set<std::string> bytes{};
        bool is_whole = false;
    };

    Oracle& oracle_;
    std::set<std::string> in_flight_{};
    std::optional<Collected> collected_{};  // of the collection that is open
    std::optional<WeightsId> deciding_{};   // of the one whose commit was ordered last
    bool is_finishing_ = false;             // its last order was to be verified
    bool is_asked_for_ = false;             // as it was ordered to be verified
    std::optional<Epoch> lost_at_{};        // what served when calls were lost
};

}  // namespace pitstop::sim
