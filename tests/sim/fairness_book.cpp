#include "tests/sim/fairness_book.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace pitstop::sim {

void FairnessBook::arrived(const messages::TokenizedRequest& request) {
    Waiting arrived{
        .path = request.client,
        .client = request.client.empty() ? "" : request.client.front(),
        .priority = request.priority,
        .has_conversation = request.conversation.has_value()};
    for (const auto& [key, other] : waiting_) {
        if (other.client == arrived.client && other.priority == arrived.priority)
            ++arrived.num_before;
    }
    waiting_.emplace(request.key, std::move(arrived));
    if (!request.prompt.values.empty())
        first_tokens_.emplace(request.key, request.prompt.values.front());
}

bool FairnessBook::may_share(RequestKey key) const {
    const auto own = first_tokens_.find(key);
    return own != first_tokens_.end() && std::ranges::any_of(first_tokens_, [&](const auto& other) {
               return other.first != key && other.second == own->second;
           });
}

bool FairnessBook::may_be_passed_over(RequestKey key) const {
    const Waiting& own = waiting_.at(key);
    return std::ranges::any_of(waiting_, [&](const auto& entry) {
        const auto& [other, waiting] = entry;
        const bool may_be_first = other <= key || waiting.path != own.path;
        return may_be_first && waiting.client == own.client && waiting.priority == own.priority &&
               (waiting.has_conversation || may_share(other));
    });
}

void FairnessBook::admitted(const messages::StepPlan& plan) {
    std::vector<Waiting> begun;  // in one step: none of them overtakes another
    for (const messages::RequestSetup& setup : plan.setups) {
        const auto place = waiting_.find(setup.key);
        if (place == waiting_.end()) continue;  // it ran before
        begun.push_back(std::move(place->second));
        waiting_.erase(place);
    }
    for (const Waiting& one : begun) {
        for (auto& [key, other] : waiting_) {
            if (other.client == one.client || other.priority != one.priority) continue;
            if (may_be_passed_over(key)) continue;
            const std::int64_t count = ++other.overtaken[one.client];
            if (count <= other.num_before + 1) continue;
            oracle_.fail(fmt::format(
                "request {} of client '{}', with {} of its own before it, was overtaken {} times "
                "by client '{}'",
                raw(key),
                other.client,
                other.num_before,
                count,
                one.client
            ));
        }
    }
}

void FairnessBook::retain(const std::function<bool(RequestKey)>& is_open) {
    std::erase_if(waiting_, [&](const auto& entry) { return !is_open(entry.first); });
    std::erase_if(first_tokens_, [&](const auto& entry) { return !is_open(entry.first); });
}

}  // namespace pitstop::sim
