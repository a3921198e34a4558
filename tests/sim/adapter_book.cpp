#include "tests/sim/adapter_book.h"

#include "tests/sim/random.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {
namespace {

std::uint64_t number_of(const AdapterBook::MaybeId& id) {
    return id ? static_cast<std::uint64_t>(*id) : 0;
}

}  // namespace

WeightsId AdapterBook::together(WeightsId model, WeightsId adapter) {
    return static_cast<WeightsId>(
        hash_of(static_cast<std::uint64_t>(model), static_cast<std::uint64_t>(adapter), 31)
    );
}

AdapterBook::Problem AdapterBook::committed(messages::AdapterId id, const Loaded& loaded) {
    const auto [place, is_new] = versions_.try_emplace(id, loaded);
    if (is_new) {
        if (auto problem = problem_of_beginning(loaded)) return problem;
        ++num_loads;
        num_rollbacks += loaded.is_rollback ? 1 : 0;
        num_parts += loaded.begins_as && !loaded.is_rollback ? 1 : 0;
        num_sparse_parts += loaded.is_sparse ? 1 : 0;
        if (!ids_.emplace(loaded.number, id).second)
            return fmt::format("version {} of an adapter comes twice (P2)", raw(loaded.number));
        const auto [newest, is_first] = newest_.try_emplace(loaded.name, id);
        if (!is_first && loaded.policy != messages::AdapterPolicy::kFinish)
            successors_.emplace(newest->second, id);
        if (!is_first) previous_.insert_or_assign(loaded.name, newest->second);
        newest->second = id;
    }
    if (place->second.weights == loaded.weights) return std::nullopt;
    return fmt::format("version {} of an adapter has two sets of weights (P2)", raw(loaded.number));
}

AdapterBook::MaybeId AdapterBook::newest(const std::string& name) const {
    const auto place = newest_.find(name);
    return place == newest_.end() ? std::nullopt : MaybeId(place->second);
}

std::optional<WeightsId> AdapterBook::weights_of(MaybeId id) const {
    const auto place = id ? versions_.find(*id) : versions_.end();
    return place == versions_.end() ? std::nullopt : std::optional(place->second.weights);
}

// A partial update changes the version that serves. A rollback returns to the previous version.
AdapterBook::Problem AdapterBook::problem_of_beginning(const Loaded& loaded) const {
    if (!loaded.begins_as) return std::nullopt;
    const MaybeId expected = loaded.is_rollback ? previous(loaded.name) : newest(loaded.name);
    const bool is_same =
        !loaded.is_rollback || !expected || versions_.at(*expected).weights == loaded.weights;
    if (expected == loaded.begins_as && is_same) return problem_of_pin(loaded);
    return fmt::format(
        "version {} of adapter '{}' {} version {}, instead of {}{} (P2)",
        raw(loaded.number),
        loaded.name,
        loaded.is_rollback ? "is to be" : "changes",
        number_of(loaded.begins_as),
        number_of(expected),
        is_same ? "" : ", and has other weights"
    );
}

// A partial update may pin the version, but takes no pin away; a rollback changes none.
AdapterBook::Problem AdapterBook::problem_of_pin(const Loaded& loaded) const {
    const bool was_pinned = versions_.at(*loaded.begins_as).is_pinned;
    if (loaded.is_pinned == was_pinned || (loaded.is_pinned && !loaded.is_rollback))
        return std::nullopt;
    return fmt::format(
        "version {} of adapter '{}' is {}, unlike the version that it begins as",
        raw(loaded.number),
        loaded.name,
        was_pinned ? "not pinned" : "pinned"
    );
}

AdapterBook::MaybeId AdapterBook::previous(const std::string& name) const {
    const auto place = previous_.find(name);
    return place == previous_.end() ? std::nullopt : MaybeId(place->second);
}

AdapterBook::MaybeId AdapterBook::successor(messages::AdapterId id) const {
    const auto place = successors_.find(id);
    return place == successors_.end() ? std::nullopt : MaybeId(place->second);
}

