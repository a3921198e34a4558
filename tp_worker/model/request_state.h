// What a worker keeps of a running request, by slot: how it draws, what its penalties count, which
// logprobs it wants. Set up by a plan, the same on every rank; it lives until the slot is set up
// again.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "kernels/penalties.h"
#include "kernels/sampling.h"
#include "messages/steps.h"

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace pitstop::tp_worker {

// Below it a temperature is greedy: its inverse would leave fp32's range, and long before that the
// best id has all of the mass.
inline constexpr double kTemperatureMin = 1e-6;

class RequestState {
  public:
    // REQUIRES: the setup's ids are below vocab_len (step_batch.h checks).
    explicit RequestState(const messages::RequestSetup& setup);

    // The draw of output token `output_index`.
    [[nodiscard]] kernels::SampleRow draw(std::int64_t output_index) const;
    [[nodiscard]] const kernels::PenaltyRow& penalty() const { return penalty_; }
    [[nodiscard]] std::span<const kernels::TokenCount> counts() const { return counts_; }
    // Added to the logits of output token `output_index`; until min_new_tokens it bans the ids that
    // would end the request.
    [[nodiscard]] std::span<const kernels::LogitBias> biases(std::int64_t output_index) const {
        return output_index < min_new_tokens_ ? early_biases_ : biases_;
    }
    // Whether the logits of output token `output_index` are changed before the draw.
    [[nodiscard]] bool has_edits(std::int64_t output_index) const {
        return has_penalty_ || !biases(output_index).empty();
    }
    [[nodiscard]] const messages::LogprobOptions& logprobs() const { return logprobs_; }
    [[nodiscard]] std::span<const TokenId> stop_ids() const { return stop_ids_; }

    // What it sampled last: the input of a row that takes_sampled. -1: nothing, or the logits were
    // not finite.
    [[nodiscard]] TokenId last_token() const { return last_token_; }
    void take_sampled(TokenId id);

  private:
    void count(TokenId id, std::int32_t num_output);

    kernels::SampleRow sample_{};
    kernels::PenaltyRow penalty_{};
    bool has_penalty_ = false;
    std::int64_t prompt_len_ = 0;
    std::int64_t min_new_tokens_ = 0;
    std::vector<kernels::LogitBias> biases_{};
    std::vector<kernels::LogitBias> early_biases_{};
    std::vector<TokenId> stop_ids_{};
    messages::LogprobOptions logprobs_{};
    std::vector<kernels::TokenCount> counts_{};            // in order of first appearance
    std::unordered_map<TokenId, std::size_t> count_of_{};  // looked up, never iterated
    TokenId last_token_{-1};
};

}  // namespace pitstop::tp_worker
