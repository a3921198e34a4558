#include "tp_worker/model/request_state.h"

#include <algorithm>
#include <limits>
#include <map>

namespace pitstop::tp_worker {

RequestState::RequestState(const messages::RequestSetup& setup)
    : prompt_len_(setup.prompt_len),
      min_new_tokens_(setup.sampling.min_new_tokens),
      stop_ids_(setup.stop_ids),
      logprobs_(setup.logprobs) {
    const messages::SamplingParams& params = setup.sampling;
    if (params.temperature >= kTemperatureMin) {
        sample_.temperature = static_cast<float>(params.temperature);
    }
    if (params.top_k >= 1 && params.top_k < kernels::kTopKOff) {
        sample_.top_k = static_cast<std::int32_t>(params.top_k);
    }
    // A top_p that fp32 rounds to 0 still keeps the best id.
    sample_.top_p = std::max(static_cast<float>(params.top_p), std::numeric_limits<float>::min());
    sample_.min_p = static_cast<float>(params.min_p);
    sample_.seed = params.seed.value_or(0);

    penalty_ = {
        .repetition = static_cast<float>(params.repetition_penalty),
        .frequency = static_cast<float>(params.frequency_penalty),
        .presence = static_cast<float>(params.presence_penalty),
    };
    has_penalty_ =
        penalty_.repetition != 1.f || penalty_.frequency != 0.f || penalty_.presence != 0.f;
    if (has_penalty_) {
        const std::int64_t output_begin = prompt_len_ - params.num_output_in_prompt;
        for (std::size_t i = 0; i < setup.history.size(); ++i) {
            const bool is_output = static_cast<std::int64_t>(i) >= output_begin;
            count(setup.history[i], is_output ? 1 : 0);
        }
    }
    std::map<TokenId, float> biases;
    for (const auto& [id, bias] : params.logit_bias) {
        biases[static_cast<TokenId>(id)] = static_cast<float>(bias);
    }
    for (const auto& [id, bias] : biases) biases_.push_back({id, bias});
    for (const TokenId id : stop_ids_) biases[id] = -std::numeric_limits<float>::infinity();
    for (const auto& [id, bias] : biases) early_biases_.push_back({id, bias});
}

kernels::SampleRow RequestState::draw(std::int64_t output_index) const {
    kernels::SampleRow row = sample_;
    row.position = static_cast<std::uint32_t>(prompt_len_ + output_index);
    return row;
}

void RequestState::count(TokenId id, std::int32_t num_output) {
    const auto [place, is_new] = count_of_.emplace(id, counts_.size());
    if (is_new) counts_.push_back({.id = id});
    counts_[place->second].num_output += num_output;
}

void RequestState::take_sampled(TokenId id) {
    last_token_ = id;
    if (has_penalty_ && raw(id) >= 0) count(id, 1);
}

}  // namespace pitstop::tp_worker
