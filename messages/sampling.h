// The parameters of drawing a request's tokens, and the parts of their distributions to report.
// Part of `generate` and `tokenized_request` (messages/generation.h), and of a step's setups
// (messages/steps.h).
#pragma once

#include "base/ids.h"
#include "messages/fields.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

inline constexpr std::size_t kStopsMax = 64;
inline constexpr std::size_t kStopBytesMax = 1024;
inline constexpr std::size_t kStopTokensMax = 1024;
inline constexpr std::size_t kLogitBiasMax = std::size_t{1} << 20;      // entries
inline constexpr std::size_t kAllowedTokensMax = std::size_t{1} << 20;  // entries
inline constexpr std::size_t kBadWordsMax = 1024;
inline constexpr std::size_t kBadWordBytesMax = 1024;
inline constexpr std::size_t kBadSequencesMax = 4096;  // two per word, plus those of the caller
inline constexpr std::size_t kBadTokensMax = std::size_t{1} << 16;  // of all sequences together
inline constexpr int kTopLogprobsMax = 1 << 20;                     // a whole vocabulary
// The most bytes of a grammar, and the deepest nesting of its brackets.
inline constexpr std::size_t kGrammarBytesMax = std::size_t{1} << 18;
inline constexpr std::size_t kGrammarDepthMax = 64;
// A request for more logprobs per position than this is *wide*: the door limits the request's
// positions, and a step computes few of them.
inline constexpr int kWideTopLogprobs = 256;
inline constexpr std::size_t kLogprobIdsMax = 1024;

// The parameters of drawing the next token. The order is: penalties, logit bias, temperature; then
// top-k, top-p and min-p on the scaled distribution; then one draw. A token that is not allowed,
// would complete a bad word, or does not match the grammar has a bias of minus infinity.
//
// A request has at most one of json_schema, regex, ebnf and structural_tag: its output, as text,
// must match this grammar. Once the output is complete, only an end-of-sequence token may follow,
// unless the grammar allows more.
struct SamplingParams {
    std::optional<std::int64_t> max_new_tokens{};
    std::int64_t min_new_tokens = 0;
    double temperature = 1.0;
    std::optional<std::int64_t> top_k{};
    double top_p = 1.0;
    double min_p = 0.0;
    double repetition_penalty = 1.0;
    double frequency_penalty = 0.0;
    double presence_penalty = 0.0;
    std::int64_t num_output_in_prompt = 0;
    std::map<std::int64_t, double> logit_bias{};
    std::vector<TokenId> allowed_token_ids{};
    std::vector<std::string> bad_words{};
    std::vector<std::vector<TokenId>> bad_tokens{};
    std::optional<std::uint64_t> seed{};
    std::vector<std::string> stop{};
    std::vector<TokenId> stop_token_ids{};
    std::string json_schema{};
    std::string regex{};
    std::string ebnf{};
    std::string structural_tag{};
    bool ignore_eos = false;
    bool no_stop_trim = false;
    bool skip_special_tokens = true;
    bool spaces_between_special_tokens = true;

