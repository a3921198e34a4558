#include "messages/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace pitstop::messages {
namespace {

using Problem = std::optional<std::string>;

Problem out_of_range(
    std::string_view field, double value, double low, double high, bool is_low_open = false
) {
    const bool is_inside = is_low_open ? value > low : value >= low;
    if (is_inside && value <= high) return std::nullopt;  // false for a NaN
    return fmt::format(
        "{} is {}; accepted is {}{}, {}]", field, value, is_low_open ? '(' : '[', low, high
    );
}

bool is_blank(std::string_view text) {
    return text.find_first_not_of(" \t\n\v\f\r") == std::string_view::npos;
}

Problem problem_of_bad_words(const std::vector<std::string>& words) {
    if (words.size() > kBadWordsMax) {
        return fmt::format(
            "bad_words has {} words; at most {} are accepted", words.size(), kBadWordsMax
        );
    }
    for (const std::string& word : words) {
        if (is_blank(word)) return "bad_words has a word that is empty or only spaces";
        if (word.size() <= kBadWordBytesMax) continue;
        return fmt::format(
            "bad_words has a word of {} bytes; at most {} are accepted",
            word.size(),
            kBadWordBytesMax
        );
    }
    return std::nullopt;
}

Problem problem_of_bans(const SamplingParams& p) {
    if (p.allowed_token_ids.size() > kAllowedTokensMax) {
        return fmt::format(
            "allowed_token_ids has {} entries; at most {} are accepted",
            p.allowed_token_ids.size(),
            kAllowedTokensMax
        );
    }
    for (const TokenId id : p.allowed_token_ids) {
        if (raw(id) < 0)
            return fmt::format("allowed_token_ids names token {}; ids are 0 or more", raw(id));
    }
    if (auto problem = problem_of_bad_words(p.bad_words)) return problem;
    if (p.bad_tokens.size() > kBadSequencesMax) {
        return fmt::format(
            "bad_words and bad_tokens make {} sequences; at most {} are accepted",
            p.bad_tokens.size(),
            kBadSequencesMax
        );
    }
    std::size_t num_tokens = 0;
    for (const std::vector<TokenId>& sequence : p.bad_tokens) {
        if (sequence.empty()) return "bad_tokens has an empty sequence";
        num_tokens += sequence.size();
        for (const TokenId id : sequence) {
            if (raw(id) < 0)
                return fmt::format("bad_tokens names token {}; ids are 0 or more", raw(id));
        }
    }
    if (num_tokens > kBadTokensMax) {
        return fmt::format(
            "bad_words and bad_tokens have {} tokens; at most {} are accepted",
            num_tokens,
            kBadTokensMax
        );
    }
    return std::nullopt;
}

// Returns how deep brackets nest outside of quoted texts (of JSON, or of other grammars). That
// bounds the depth of a recursive reader. A backslash quotes the next character.
std::size_t depth_of(std::string_view text) {
    std::size_t depth = 0;
    std::size_t deepest = 0;
    bool is_quoted = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '\\') ++i;
        if (c == '"') is_quoted = !is_quoted;
        if (is_quoted) continue;
        if (c == '(' || c == '[' || c == '{') deepest = std::max(deepest, ++depth);
        if ((c == ')' || c == ']' || c == '}') && depth > 0) --depth;
    }
    return deepest;
}

Problem problem_of_grammar(const SamplingParams& p) {
    const std::array<std::pair<std::string_view, const std::string*>, 4> all{
        {{"json_schema", &p.json_schema},
         {"regex", &p.regex},
         {"ebnf", &p.ebnf},
         {"structural_tag", &p.structural_tag}}};
    std::string_view given;
    for (const auto& [name, text] : all) {
        if (text->empty()) continue;
        if (!given.empty())
            return fmt::format("{} and {}: a request has at most one grammar", given, name);
        given = name;
        if (text->size() > kGrammarBytesMax) {
            return fmt::format(
                "{} has {} bytes; at most {} are accepted", name, text->size(), kGrammarBytesMax
            );
        }
        if (depth_of(*text) > kGrammarDepthMax) {
            return fmt::format(
                "{} has brackets {} deep; at most {} are accepted",
                name,
                depth_of(*text),
                kGrammarDepthMax
            );
        }
    }
    if (given.empty() || !p.ignore_eos) return std::nullopt;
    return fmt::format(
        "ignore_eos cannot go with {}: a complete grammar ends with an end-of-sequence token; "
        "leave one out",
        given
    );
}

}  // namespace

