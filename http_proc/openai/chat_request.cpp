#include "http_proc/openai/chat_request.h"

#include "http_proc/format/common_fields.h"
#include "http_proc/format/grammar_fields.h"
#include "http_proc/format/ordered_json.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <memory>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Members of the body that become variables of the template, under the same names.
constexpr std::array<std::string_view, 5> kVariables{
    "messages", "tools", "documents", "reasoning_effort", "chat_template_kwargs"};

// Returns whether the model may call tools, for either type of JSON.
template <class AnyJson>
bool has_tools(const AnyJson& body) {
    const auto tools = body.find("tools");
    const auto choice = body.find("tool_choice");
    const bool has_some = tools != body.end() && tools->is_array() && !tools->empty();
    return has_some && (choice == body.end() || *choice != "none");
}

// Returns the template's variables, in the order of the body.
std::string variables_of(const OrderedJson& body, bool begins_turn) {
    OrderedJson variables = OrderedJson::object();
    for (const std::string_view name : kVariables) {
        const auto given = body.find(std::string(name));
        if (given == body.end() || given->is_null()) continue;
        if (name == "tools" && !has_tools(body)) continue;
        if (name != "chat_template_kwargs") {
            variables[std::string(name)] = *given;
            if (name == "messages") name_thinking_for_template(variables["messages"]);
        } else if (given->is_object()) {
            for (const auto& [key, value] : given->items()) variables[key] = value;
        }
    }
    variables["add_generation_prompt"] = begins_turn;
    return variables.dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
}

// Returns whether {"type": "function", "function": {"name": N}} is in the list.
bool has_function(const Json& tools, const std::string& name) {
    return std::ranges::any_of(tools, [&](const Json& tool) {
        if (!tool.is_object()) return false;
        const auto function = tool.find("function");
        return function != tool.end() && function->is_object() &&
               function->value("name", Json()) == name;
    });
}

bool has_strict_tool(const Json& tools) {
    return std::ranges::any_of(tools, [](const Json& tool) {
        const Json function = tool.is_object() ? tool.value("function", Json()) : Json();
        return function.is_object() && function.value("strict", Json()) == true;
    });
}

// Reads which tools the model may call. Returns the forced call, if there is one.
std::optional<ForcedCall> read_tools(FieldReader& fields) {
    const Json* tools = fields.find("tools");
    if (tools != nullptr && !tools->is_array()) fields.fail("tools", "a list of tools");
    const Json* choice = fields.find("tool_choice");
    if (choice == nullptr || *choice == "auto" || *choice == "none") return std::nullopt;
    ForcedCall forced;
    if (*choice != "required") {
        const Json* function = nullptr;
        if (choice->is_object() && choice->value("type", Json()) == "function" &&
            choice->contains("function"))
            function = &choice->at("function");
        const Json name =
            function != nullptr && function->is_object() ? function->value("name", Json()) : Json();
        if (!name.is_string() || name == "") {
            constexpr std::string_view kAccepted =
                R"(auto, none, required or {"type": "function", "function": {"name": N}})";
            fields.fail("tool_choice", kAccepted);
            return std::nullopt;
        }
        forced.function = name.get<std::string>();
    }
    if (tools == nullptr || !tools->is_array() || tools->empty()) {
        fields.refuse("tool_choice", "it forces a call, but there are no tools");
    } else if (!forced.function.empty() && !has_function(*tools, forced.function)) {
        fields.refuse("tool_choice", "it names a function that is not in tools");
    }
    return forced;
}

