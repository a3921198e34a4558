// Makes the grammar of an assistant's turn, as one structural tag: first the thinking
// and its budget, then what the answer must match.
//
// Special tokens match no grammar, so a turn's only special token is its end.
#pragma once

#include "base/result.h"
#include "http_proc/format/thinking.h"
#include "messages/sampling.h"

#include <cstdint>
#include <optional>
#include <string>

namespace pitstop::http {

struct TurnGrammar {
    std::optional<ThinkingFormat> thinking{};  // possible at the turn's beginning; null: none
    ThinkingParser::Start start = ThinkingParser::Start::kOutside;
    bool has_ended_thinking = false;       // the prompt ended it: the output has none
    std::optional<std::int64_t> budget{};  // the most tokens of thinking, without its markers
    // What the answer's calls must match (call_grammar.h); empty: nothing. With it, the request may
    // have no grammar of its own.
    std::string calls{};
    bool calls_are_free = false;  // `calls` allows any text before, between and after calls
};

// Sets the grammar of the turn. A grammar that the parameters have becomes a part of it. Without a
// grammar, a budget or calls nothing changes.
// Errors: kInvalidArgument if there are two grammars, or if the turn begins inside a thinking that
// no grammar can end.
[[nodiscard]] Result<> set_turn_grammar(const TurnGrammar& turn, messages::SamplingParams& params);

}  // namespace pitstop::http