bool may_truncate(const SamplingParams& p) {
    const bool has_grammar =
        !p.json_schema.empty() || !p.regex.empty() || !p.ebnf.empty() || !p.structural_tag.empty();
    return p.temperature == 0 || p.top_k || p.top_p < 1 || p.min_p > 0 ||
           !p.allowed_token_ids.empty() || has_grammar;
}

Problem invalid(const SamplingParams& p) {
    if (auto problem = problem_of_grammar(p)) return problem;
    if (p.max_new_tokens && *p.max_new_tokens < 0) {
        return fmt::format("max_new_tokens is {}; accepted is 0 or more", *p.max_new_tokens);
    }
    if (p.min_new_tokens < 0)
        return fmt::format("min_new_tokens is {}; accepted is 0 or more", p.min_new_tokens);
    if (p.max_new_tokens && p.min_new_tokens > *p.max_new_tokens) {
        return fmt::format(
            "min_new_tokens ({}) is more than max_new_tokens ({})",
            p.min_new_tokens,
            *p.max_new_tokens
        );
    }
    if (!std::isfinite(p.temperature) || p.temperature < 0) {
        return fmt::format(
            "temperature is {}; accepted is a finite number of 0 or more", p.temperature
        );
    }
    if (p.top_k && *p.top_k < 1)
        return fmt::format("top_k is {}; accepted is 1 or more, or none for all", *p.top_k);
    if (auto problem = out_of_range("top_p", p.top_p, 0, 1, /*is_low_open=*/true)) return problem;
    if (auto problem = out_of_range("min_p", p.min_p, 0, 1)) return problem;
    if (auto problem =
            out_of_range("repetition_penalty", p.repetition_penalty, 0, 2, /*is_low_open=*/true))
        return problem;
    if (auto problem = out_of_range("frequency_penalty", p.frequency_penalty, -2, 2))
        return problem;
    if (auto problem = out_of_range("presence_penalty", p.presence_penalty, -2, 2)) return problem;
    if (p.num_output_in_prompt < 0) {
        return fmt::format(
            "num_output_in_prompt is {}; accepted is 0 up to the prompt's length",
            p.num_output_in_prompt
        );
    }
    if (p.logit_bias.size() > kLogitBiasMax) {
        return fmt::format(
            "logit_bias has {} entries; at most {} are accepted", p.logit_bias.size(), kLogitBiasMax
        );
    }
    for (const auto& [id, bias] : p.logit_bias) {
        if (id < 0) return fmt::format("logit_bias names token {}; ids are 0 or more", id);
        if (!std::isfinite(bias))
            return fmt::format("logit_bias[{}] is {}; accepted is a finite number", id, bias);
    }
    if (auto problem = problem_of_bans(p)) return problem;
    if (p.stop.size() > kStopsMax)
        return fmt::format("stop has {} texts; at most {} are accepted", p.stop.size(), kStopsMax);
    for (const std::string& text : p.stop) {
        if (text.empty()) return "stop has an empty text";
        if (text.size() > kStopBytesMax) {
            return fmt::format(
                "a stop text has {} bytes; at most {} are accepted", text.size(), kStopBytesMax
            );
        }
    }
    if (p.stop_token_ids.size() > kStopTokensMax) {
        return fmt::format(
            "stop_token_ids has {} entries; at most {} are accepted",
            p.stop_token_ids.size(),
            kStopTokensMax
        );
    }
    for (const TokenId id : p.stop_token_ids) {
        if (raw(id) < 0)
            return fmt::format("stop_token_ids names token {}; ids are 0 or more", raw(id));
    }
    return std::nullopt;
}

Problem invalid(const LogprobOptions& options) {
    if (options.prompt_start && *options.prompt_start < 0) {
        return fmt::format(
            "logprobs.prompt_start is {}; accepted is an index from 0, or none for no prompt token",
            *options.prompt_start
        );
    }
    if (options.top < 0 || options.top > kTopLogprobsMax) {
        return fmt::format("logprobs.top is {}; accepted is [0, {}]", options.top, kTopLogprobsMax);
    }
    if (options.ids.size() > kLogprobIdsMax) {
        return fmt::format(
            "logprobs.ids has {} entries; at most {} are accepted",
            options.ids.size(),
            kLogprobIdsMax
        );
    }
    for (const TokenId id : options.ids) {
        if (raw(id) < 0)
            return fmt::format("logprobs.ids names token {}; ids are 0 or more", raw(id));
    }
    if (!options.enabled && (options.prompt_start || options.top > 0 || !options.ids.empty())) {
        return "logprobs.prompt_start, top and ids need logprobs.enabled";
    }
    return std::nullopt;
}

}  // namespace pitstop::messages
