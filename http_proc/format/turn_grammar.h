// Makes the grammar of an assistant's turn, as one structural tag: the thinking with its budget,
// then the grammar of the answer.
//
// No grammar matches a special token, so a turn's only special token is its end.
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
    bool has_ended_thinking = false;       // the prompt has ended the thinking: the output has none
    std::optional<std::int64_t> budget{};  // the most tokens of thinking between its markers
    // The grammar that the answer's calls must match (call_grammar.h); empty: none. If set, the
    // request may not have a grammar of its own. With `thinking`, no call is forced: the grammar
    // accepts any text before, between and after calls.
    std::string calls{};
};

// Sets the turn's grammar in `params`. A grammar that `params` has becomes a part of it.
// Changes nothing if there is no grammar, no budget and no grammar of calls. Errors:
// kInvalidArgument if there are two grammars, or if the turn begins inside thinking that no
// grammar can end.
[[nodiscard]] Result<> set_turn_grammar(const TurnGrammar& turn, messages::SamplingParams& params);

}  // namespace pitstop::http
