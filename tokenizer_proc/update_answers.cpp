#include "tokenizer_proc/update_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pitstop::tokenizer {
namespace {

std::string list_of(const std::vector<Rank>& ranks) {
    std::vector<std::int32_t> numbers;
    for (const Rank rank : ranks) numbers.push_back(raw(rank));
    return fmt::format("{}", fmt::join(numbers, ", "));
}

}  // namespace

void UpdateAnswers::ask(messages::UpdateOrder order) {
    round_.ask(order);
    awaited_.assign(awaited_.size(), {});
}

messages::UpdateRound::Progress UpdateAnswers::record(const messages::UpdatePart& part) {
    const auto at = static_cast<std::size_t>(raw(part.replica));
    const bool is_committing = phase() == messages::UpdatePhase::kCommitting;
    answers_[at] = part;
    if (!part.outcome.ranks.empty() || is_committing) outcomes_[at] = part.outcome;
    return round_.record_answer(
        at, part.ok ? messages::UpdateRound::Answer::kDone : messages::UpdateRound::Answer::kFailed
    );
}

bool UpdateAnswers::record_awaited(messages::UpdateWaits waits) {
    const std::int32_t index = raw(waits.replica);
    if (index < 0 || index >= std::ssize(awaited_)) return false;
    awaited_[static_cast<std::size_t>(index)] = std::move(waits.ranks);
    return true;
}

std::optional<Error> UpdateAnswers::problem_of_stages() const {
    const messages::UpdatePart& first = answers_.front();
    for (const messages::UpdatePart& answer : answers_) {
        if (answer.digest != first.digest) {
            return make_error(
                ErrorCode::kDataLoss,
                "replicas {} and {} staged different weights: digests {} and {}",
                raw(first.replica),
                raw(answer.replica),
                first.digest,
                answer.digest
            );
        }
        if (answer.adapter_config_digest != first.adapter_config_digest) {
            return make_error(
                ErrorCode::kDataLoss,
                "replicas {} and {} read different configurations of the adapter "
                "(adapter_config.json): digests {} and {}; leave its directory unchanged until the "
                "answer",
                raw(first.replica),
                raw(answer.replica),
                first.adapter_config_digest,
                answer.adapter_config_digest
            );
        }
    }
    return std::nullopt;
}

std::optional<ErrorCode> UpdateAnswers::refusal_code() const {
    for (std::size_t i = 0; i < answers_.size(); ++i) {
        const messages::UpdatePart& answer = answers_[i];
        if (!round_.has_answered(i) || answer.ok || answer.verdict.is_done()) continue;
        return answer.verdict.error().code;
    }
    return std::nullopt;
}

bool UpdateAnswers::is_any_torn() const {
    return std::ranges::any_of(answers_, [](const messages::UpdatePart& answer) {
        return answer.state == messages::UpdateState::kTorn;
    });
}

bool UpdateAnswers::may_have_written() const {
    return std::ranges::any_of(outcomes_, [](const messages::ReplicaOutcome& replica) {
        return messages::may_have_written(replica.ranks);
    });
}

void UpdateAnswers::add_to(messages::UpdateReply& reply) const {
    messages::UpdateSeconds& spent = reply.seconds;
    for (const messages::ReplicaOutcome& replica : outcomes_) {
        for (const messages::RankOutcome& rank : replica.ranks) {
            reply.bytes += rank.bytes;
            if (rank.stage.sum() > spent.stage.sum()) spent.stage = rank.stage;
        }
        spent.pause_s = std::max(spent.pause_s, replica.pause_s);
        spent.commit_s = std::max(spent.commit_s, replica.commit_s);
    }
    reply.replicas = outcomes_;
}

std::int64_t UpdateAnswers::bytes() const {
    std::int64_t bytes = 0;
    for (const messages::ReplicaOutcome& replica : outcomes_) {
        for (const messages::RankOutcome& rank : replica.ranks) bytes += rank.bytes;
    }
    return bytes;
}

const messages::RankOutcome* UpdateAnswers::most_missing() const {
    const messages::RankOutcome* most = nullptr;
    for (const messages::ReplicaOutcome& replica : outcomes_) {
        for (const messages::RankOutcome& rank : replica.ranks) {
            if (rank.num_missing > (most == nullptr ? 0 : most->num_missing)) most = &rank;
        }
    }
    return most;
}

std::int64_t UpdateAnswers::num_missing() const {
    const messages::RankOutcome* most = most_missing();
    return most == nullptr ? 0 : most->num_missing;
}

std::string UpdateAnswers::who_is_missing() const {
    std::string names;
    for (const std::size_t i : round_.silent()) {
        std::string who = "scheduler_proc";  // a live scheduler reports the ranks it waits for
        if (!awaited_[i].empty()) who = "rank " + list_of(awaited_[i]);
        names += fmt::format("{}replica {} ({})", names.empty() ? "" : ", ", i, who);
    }
    return names;
}

}  // namespace pitstop::tokenizer
