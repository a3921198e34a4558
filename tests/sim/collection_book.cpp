#include "tests/sim/collection_book.h"

#include "tests/sim/model_worker.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace pitstop::sim {

void CollectionBook::heard(
    const std::string& bytes, const messages::UpdateReply& reply, WeightsId base
) {
    // Of a commit that is given up a rank may still hear.
    if (reply.state != messages::UpdateState::kTorn &&
        reply.state != messages::UpdateState::kCommitting)
        in_flight_.erase(bytes);
    if (!reply.ok || reply.state != messages::UpdateState::kCollecting) return;
    collected_ = with_bytes(collected_.value_or(base), bytes);
    ++num_calls;
}

void CollectionBook::ordered(const tokenizer::UpdateCoordinator::Order& order) {
    if (std::holds_alternative<messages::UpdateDrop>(order)) {
        collected_.reset();
        deciding_.reset();
    }
    if (std::holds_alternative<messages::UpdateCommit>(order) ||
        std::holds_alternative<messages::UpdateRollback>(order)) {
        deciding_ = std::exchange(collected_, std::nullopt);
        if (deciding_) ++num_committed;
    }
}

void CollectionBook::committed(WeightsId weights) {
    if (!deciding_ || weights == *deciding_) return;
    // The call that brings the last tensor is answered when all of it is in effect.
    const bool has_last_call = std::ranges::any_of(in_flight_, [&](const std::string& bytes) {
        return weights == with_bytes(*deciding_, bytes);
    });
    if (!has_last_call)
        oracle_.fail("a commit brings other bytes than were answered as collected (P2)");
}

}  // namespace pitstop::sim