AdapterBook::Problem AdapterBook::problem_of_eviction(messages::AdapterId id) const {
    const auto place = versions_.find(id);
    if (place == versions_.end() || !place->second.is_pinned) return std::nullopt;
    const auto newest = newest_.find(place->second.name);
    if (newest == newest_.end() || newest->second != id) return std::nullopt;
    return fmt::format("adapter {} is pinned, and is evicted", number_of(id));
}

// The queue may be full, and pinned adapters may leave no room for others.
AdapterBook::Problem AdapterBook::problem_of_refusal(
    const std::string& name, const messages::Verdict& why
) const {
    if (!newest_.contains(name)) return std::nullopt;
    if (why.message.find("--max-queued-requests") != std::string::npos) return std::nullopt;
    for (const auto& [each, id] : newest_) {
        if (versions_.at(id).is_pinned && why.code == ErrorCode::kResourceExhausted)
            return std::nullopt;
    }
    return fmt::format("a request for adapter '{}', which is loaded: {}", name, why.message);
}

bool AdapterBook::may_continue(messages::AdapterId from, messages::AdapterId to) const {
    const std::string& name = versions_.at(from).name;
    if (from > to || versions_.at(to).name != name) return false;
    return std::all_of(
        versions_.upper_bound(from),
        versions_.upper_bound(to),
        [&](const auto& entry) {
            const Loaded& each = entry.second;
            return each.name != name || each.policy == messages::AdapterPolicy::kKeep;
        }
    );
}

AdapterBook::Problem AdapterBook::problem_of_kv(MaybeId row, MaybeId entry, bool is_cached) const {
    if (row == entry) return std::nullopt;
    if (row && entry && !is_cached && may_continue(*entry, *row)) return std::nullopt;
    return fmt::format(
        "{} KV of adapter {}, computing with {} (P9)",
        is_cached ? "starts from cached" : "attends to",
        number_of(entry),
        number_of(row)
    );
}

void AdapterBook::sampled(RequestKey key, std::int64_t index, MaybeId id, MaybeId kv_min) {
    std::vector<Sampled>& all = sampled_[key];
    if (index >= std::ssize(all)) all.resize(static_cast<std::size_t>(index) + 1);
    all[static_cast<std::size_t>(index)] = {id, kv_min};
}

AdapterBook::MaybeId AdapterBook::id_of(Epoch number) const {
    const auto place = ids_.find(number);
    return place == ids_.end() ? std::nullopt : MaybeId(place->second);
}

WeightsId AdapterBook::with(WeightsId model, const std::optional<messages::AdapterVersion>& said)
    const {
    if (!said) return model;
    const MaybeId id = id_of(said->version);
    return id ? together(model, versions_.at(*id).weights) : WeightsId{};
}

AdapterBook::Problem AdapterBook::problem_of(
    const messages::TokenizedRequest& request, std::int64_t index, const messages::Span& span
) {
    const std::string name = span.adapter ? span.adapter->name : "";
    if (name != request.adapter) {
        return fmt::format(
            "request {}: it asks for adapter '{}', and a span names '{}'",
            raw(request.key),
            request.adapter,
            name
        );
    }
    if (!span.adapter) return std::nullopt;
    std::vector<Sampled>& passes = sampled_[request.key];
    if (index >= std::ssize(passes)) passes.resize(static_cast<std::size_t>(index) + 1);
    const Sampled& pass = passes[static_cast<std::size_t>(index)];
    const MaybeId kv_min = span.kv_min_adapter ? id_of(*span.kv_min_adapter) : std::nullopt;
    if (pass.id != id_of(span.adapter->version) || pass.kv_min != kv_min) {
        return fmt::format(
            "request {}: output {} is of adapter {} over KV from {} on, its span says {} from {} "
            "on (P3)",
            raw(request.key),
            index,
            number_of(pass.id),
            number_of(pass.kv_min),
            number_of(id_of(span.adapter->version)),
            number_of(kv_min)
        );
    }
    ++num_tokens;
    if (pass.kv_min != pass.id) ++num_over_older;
    return std::nullopt;
}

}  // namespace pitstop::sim
