// Reads the fields of every dialect that decide how a chat's answer shows the model's thinking.
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
    bool is_separate = true;  // false: thinking and its markers stay in the text, unchanged
    bool is_streamed = true;  // false: a stream has the thinking in one piece, once it is complete
    bool is_included = true;  // false: the answer omits the thinking
    // The most tokens of thinking between its markers; then its end is forced. Null: no limit.
    std::optional<std::int64_t> budget{};
};

// Reads the fields; `fields` gets the errors.
void read_thinking_fields(FieldReader& fields, ThinkingFields& thinking);
// Refuses fields that ask to omit or limit thinking, on routes that do not separate thinking.
void refuse_thinking_fields(FieldReader& fields);

// Errors: kInvalidArgument if the answer must omit or limit thinking, but the server knows no
// format of thinking, or the format's end cannot be forced.
[[nodiscard]] Result<> check_thinking(
    const ThinkingFields& thinking, const std::optional<ThinkingFormat>& format
);

// Adds `reasoning_content`, the name in templates, to messages that have vLLM's
// `reasoning`.
void name_thinking_for_template(nlohmann::ordered_json& messages);

// Returns the text of the last message, which the output continues: its content or its parts.
[[nodiscard]] std::string text_to_continue(std::string_view variables);

}  // namespace pitstop::http