// Reads the chat from a body that parse_json_object has accepted.
Result<ChatPrompt> read_chat(FieldReader& fields, std::string_view body) {
    ChatPrompt chat;
    const Json* messages = fields.find("messages");
    if (messages == nullptr || !messages->is_array() || messages->empty())
        fields.fail("messages", "a list of at least one message");
    const Json* kwargs = fields.find("chat_template_kwargs");
    if (kwargs != nullptr && !kwargs->is_object()) fields.fail("chat_template_kwargs", "an object");
    if (kwargs != nullptr && kwargs->size() > kTemplateKwargsMax)
        fields.fail("chat_template_kwargs", kFewKwargs);
    const bool forces_call = read_tools(fields).has_value();
    fields.read("continue_final_message", chat.continue_final_message);
    if (forces_call && chat.continue_final_message)
        fields.refuse("tool_choice", "it forces a call, but the final message is to be continued");
    fields.read("chat_template", chat.chat_template);
    bool begins_turn = !chat.continue_final_message;
    fields.read("add_generation_prompt", begins_turn);
    if (chat.continue_final_message && begins_turn)
        fields.refuse("continue_final_message", "add_generation_prompt is true");
    if (fields.error()) return *fields.error();
    // Parses the body once more, because the first parser sorts the members of objects.
    ASSIGN_OR_RETURN(const OrderedJson ordered, parse_ordered_json(body));
    chat.variables = variables_of(ordered, begins_turn);
    return chat;
}

}  // namespace

Result<ChatPrompt> parse_prompt_chat(std::string_view body) {
    ASSIGN_OR_RETURN(const Json json, parse_json_object(body));
    FieldReader fields(json);
    return read_chat(fields, body);
}

Result<OpenAiChat> parse_openai_chat(std::string_view body) {
    ASSIGN_OR_RETURN(const Json json, parse_json_object(body));
    FieldReader fields(json);
    OpenAiChat call;
    OpenAiOptions& options = call.options;
    read_openai_options(fields, options);
    read_lora_path(fields, options);
    refuse_sampling_mask(fields);
    read_response_format(fields, body, options.sampling);
    read_structured_outputs(fields, body, "", options.sampling);
    fields.read("max_completion_tokens", options.sampling.max_new_tokens);
    const bool has_later_name = fields.has("max_completion_tokens");
    check_lengths(
        fields, has_later_name ? "max_completion_tokens" : "max_tokens", options.sampling
    );
    read_thinking_fields(fields, call.thinking);
    fields.read("logprobs", call.has_logprobs);
    fields.read("top_logprobs", call.top_logprobs);
    bool adds_special = false;
    bool is_echoed = false;
    fields.read("add_special_tokens", adds_special);
    fields.read("echo", is_echoed);
    if (adds_special) fields.refuse("add_special_tokens", "the chat template writes them");
    if (is_echoed) fields.refuse("echo", "the answer is only the assistant's turn");
    check_top_logprobs(fields, "top_logprobs", call.top_logprobs);
    if (call.top_logprobs != 0 && !call.has_logprobs)
        fields.refuse("top_logprobs", "logprobs is not true");
    if (!options.logprob_ids.empty() && !call.has_logprobs)
        fields.refuse("logprob_token_ids", "logprobs is not true");
    if (options.is_streamed && options.prompt_logprobs.value_or(0) != 0)
        fields.refuse("prompt_logprobs", "a stream accepts only 0");
    if (fields.has("input_ids")) fields.read("input_ids", call.input_ids.emplace());
    bool takes_many = true;
    fields.read("parallel_tool_calls", takes_many);
    call.takes_one_call = !takes_many;
    fields.read("return_prompt_text", call.wants_prompt_text);
    if (call.wants_prompt_text && call.input_ids)
        fields.refuse("return_prompt_text", "input_ids are a prompt without text");
    call.has_tools = has_tools(json);
    if (call.has_tools) call.schemas = std::make_shared<const ToolSchemas>(json.at("tools"));
    call.forced_call = read_tools(fields);
    if (call.forced_call && !call.forced_call->function.empty()) call.takes_one_call = true;
    if (fields.error()) return *fields.error();
    if (call.has_tools && (call.forced_call || has_strict_tool(json.at("tools")))) {
        // Properties keep the body's order; `json` has sorted them.
        ASSIGN_OR_RETURN(const OrderedJson ordered, parse_ordered_json(body));
        call.tools = tool_specs(ordered.at("tools"));
    }
    if (!call.input_ids) {
        ASSIGN_OR_RETURN(call.chat, read_chat(fields, body));
    }
    if (auto problem = messages::invalid(options.sampling))
        return make_error(ErrorCode::kInvalidArgument, "{}", *problem);
    return call;
}

}  // namespace pitstop::http
