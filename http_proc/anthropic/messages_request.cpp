#include "http_proc/anthropic/messages_request.h"

#include "http_proc/anthropic/turns.h"
#include "http_proc/format/common_fields.h"
#include "http_proc/format/grammar_fields.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct Refused {
    std::string_view name{};
    std::string_view why{};
};
constexpr std::array kRefused{
    Refused{"container", "code is not run"},
    Refused{"context_management", "a prompt is used whole or refused"},
    Refused{"compaction", "a prompt is used whole or refused"},
    Refused{"thread", "the server keeps nothing of earlier requests"},
    Refused{"mcp_servers", "tools run at the client"},
    Refused{"diagnostics", "the server keeps nothing of earlier requests"},
    Refused{"inference_geo", "the model runs where the engine runs"},
    Refused{"output_format", "output_config.format has replaced it"},
    Refused{"top_logprobs", "/v1/chat/completions has them"},
    Refused{"logprobs_mode", "/v1/chat/completions has it"},
};

void refuse_by_name(FieldReader& fields) {
    for (const Refused& entry : kRefused) {
        const Json* given = fields.find(entry.name);
        if (given != nullptr && *given != 0 && !asks_for_nothing(*given))
            fields.refuse(entry.name, entry.why);
    }
}

// Returns the `type` of an object; empty if it has none.
std::string type_of(const Json& value) {
    if (!value.is_object()) return {};
    const auto type = value.find("type");
    return type != value.end() && type->is_string() ? type->get<std::string>() : std::string();
}

// Reads whether the model may call tools, and whether one call only.
void read_tool_choice(FieldReader& fields, ChatCall& call) {
    const Json* tools = fields.find("tools");
    if (tools != nullptr && !tools->is_array()) return fields.fail("tools", "a list of tools");
    call.has_tools = tools != nullptr && !tools->empty();
    const Json* choice = fields.find("tool_choice");
    if (choice == nullptr) return;
    const std::string type = type_of(*choice);
    if (type == "none") call.has_tools = false;
    if (type != "auto" && type != "none" && type != "any" && type != "tool")
        return fields.fail("tool_choice", "an object with the type auto, none, any or tool");
    FieldReader inside(*choice, "tool_choice");
    inside.read("disable_parallel_tool_use", call.takes_one_call);
    if (inside.error())
        fields.fail("tool_choice", "an object with disable_parallel_tool_use a bool");
    if (type != "any" && type != "tool") return;
    ForcedCall forced;
    if (type == "tool") {
        const Json name = choice->value("name", Json());
        if (!name.is_string() || name == "")
            return fields.fail("tool_choice", "an object of the type tool with its name");
        forced.function = name.get<std::string>();
        call.takes_one_call = true;
    }
    force_call(fields, std::move(forced), call);
}

// Reads the thinking settings for the template.
void read_thinking(FieldReader& fields, ChatCall& call, OrderedJson& variables) {
    const Json* given = fields.find("thinking");
    if (given == nullptr) return;
    const std::string type = type_of(*given);
    if (type == "between_tools")
        return fields.refuse("thinking", "accepted are adaptive, enabled and disabled");
    const auto display = given->is_object() ? given->find("display") : given->end();
    if (given->is_object() && display != given->end() && !asks_for_nothing(*display)) {
        if (*display != "omitted")
            return fields.refuse(
                "thinking", "display can only be omitted: thinking is never summarized"
            );
        call.thinking.is_included = false;
    }
    if (type == "disabled") {
        variables["enable_thinking"] = false;
    } else if (type == "enabled") {
        variables["enable_thinking"] = true;
        const auto budget = given->find("budget_tokens");
        if (budget == given->end() || !budget->is_number_integer() || *budget < 0)
            return fields.fail("thinking", "an object whose budget_tokens is a number of tokens");
        call.thinking.budget = budget->get<std::int64_t>();
    } else if (type != "adaptive") {  // adaptive: the model decides
        fields.fail("thinking", "an object with the type disabled, enabled or adaptive");
    }
}

void read_output_config(
    FieldReader& fields,
    std::string_view body,
    OrderedJson& variables,
    messages::SamplingParams& params
) {
    const Json* given = fields.find("output_config");
    if (given == nullptr) return;
    if (!given->is_object()) return fields.fail("output_config", "an object");
    read_inner_format(fields, body, "output_config", params);
    const auto effort = given->find("effort");
    if (effort == given->end() || effort->is_null()) return;
    if (!effort->is_string())
        return fields.fail("output_config", "an object whose effort is a name");
    variables["reasoning_effort"] = *effort;
}

void read_stops(FieldReader& fields, ChatCall& call) {
    std::vector<std::string> stops;
    fields.read("stop_sequences", stops);
    for (std::string& stop : stops) {
        if (stop.empty())
            return fields.fail("stop_sequences", "a list of texts, none of them empty");
        call.request.sampling.stop.push_back(std::move(stop));
    }
}

