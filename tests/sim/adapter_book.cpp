#include "tests/sim/adapter_book.h"

#include "tests/sim/random.h"

#include <fmt/format.h>

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

AdapterBook::Problem AdapterBook::committed(
    messages::AdapterId id, Epoch version, const std::string& name, WeightsId weights
) {
    const auto [place, is_new] = versions_.try_emplace(id, Version{name, version, weights});
    if (is_new) {
        ++num_loads;
        if (!ids_.emplace(version, id).second)
            return fmt::format("version {} of an adapter comes twice (P2)", raw(version));
    }
    if (place->second.weights == weights) return std::nullopt;
    return fmt::format("version {} of an adapter has two sets of weights (P2)", raw(version));
}

AdapterBook::Problem AdapterBook::problem_of_kv(MaybeId row, MaybeId entry, bool is_cached) const {
    if (row == entry) return std::nullopt;
    const bool are_of_one_name =
        row && entry && versions_.at(*row).name == versions_.at(*entry).name;
    if (are_of_one_name && !is_cached && *entry < *row) return std::nullopt;
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
