// Checks requests against the served model, which decode() does not know.
//
// Thread:  any; immutable.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/generation.h"
#include "messages/greeting.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace pitstop::tokenizer {

class RequestChecks {
  public:
    // Bounds the logprobs of one reply: of a prompt, or of an output with very many logprobs per
    // token.
    static constexpr std::int64_t kLogprobBytesMax = std::int64_t{32} << 20;
    // Bounds the routes of a request: 87,000 tokens of 48 layers with 8 of 128 experts.
    static constexpr std::int64_t kRouteBytesMax = std::int64_t{32} << 20;

    // `replica`: any replica's hello, as all are equal. `end_token`: the tokenizer's own.
    RequestChecks(
        messages::SchedulerHello replica, int num_replicas, std::optional<TokenId> end_token
    );

    // Returns what is wrong with a request, or nothing. If the prompt is text, problem_of_prompt()
    // checks it after tokenization.
    [[nodiscard]] std::optional<Error> problem_of(const messages::Generate& message) const;
    [[nodiscard]] std::optional<Error> problem_of_prompt(
        const messages::Generate& message, std::span<const TokenId> prompt
    ) const;
    // Errors: kInvalidArgument for an id that both the model and the tokenizer (of `num_known`
    // tokens) lack. Either may have tokens that the other lacks.
    [[nodiscard]] Result<> check_decodable(std::span<const TokenId> ids, std::int64_t num_known)
        const;

    // Adds the tokens of the request's bad words to its bad tokens. Errors: kInvalidArgument if
    // they are too many, or not in the model's vocabulary.
    [[nodiscard]] Result<> add_bad_tokens(
        messages::SamplingParams& sampling, std::vector<std::vector<TokenId>> sequences
    ) const;

    // Returns the tokens that end an output by default, ascending: the model's, and the tokenizer's
    // own.
    [[nodiscard]] std::vector<TokenId> end_tokens() const;
    // Returns the tokenizer's end token if this request should end there and the replica does not
    // know that token.
    [[nodiscard]] std::optional<TokenId> further_stop(const messages::SamplingParams& sampling
    ) const;

  private:
    [[nodiscard]] std::optional<Error> problem_of_ids(
        std::string_view field, std::span<const TokenId> ids
    ) const;
    [[nodiscard]] std::optional<Error> problem_of_bans(const messages::SamplingParams& sampling
    ) const;

    messages::SchedulerHello replica_;
    int num_replicas_;
    std::optional<TokenId> end_token_;
};

}  // namespace pitstop::tokenizer