Result<OrderedJson> tool_of(const OrderedJson& given, std::size_t index) {
    const auto refused = [&](std::string_view why) {
        return make_error(ErrorCode::kInvalidArgument, "tools[{}]: {}", index, why);
    };
    const std::string* type = text_member(given, "type");
    if (type != nullptr && *type != "custom") {
        return refused(fmt::format(
            "{} is not supported: a tool must be custom, which the client runs",
            shown(OrderedJson(*type))
        ));
    }
    const std::string* name = text_member(given, "name");
    if (name == nullptr) return refused("a tool must be an object with a name and an input_schema");
    const auto schema = given.find("input_schema");
    if (schema == given.end() || !schema->is_object())
        return refused("input_schema is not an object");
    for (const auto& [member, why] :
         {std::pair{"defer_loading", "the model sees every tool"},
          std::pair{"input_examples", "a chat template shows only a tool's schema"}}) {
        const auto value = given.find(member);
        if (value != given.end() && !asks_for_nothing(Json(*value)))
            return refused(fmt::format("{} is not supported: {}", member, why));
    }
    OrderedJson function = OrderedJson::object();
    function["name"] = *name;
    if (const std::string* about = text_member(given, "description"))
        function["description"] = *about;
    function["parameters"] = *schema;
    return OrderedJson{{"type", "function"}, {"function", std::move(function)}};
}

Result<OrderedJson> tools_of(const OrderedJson& body) {
    OrderedJson tools = OrderedJson::array();
    for (const OrderedJson& given : body["tools"]) {
        ASSIGN_OR_RETURN(OrderedJson tool, tool_of(given, tools.size()));
        tools.push_back(std::move(tool));
    }
    return tools;
}

// Puts the conversation into the template's variables, with the model's last message, which the
// output continues.
Result<> read_conversation(const OrderedJson& body, ChatCall& call, OrderedJson& variables) {
    ChatMessages messages;
    if (const auto system = body.find("system"); system != body.end() && !system->is_null()) {
        RETURN_IF_ERROR(add_system(*system, messages));
    }
    const OrderedJson& turns = body["messages"];
    for (std::size_t i = 0; i < turns.size(); ++i) {
        RETURN_IF_ERROR(add_turn(turns[i], i, messages));
    }
    const bool goes_on =
        turns.back()["role"] == "assistant" && messages.ends_with_text_of_assistant();
    if (turns.back()["role"] == "assistant" && !goes_on) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "messages[{}]: tool results must follow tool calls; a turn that the model continues "
            "must end with text",
            turns.size() - 1
        );
    }
    if (goes_on && call.forced_call) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "tool_choice forces a call, but messages[{}] is the model's own turn, to be continued",
            turns.size() - 1
        );
    }
    call.chat.continue_final_message = goes_on;
    variables["messages"] = messages.take();
    variables["add_generation_prompt"] = !goes_on;
    return Ok{};
}

Result<ChatCall> parse(std::string_view text, bool has_output) {
    ASSIGN_OR_RETURN(const Json json, parse_json_object(text));
    FieldReader fields(json);
    ChatCall call;
    OrderedJson variables = OrderedJson::object();
    const Json* turns = fields.find("messages");
    if (turns == nullptr || !turns->is_array() || turns->empty())
        fields.fail("messages", "a list of at least one message");
    refuse_by_name(fields);
    read_tool_choice(fields, call);
    read_thinking(fields, call, variables);
    read_output_config(fields, text, variables, call.request.sampling);
    read_chat_call(fields, call);
    read_stops(fields, call);
    std::optional<std::int64_t>& max_tokens = call.request.sampling.max_new_tokens;
    fields.read("max_tokens", max_tokens);
    if (has_output && (!max_tokens || *max_tokens < 1)) fields.fail("max_tokens", "[1, ...]");
    if (fields.error()) return *fields.error();

    ASSIGN_OR_RETURN(const OrderedJson body, parse_ordered(text));
    RETURN_IF_ERROR(read_conversation(body, call, variables));
    if (fields.has("tools")) {
        ASSIGN_OR_RETURN(OrderedJson tools, tools_of(body));
        if (call.has_tools) {
            call.tools = tool_specs(body["tools"]);
            variables["tools"] = std::move(tools);
        }
    }
    RETURN_IF_ERROR(finish_chat_call(body, std::move(variables), call));
    return call;
}

}  // namespace

Result<ChatCall> parse_anthropic_messages(std::string_view body) {
    return parse(body, /*has_output=*/true);
}

Result<ChatCall> parse_anthropic_count(std::string_view body) {
    return parse(body, /*has_output=*/false);
}

}  // namespace pitstop::http
