// A worker's state of a running request, by slot: how it draws, what its penalties count, which
// logprobs it wants. A plan sets the state up, the same on every rank, until another plan sets up
// the slot again.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "grammar/cpu_allowance.h"
#include "grammar/matcher.h"
#include "kernels/penalties.h"
#include "kernels/sampling.h"
#include "messages/steps.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace pitstop::tp_worker {

// Lower temperatures are greedy: their inverse would leave fp32's range, and at such temperatures
// the best id has all of the mass.
inline constexpr double kTemperatureMin = 1e-6;

class Grammars;

class RequestState {
  public:
    // `grammar`: the setup's grammar, if any, on rank 0. Null on other ranks, which draw no edited
    // rows. `allowance`: the request's, if `grammar` is set. REQUIRES: the setup's ids are below
    // vocab_len (step_batch.h checks).
    RequestState(
        const messages::RequestSetup& setup,
        std::int64_t vocab_len,
        const std::shared_ptr<const grammar::CompiledGrammar>& grammar = nullptr,
        const std::shared_ptr<grammar::CpuAllowance>& allowance = nullptr
    );

    // Returns the draw of output token `output_index`.
    [[nodiscard]] kernels::SampleRow draw(std::int64_t output_index) const;
    [[nodiscard]] const kernels::PenaltyRow& penalty() const { return penalty_; }
    [[nodiscard]] std::span<const kernels::TokenCount> counts() const { return counts_; }
    // Returns the terms to add to the logits of the next output token, number `output_index`. The
    // terms are the request's biases, and minus infinity for ids that are not allowed, would
    // complete bad tokens, or would end the request before min_new_tokens.
    [[nodiscard]] std::span<const kernels::LogitBias> biases(std::int64_t output_index) const {
        return output_index < min_new_tokens_ ? early_biases_.now : biases_.now;
    }
    // Returns whether the logits of output token `output_index` are changed before the draw.
    [[nodiscard]] bool has_edits(std::int64_t output_index) const {
        return has_penalty_ || grammar_ || !biases(output_index).empty();
    }
    // Returns which ids the grammar allows next, a bit each (grammar/matcher.h); empty: all.
    [[nodiscard]] std::span<const std::uint32_t> mask() const { return mask_; }
    // Frees the grammar if it was forgotten: the request has ended. A step under way may still have
    // a row of it.
    void free_forgotten(const Grammars& grammars);
    [[nodiscard]] const messages::LogprobOptions& logprobs() const { return logprobs_; }
    [[nodiscard]] std::span<const TokenId> stop_ids() const { return stop_ids_; }
    // Returns whether its draws depend on earlier draws not only through the logits, but also
    // through counts, bans or a grammar.
    [[nodiscard]] bool follows_tokens() const {
        return has_penalty_ || grammar_ || !bad_tokens_.empty();
    }

    // Records that a step which draws for the request was enqueued: the device has its last token,
    // or will have it (Sampler::sampled()).
    void note_draw() { has_drawn_ = true; }
    // Records that a step which verifies drafts of the request was enqueued: the host learns the
    // last token from the step's result.
    void note_drafts() { has_drawn_ = false; }
    [[nodiscard]] bool has_drawn() const { return has_drawn_; }

    // Returns the token sampled last, which is the input of a row with takes_sampled; -1 if there
    // is none, or the logits were not finite.
    [[nodiscard]] TokenId last_token() const { return last_token_; }
    void record_sampled(TokenId id);

  private:
    // Biases in the order of their ids, each id once: one list for every token, and one that adds
    // the bans of the next token.
    struct Biases {
        std::vector<kernels::LogitBias> always{};  // empty without bad tokens
        std::vector<kernels::LogitBias> now{};
    };
    void count(TokenId id, std::int32_t num_output);
    void set_biases(const messages::SamplingParams& params, std::int64_t vocab_len);
    void set_bad_tokens(const messages::RequestSetup& setup);
    void ban_completions();
    void set_grammar(
        const messages::RequestSetup& setup,
        std::int64_t vocab_len,
        const std::shared_ptr<const grammar::CompiledGrammar>& grammar,
        const std::shared_ptr<grammar::CpuAllowance>& allowance
    );
    void set_mask();

    kernels::SampleRow sample_{};
    kernels::PenaltyRow penalty_{};
    bool has_penalty_ = false;
    std::int64_t prompt_len_ = 0;
    std::int64_t min_new_tokens_ = 0;
    Biases biases_{};
    Biases early_biases_{};
    // Forbidden sequences of two tokens or more, and the output's last tokens: one fewer than the
    // longest sequence has.
    std::vector<std::vector<TokenId>> bad_tokens_{};
    std::vector<TokenId> output_tail_{};
    std::size_t tail_len_max_ = 0;
    std::optional<messages::GrammarId> grammar_{};
    std::optional<grammar::Matcher> matcher_{};  // on rank 0
    std::vector<std::uint32_t> mask_{};
    std::vector<TokenId> stop_ids_{};
    messages::LogprobOptions logprobs_{};
    std::vector<kernels::TokenCount> counts_{};            // in order of first appearance
    std::unordered_map<TokenId, std::size_t> count_of_{};  // looked up, never iterated
    TokenId last_token_{-1};
    bool has_drawn_ = false;
};

}  // namespace pitstop::tp_worker
