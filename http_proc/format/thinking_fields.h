// Reads the fields that say how a chat's answer shows the model's thinking, in every dialect.
//
// Source: SGLang's separate_reasoning, stream_reasoning and max_thinking_tokens; vLLM's
// include_reasoning and thinking_token_budget.
#pragma once

#include "base/result.h"
#include "http_proc/format/json_body.h"
#include "http_proc/format/thinking.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>

namespace pitstop::http {

struct ThinkingFields {
    bool is_separate = true;  // false: thinking and markers stay in the text, as written
    bool is_streamed = true;  // false: a stream has the thinking in one piece, when it is whole
    bool is_included = true;  // false: the answer leaves it out
    // Thinking has at most this many tokens between its markers, then its end is forced; null: any.
    std::optional<std::int64_t> budget{};
};

// Problems go into `fields`.
void read_thinking_fields(FieldReader& fields, ThinkingFields& thinking);
// Refuses to leave thinking out or to limit it, on routes that do not separate it.
void refuse_thinking_fields(FieldReader& fields);

// Errors: kInvalidArgument if the answer must leave thinking out or limit it, but the server knows
// no format of it, or if the format's end cannot be forced.
[[nodiscard]] Result<> check_thinking(
    const ThinkingFields& thinking, const std::optional<ThinkingFormat>& format
);

// Gives messages that have `reasoning`, vLLM's name, also `reasoning_content`, which templates
// read.
void name_thinking_for_template(nlohmann::ordered_json& messages);

// Returns the text of the last message, which the output continues: its content, or its parts.
[[nodiscard]] std::string text_to_continue(std::string_view variables);

}  // namespace pitstop::http
