// Holds what the bodies of /v1/responses and /v1/messages say in common: a chat that is answered
// once, and the engine's own fields, which have one name in every dialect.
#pragma once

#include "base/result.h"
#include "http_proc/format/chat_prompt.h"
#include "http_proc/format/forced_call.h"
#include "http_proc/format/json_body.h"
#include "messages/generation.h"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

struct ChatCall {
    std::string model{};           // as given, and given back; empty: the one that is served
    std::string id{};              // the caller's: rid or request_id; empty: none
    messages::Generate request{};  // all but its prompt
    ChatPrompt chat{};
    bool is_streamed = false;
    bool has_tools = false;       // the model may call some
    bool takes_one_call = false;  // what comes after its first call of a tool is left out
    std::optional<ForcedCall> forced_call{};
    bool wants_token_ids = false;
};

// Reads the engine's own fields: sampling, placement, names, `chat_template` and
// `return_token_ids`. What /v1/chat/completions has and these two have not is refused by name.
// Problems are left in `fields`.
void read_chat_call(FieldReader& fields, ChatCall& call);

// Takes the call that `tool_choice` forces. Where there is no tool for it that is refused in
// `fields`. A tool of these two routes has its name at its top.
void force_call(FieldReader& fields, ForcedCall forced, ChatCall& call);

// Ends the reading: adds `chat_template_kwargs` of the body to the template's variables. Errors:
// what the engine does not sample by.
[[nodiscard]] Result<> finish_chat_call(
    const nlohmann::ordered_json& body, nlohmann::ordered_json variables, ChatCall& call
);

// Parses a body that parse_json_object has taken a second time, as that sorted the members of
// objects. Errors: kMalformed.
[[nodiscard]] Result<nlohmann::ordered_json> parse_ordered(std::string_view body);

// Returns the member where it is a string; null: it is absent, or something else.
[[nodiscard]] const std::string* text_member(
    const nlohmann::ordered_json& object, std::string_view name
);

// Shows what was given in an error: its beginning.
[[nodiscard]] std::string shown(const nlohmann::ordered_json& value);

}  // namespace pitstop::http
