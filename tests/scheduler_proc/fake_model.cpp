// The next token of the fake workers' model after a context.
#include "base/digest.h"
#include "tests/scheduler_proc/fake_workers.h"

#include <algorithm>

namespace pitstop::scheduler {
namespace {

std::uint64_t hash_of(const FakeModel& model, std::span<const TokenId> context) {
    std::uint64_t hash = mix64(model.weights + 77);
    for (const TokenId token : context) {
        hash = mix64(hash ^ (static_cast<std::uint64_t>(raw(token)) + 0x100000001b3u));
    }
    return hash;
}

std::uint64_t number_of(messages::AdapterId adapter) { return static_cast<std::uint64_t>(adapter); }

}  // namespace

FakeModel FakeModel::adapted(std::optional<messages::AdapterId> adapter) const {
    FakeModel model = *this;
    if (adapter) model.weights = mix64(weights ^ (number_of(*adapter) + 0x9e3779b9u));
    return model;
}

TokenId fake_next_token(
    const FakeModel& model,
    std::span<const TokenId> context,
    const messages::SamplingParams& sampling,
    std::span<const TokenId> stop_ids,
    std::int64_t output_index
) {
    const std::uint64_t hash = mix64(hash_of(model, context) + sampling.seed.value_or(0));
    const auto one_in = [&](std::int64_t n, int shift) {
        return n > 0 && (hash >> shift) % static_cast<std::uint64_t>(n) == 0;
    };
    if (one_in(model.nan_one_in, 40)) return kNoToken;
    auto token = static_cast<std::int64_t>(hash % static_cast<std::uint64_t>(model.vocab_size));
    if (one_in(model.eos_one_in, 20)) token = raw(model.eos_ids.front());
    // The tokens masked before min_new_tokens.
    while (output_index < sampling.min_new_tokens &&
           std::ranges::find(stop_ids, static_cast<TokenId>(token)) != stop_ids.end()) {
        token = (token + 1) % model.vocab_size;
    }
    return static_cast<TokenId>(token);
}

float fake_logprob(const FakeModel& model, std::span<const TokenId> context, TokenId token) {
    const std::uint64_t hash =
        mix64(hash_of(model, context) + static_cast<std::uint64_t>(raw(token)));
    return -static_cast<float>(hash >> 44) / 65536.0f;
}

std::int32_t fake_rank(std::span<const TokenId> context, TokenId token) {
    return static_cast<std::int32_t>(context.size()) * 1000 + raw(token) + 1;
}

TokenId fake_top_token(const FakeModel& model, std::span<const TokenId> context, std::int64_t i) {
    const std::uint64_t hash = mix64(hash_of(model, context) * 3 + static_cast<std::uint64_t>(i));
    return static_cast<TokenId>(hash % static_cast<std::uint64_t>(model.vocab_size));
}

std::vector<std::uint8_t> fake_routes(const FakeModel& model, std::span<const TokenId> context) {
    std::vector<std::uint8_t> row;
    for (std::int64_t i = 0; i < model.routes->ids_per_row(); ++i) {
        const std::uint64_t hash =
            mix64(hash_of(model, context) * 5 + static_cast<std::uint64_t>(i));
        const std::uint64_t expert = hash % static_cast<std::uint64_t>(model.routes->num_experts);
        row.push_back(static_cast<std::uint8_t>(expert & 0xff));
        if (model.routes->id_bytes() == 2) row.push_back(static_cast<std::uint8_t>(expert >> 8));
    }
    return row;
}

}  // namespace pitstop::scheduler
