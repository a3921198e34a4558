#include "scheduler_proc/update_answers.h"

#include <utility>

namespace pitstop::scheduler {
namespace {

messages::UpdateState state_of(const UpdateFacts& facts) {
    if (facts.weights.are_torn()) return messages::UpdateState::kTorn;
    const bool is_staged = facts.job && facts.job->phase() >= messages::UpdatePhase::kPrepared &&
                           facts.job->phase() <= messages::UpdatePhase::kReady;
    if (is_staged) return messages::UpdateState::kStaged;
    return facts.weights.are_awaited() ? messages::UpdateState::kAwaitingWeights
                                       : messages::UpdateState::kServing;
}

messages::UpdatePart part_of(
    messages::UpdateId update, messages::UpdateOrder order, const UpdateFacts& facts
) {
    const Version& version = facts.weights.version();
    messages::UpdatePart part;
    part.update = update;
    part.replica = facts.config.replica;
    part.order = order;
    part.state = state_of(facts);
    part.epoch = version.epoch;
    part.label = version.label;
    part.digest = version.digest;
    part.outcome.replica = facts.config.replica;
    return part;
}

}  // namespace

messages::UpdatePart answer_to(
    messages::UpdateOrder order, std::optional<Error> error, const UpdateFacts& facts
) {
    const UpdateJob& job = *facts.job;
    messages::UpdatePart part = part_of(job.id, order, facts);
    part.ok = !error;
    if (error) {
        part.verdict = *std::move(error);
    } else if (order == messages::UpdateOrder::kStage) {
        part.epoch = job.new_epoch;
        part.label = job.label;
        part.digest = job.digest;
        part.adapter_config_digest = job.adapter_config_digest;
    } else if (order == messages::UpdateOrder::kDrop) {
        part.verdict.message = job.drop_reason;
    }
    part.outcome = job.full_outcome();
    part.outcome.replica = facts.config.replica;
    return part;
}

messages::UpdatePart refusal_of(
    messages::UpdateId update, messages::UpdateOrder order, Error error, const UpdateFacts& facts
) {
    messages::UpdatePart part = part_of(update, order, facts);
    part.verdict = std::move(error);
    return part;
}

messages::UpdatePart nothing_to_drop(const messages::UpdateDrop& order, const UpdateFacts& facts) {
    messages::UpdatePart part = part_of(order.update, messages::UpdateOrder::kDrop, facts);
    part.ok = true;
    part.verdict.message = order.reason;
    return part;
}

messages::UpdateWaits awaited_by(const UpdateFacts& facts) {
    return {
        .update = facts.job->id,
        .replica = facts.config.replica,
        .ranks = facts.job->silent_ranks(),
    };
}

}  // namespace pitstop::scheduler
