#include "tests/sim/collection_book.h"

#include "tests/sim/model_worker.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace pitstop::sim {

void CollectionBook::answered(const std::string& bytes, const messages::UpdateReply& reply) {
    // A rank may still get a commit that was given up.
    if (reply.state != messages::UpdateState::kTorn &&
        reply.state != messages::UpdateState::kCommitting)
        in_flight_.erase(bytes);
}

void CollectionBook::heard(
    const std::string& bytes, const messages::UpdateReply& reply, Over over, WeightsId serving
) {
    answered(bytes, reply);
    if (!reply.ok || reply.state != messages::UpdateState::kCollecting) return;
    if (!collected_) {
        collected_ = {
            .weights = over == Over::kServing ? serving : WeightsId{},
            .is_whole = over == Over::kNothing};
    }
    ++num_calls;
    // The same bytes again change nothing.
    if (!collected_->bytes.insert(bytes).second) return;
    collected_->weights = with_bytes(collected_->weights, bytes);
}

void CollectionBook::ordered(
    const tokenizer::ReplicaOrder& order, bool is_published, Epoch serving
) {
    const bool was_finishing =
        std::exchange(is_finishing_, std::holds_alternative<messages::UpdateFinish>(order));
    if (std::holds_alternative<messages::UpdateReady>(order)) is_finishing_ = was_finishing;
    if (is_finishing_ && !was_finishing) is_asked_for_ = is_published;
    if (const auto* drop = std::get_if<messages::UpdateDrop>(&order)) {
        // A failed commit counts as no loss, because its caller is told of it. A drop that a client
        // ordered (drop_stage, without a reason) counts as none either.
        if (collected_ && !collected_->is_whole && !was_finishing && !drop->reason.empty()) {
            lost_at_ = serving;
            ++num_lost;
        }
        if (collected_) ++num_dropped;
        collected_.reset();
        deciding_.reset();
    }
    if (std::holds_alternative<messages::UpdateCommit>(order) ||
        std::holds_alternative<messages::UpdateRollback>(order)) {
        const std::optional<Collected> taken = std::exchange(collected_, std::nullopt);
        deciding_.reset();
        if (!taken) return;
        deciding_ = taken->weights;
        ++num_committed;
        if (taken->is_whole) return;
        if (!is_asked_for_)
            oracle_.fail("a collection takes effect, and nobody asked for that (P2)");
        if (is_lost(serving)) oracle_.fail("half of what was collected takes effect (P2)");
    }
}

void CollectionBook::committed(WeightsId weights) {
    if (!deciding_ || weights == *deciding_) return;
    // The call that brings the last tensor is answered only when the whole update is in effect.
    const bool has_last_call = std::ranges::any_of(in_flight_, [&](const std::string& bytes) {
        return weights == with_bytes(*deciding_, bytes);
    });
    if (!has_last_call)
        oracle_.fail("a commit brings other bytes than were answered as collected (P2)");
}

}  // namespace pitstop::sim
