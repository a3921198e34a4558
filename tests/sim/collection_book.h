// The calls without a session that become one update, and their content. All calls answered as
// collected take effect together and in order, or none does (P2, P10).
#pragma once

#include "messages/weights.h"
#include "tests/sim/oracle.h"
#include "tokenizer_proc/update_output.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace pitstop::sim {

class CollectionBook {
  public:
    // The oracle outlives the book.
    explicit CollectionBook(Oracle& oracle) : oracle_(oracle) {}

    // The version that a collection is laid over. kNothing: the collection must bring every tensor.
    enum class Over { kServing, kNothing };

    // A trainer sends these bytes without a session.
    void sent(const std::string& bytes) { in_flight_.insert(bytes); }
    // The call with these bytes is answered while its collection is being dropped.
    void answered(const std::string& bytes, const messages::UpdateReply& reply);
    // The call with these bytes is answered. `serving` is the version under the collection, if any.
    void heard(
        const std::string& bytes, const messages::UpdateReply& reply, Over over, WeightsId serving
    );
    // The coordinator gives an order while `serving` is live. `is_published`: a publishing call is
    // waiting. A later pause does not end a commit in progress.
    void ordered(const tokenizer::ReplicaOrder& order, bool is_published, Epoch serving);
    // A rank has committed `weights`.
    void committed(WeightsId weights);

    // The answer to a call that continues generation, or brings weights, reports the loss.
    void told_of_loss() { lost_at_.reset(); }
    // Returns whether calls that were answered as collected took no effect, and no caller was told.
    // `serving` served at the loss, and still serves.
    [[nodiscard]] bool is_lost(Epoch serving) const { return lost_at_ == serving; }

    std::int64_t num_calls = 0;  // calls answered as collected
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
    std::optional<Collected> collected_{};  // the open collection
    std::optional<WeightsId> deciding_{};   // the collection whose commit was ordered last
    bool is_finishing_ = false;             // the last order was to verify
    bool is_asked_for_ = false;             // a publishing call waited for the verified collection
    std::optional<Epoch> lost_at_{};        // the version that served when calls were lost
};

}  // namespace pitstop::sim
