// The part that the bodies of /v1/responses and /v1/messages share: a chat with one answer, and the
// engine's own fields, which have the same names in every dialect.
#pragma once

#include "base/result.h"
#include "http_proc/format/call_grammar.h"
#include "http_proc/format/chat_prompt.h"
#include "http_proc/format/forced_call.h"
#include "http_proc/format/json_body.h"
#include "http_proc/format/thinking_fields.h"
#include "http_proc/format/tool_schemas.h"
#include "messages/generation.h"

#include <nlohmann/json_fwd.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::http {

struct ChatCall {
    std::string model{};           // as the caller wrote it, for answers; empty: the served model
    std::string id{};              // from the caller: rid or request_id; empty: none
    messages::Generate request{};  // without its prompt
    ChatPrompt chat{};
    bool is_streamed = false;
    bool has_tools = false;       // the model may call tools
    bool takes_one_call = false;  // the output after its first tool call is dropped
    std::optional<ForcedCall> forced_call{};
    bool wants_token_ids = false;
    ThinkingFields thinking{};
    std::shared_ptr<const ToolSchemas> schemas{};  // of the tools; null: no tools
    std::vector<ToolSpec> tools{};                 // the tools that the model may call
};

// Reads the engine's own fields: sampling, placement, names, `chat_template` and
// `return_token_ids`. Refuses by name fields of /v1/chat/completions that these two routes lack.
// `fields` gets the errors.
void read_chat_call(FieldReader& fields, ChatCall& call);

// Sets the call that `tool_choice` forces. Both routes have a tool's name at its top level.
// `fields` gets an error if no such tool exists.
void force_call(FieldReader& fields, ForcedCall forced, ChatCall& call);

// Completes the call: adds the body's `chat_template_kwargs` to the template's variables. Errors:
// parameters with which the engine cannot sample.
[[nodiscard]] Result<> finish_chat_call(
    const nlohmann::ordered_json& body, nlohmann::ordered_json variables, ChatCall& call
);

// Parses a body that parse_json_object has accepted, but keeps the order of objects' members.
// Errors: kMalformed.
[[nodiscard]] Result<nlohmann::ordered_json> parse_ordered(std::string_view body);

// Returns the member if it is a string; null if it is absent or has another type.
[[nodiscard]] const std::string* text_member(
    const nlohmann::ordered_json& object, std::string_view name
);

// Returns the first characters of the value, for an error.
[[nodiscard]] std::string shown(const nlohmann::ordered_json& value);

}  // namespace pitstop::http
