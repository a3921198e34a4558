#include "tp_worker/model/null_model.h"

#include <algorithm>
#include <cmath>

namespace pitstop::tp_worker {
namespace {

TokenId token_at(const RequestState& request, std::int64_t output_index, std::int64_t vocab_len) {
    const std::span<const TokenId> stops = request.stop_ids();
    const std::int64_t position = request.draw(output_index).position;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(stops.size()); ++i) {
        const auto id = static_cast<TokenId>((position + i) % vocab_len);
        if (std::find(stops.begin(), stops.end(), id) == stops.end()) return id;
    }
    return static_cast<TokenId>((position + static_cast<std::int64_t>(stops.size())) % vocab_len);
}

}  // namespace

void run_null_model(
    std::span<const LogitRow> rows,
    const RequestSlots& slots,
    std::int64_t vocab_len,
    messages::StepResult* result
) {
    const float uniform = -static_cast<float>(std::log(static_cast<double>(vocab_len)));
    messages::StepScores& scores = result->scores;
    std::fill(result->logprobs.values.begin(), result->logprobs.values.end(), uniform);
    std::fill(result->top_logprobs.values.begin(), result->top_logprobs.values.end(), uniform);
    std::fill(result->ids_logprobs.values.begin(), result->ids_logprobs.values.end(), uniform);
    std::fill(scores.logprobs.values.begin(), scores.logprobs.values.end(), uniform);
    std::fill(scores.top_logprobs.values.begin(), scores.top_logprobs.values.end(), uniform);
    std::fill(scores.ids_logprobs.values.begin(), scores.ids_logprobs.values.end(), uniform);
    for (const LogitRow& row : rows) {
        const RequestState& request = *slots[static_cast<std::size_t>(raw(row.slot))];
        const bool is_score = row.kind == LogitRow::Kind::kScore;
        std::vector<TokenId>& top = is_score ? scores.top_ids.values : result->top_ids.values;
        // All logits are equal, so a token's rank follows from its id.
        if (is_score) scores.ranks.values[row.entry] = raw(row.target) + 1;
        const std::int64_t num_top = std::min(request.logprobs().top, vocab_len);
        for (std::int64_t k = 0; k < num_top; ++k) {
            top[row.top_begin + static_cast<std::size_t>(k)] = static_cast<TokenId>(k);
        }
        if (is_score) continue;
        const TokenId token = token_at(request, row.output_index, vocab_len);
        result->sampled.values[row.entry] = token;
        if (request.logprobs().support) result->supports.push_back({.num_ids = 1, .ids = {token}});
        if (request.logprobs().enabled) result->ranks.values[row.entry] = raw(token) + 1;
    }
}

}  // namespace pitstop::tp_worker