    template <class F>
    void fields(F&& f) {
        f("max_new_tokens",
          max_new_tokens,
          "at most this many output tokens; absent: as many as fit the context");
        f("min_new_tokens",
          min_new_tokens,
          "no end-of-sequence token, stop token or stop text before this many output tokens");
        f("temperature",
          temperature,
          "logits are divided by the temperature; 0: greedy, the token with the largest logit, and "
          "the lowest id among equal ones");
        f("top_k", top_k, "draw among the k largest, including ties with the k-th; absent: all");
        f("top_p",
          top_p,
          "in (0, 1]: draw among the fewest tokens that together have this probability, "
          "including ties with the last");
        f("min_p",
          min_p,
          "in [0, 1]: drop tokens less probable than min_p times the most "
          "probable");
        f("repetition_penalty",
          repetition_penalty,
          "in (0, 2]: logits of prompt and output tokens are divided (if positive) or multiplied "
          "by it");
        f("frequency_penalty",
          frequency_penalty,
          "in [-2, 2]: subtracted once per occurrence in the output");
        f("presence_penalty",
          presence_penalty,
          "in [-2, 2]: subtracted once from every token of the output");
        f("num_output_in_prompt",
          num_output_in_prompt,
          "this many of the prompt's last tokens count as output for frequency_penalty and "
          "presence_penalty: for a request that began elsewhere");
        f("logit_bias", logit_bias, "token id -> added to its logit: any finite number");
        f("allowed_token_ids", allowed_token_ids, "only these tokens are drawn; empty: any token");
        f("bad_words",
          bad_words,
          "the output contains none of these texts, as their tokens at a text's start and after "
          "a space; empty inside the tree");
        f("bad_tokens", bad_tokens, "the output contains none of these sequences of tokens");
        f("seed",
          seed,
          "the seed of the draws, which depend on the seed and the position alone; absent: the "
          "tree chooses one at random");
        f("stop", stop, "the output ends before the first of these texts");
        f("stop_token_ids", stop_token_ids, "the output ends with any of these tokens");
        f("json_schema",
          json_schema,
          "the output is JSON that this schema, as text, accepts; empty: no such grammar");
        f("regex", regex, "the whole output matches this regular expression");
        f("ebnf", ebnf, "the output matches this grammar in EBNF, from its rule root on");
        f("structural_tag",
          structural_tag,
          "JSON, as text: which parts of the output have which form (xgrammar's structural tag)");
        f("ignore_eos", ignore_eos, "the model's end-of-sequence tokens do not end the output");
        f("no_stop_trim", no_stop_trim, "keep the stop text, or the stop token's text, in the text"
        );
        f("skip_special_tokens", skip_special_tokens, "leave special tokens out of the text");
        f("spaces_between_special_tokens",
          spaces_between_special_tokens,
          "keep the spaces next to special tokens in the text");
    }
    friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

// The distribution of a reported logprob.
//   kRaw        log-softmax of the model's logits
//   kScaled     of the logits after penalties, bias and temperature (0 counts as temperature 1)
//   kTruncated  as kScaled, renormalized over the tokens that top-k, top-p and min-p leave
enum class LogprobsMode : std::uint8_t { kRaw, kScaled, kTruncated };
template <>
struct EnumNames<LogprobsMode> {
    static constexpr std::array<std::string_view, 3> kNames{"raw", "scaled", "truncated"};
};

struct LogprobOptions {
    bool enabled = false;
    LogprobsMode mode = LogprobsMode::kRaw;
    std::optional<std::int64_t> prompt_start{};
    std::int64_t top = 0;
    std::vector<TokenId> ids{};
    bool support = false;

    template <class F>
    void fields(F&& f) {
        f("enabled", enabled, "report the logprob of every output token");
        f("mode",
          mode,
          "the distribution that logprobs of output tokens come from: raw, scaled or truncated. "
          "Logprobs of prompt tokens are always raw");
        f("prompt_start",
          prompt_start,
          "report prompt tokens' logprobs from this index on; absent: none. Token 0 has none");
        f("top", top, "also report the logprobs of this many most probable tokens at each position"
        );
        f("ids", ids, "also report the logprobs of these tokens at each position");
        f("support",
          support,
          "report the support of each output token: the tokens that it was drawn among. A support "
          "of more than 4096 tokens ends the request with an error. Independent of `enabled`");
    }
    friend bool operator==(const LogprobOptions&, const LogprobOptions&) = default;
};

// Returns whether a draw may exclude some tokens: it is greedy, or has top-k, top-p, min-p, a list
// of allowed tokens or a grammar.
[[nodiscard]] bool may_truncate(const SamplingParams& params);

// Each returns what is wrong with its argument, or nothing.
std::optional<std::string> invalid(const SamplingParams& params);
std::optional<std::string> invalid(const LogprobOptions& options);

}  // namespace pitstop::messages
