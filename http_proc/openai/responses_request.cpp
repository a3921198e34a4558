#include "http_proc/openai/responses_request.h"

#include "http_proc/format/common_fields.h"
#include "http_proc/format/grammar_fields.h"
#include "http_proc/openai/options.h"
#include "http_proc/openai/responses_items.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <optional>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct Refused {
    std::string_view name{};
    std::string_view why{};
};
constexpr std::string_view kNotKept =
    "responses are not kept; send the whole conversation as input";
constexpr std::array kRefused{
    Refused{"previous_response_id", kNotKept},
    Refused{"conversation", kNotKept},
    Refused{"store", kNotKept},
    Refused{"background", kNotKept},
    Refused{"prompt", "prompts are not stored; send instructions and input"},
    Refused{"context_management", "a prompt is used whole or refused"},
    Refused{"moderation", "nothing is moderated"},
    Refused{"access_programs", "there are none"},
    Refused{"max_tokens", "use max_output_tokens"},
    Refused{"max_completion_tokens", "use max_output_tokens"},
};
constexpr std::size_t kMetadataMax = 16;  // OpenAI's limit

std::string dumped(const OrderedJson& json) {
    return json.dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
}

// Returns the member; nullptr if it is absent or null.
const OrderedJson* member(const OrderedJson& object, const char* name) {
    const auto place = object.find(name);
    return place == object.end() || place->is_null() ? nullptr : &*place;
}

void refuse_by_name(FieldReader& fields) {
    for (const Refused& entry : kRefused) {
        const Json* given = fields.find(entry.name);
        if (given != nullptr && !asks_for_nothing(*given)) fields.refuse(entry.name, entry.why);
    }
    std::string truncation = "disabled";
    fields.read("truncation", truncation);
    if (truncation != "disabled")
        fields.refuse("truncation", "a prompt is used whole or refused; accepted is disabled");
}

// Reads which logprobs the answer shows. With tools, some tokens do not belong to the text.
void read_logprobs(FieldReader& fields, OpenAiResponses& responses) {
    std::vector<std::string> include;
    fields.read("include", include);
    const bool is_included = std::ranges::count(include, "message.output_text.logprobs") > 0;
    std::int64_t num_top = 0;
    fields.read("top_logprobs", num_top);
    read_logprobs_mode(fields, responses.call.request.logprobs.mode);
    check_top_logprobs(fields, "top_logprobs", num_top);
    if (num_top != 0 && !is_included)
        fields.refuse("top_logprobs", "include has no message.output_text.logprobs");
    if (!is_included) return;
    if (responses.call.has_tools)
        fields.refuse("include", "logprobs with tools are served by /v1/chat/completions");
    responses.top_logprobs = num_top;
}

// Reads `text`: the output's format and the verbosity.
void read_text_config(
    FieldReader& fields, std::string_view body, messages::SamplingParams& params
) {
    const Json* given = fields.find("text");
    if (given == nullptr) return;
    if (!given->is_object()) return fields.fail("text", "an object");
    read_inner_format(fields, body, "text", params);
    const FieldReader inside(*given);
    const Json* verbosity = inside.find("verbosity");
    if (verbosity != nullptr && *verbosity != "medium")
        fields.refuse("text", "it does not reach the model; accepted is medium");
}

void read_tool_choice(FieldReader& fields, ChatCall& call) {
    const Json* tools = fields.find("tools");
    if (tools != nullptr && !tools->is_array()) return fields.fail("tools", "a list of tools");
    call.has_tools = tools != nullptr && !tools->empty();
    bool takes_many = true;
    fields.read("parallel_tool_calls", takes_many);
    call.takes_one_call = !takes_many;
    const Json* choice = fields.find("tool_choice");
    if (choice == nullptr || *choice == "auto") return;
    if (*choice == "none") {
        call.has_tools = false;
        return;
    }
    ForcedCall forced;
    if (*choice != "required") {
        const bool is_function = choice->is_object() && choice->value("type", Json()) == "function";
        const Json name = is_function ? choice->value("name", Json()) : Json();
        if (!name.is_string() || name == "") {
            constexpr std::string_view kAccepted =
                R"(auto, none, required or {"type": "function", "name": N})";
            return fields.fail("tool_choice", kAccepted);
        }
        forced.function = name.get<std::string>();
        call.takes_one_call = true;
    }
    force_call(fields, std::move(forced), call);
}

void check_metadata(FieldReader& fields) {
    const Json* given = fields.find("metadata");
    if (given == nullptr) return;
    bool is_map = given->is_object() && given->size() <= kMetadataMax;
    if (is_map) {
        for (const auto& [key, value] : given->items()) is_map = is_map && value.is_string();
    }
    if (!is_map)
        fields.fail("metadata", fmt::format("an object of at most {} texts", kMetadataMax));
}

// Reads `reasoning`, whose effort becomes a variable of the template.
void read_reasoning(FieldReader& fields, OrderedJson& variables) {
    const Json* given = fields.find("reasoning");
    if (given == nullptr) return;
    if (!given->is_object()) return fields.fail("reasoning", "an object");
    const FieldReader inside(*given);
    const Json* effort = inside.find("effort");
    if (effort == nullptr) return;
    if (!effort->is_string()) return fields.fail("reasoning", "an object whose effort is a name");
    variables["reasoning_effort"] = *effort;
}

// Converts {"type": "function", "name", "description", "parameters"} into a tool in the shape that
// templates expect.
Result<OrderedJson> tool_of(const OrderedJson& given, std::size_t index) {
    const auto refused = [&](std::string_view why) {
        return make_error(ErrorCode::kInvalidArgument, "tools[{}]: {}", index, why);
    };
    const std::string* type = text_member(given, "type");
    if (type == nullptr) return refused("a tool must be an object with a type");
    if (*type != "function") {
        return refused(fmt::format(
            "{} is not supported: a tool must be a function, which the client runs",
            shown(OrderedJson(*type))
        ));
    }
    const std::string* name = text_member(given, "name");
    if (name == nullptr) return refused("a function must have a name");
    const OrderedJson* deferred = member(given, "defer_loading");
    if (deferred != nullptr && *deferred != false)
        return refused("defer_loading is not supported: the model sees every tool");
    OrderedJson function = OrderedJson::object();
    function["name"] = *name;
    if (const std::string* about = text_member(given, "description"))
        function["description"] = *about;
    const OrderedJson* parameters = member(given, "parameters");
    if (parameters != nullptr && !parameters->is_object())
        return refused("parameters is not an object");
    if (parameters != nullptr) function["parameters"] = *parameters;
    return OrderedJson{{"type", "function"}, {"function", std::move(function)}};
}

Result<> read_tools(const OrderedJson& body, ChatCall& call, OrderedJson& variables) {
    const OrderedJson* given = member(body, "tools");
    if (given == nullptr) return Ok{};
    OrderedJson tools = OrderedJson::array();
    for (const OrderedJson& one : *given) {
        ASSIGN_OR_RETURN(OrderedJson tool, tool_of(one, tools.size()));
        tools.push_back(std::move(tool));
    }
    if (!call.has_tools) return Ok{};
    call.tools = tool_specs(*given);
    variables["tools"] = std::move(tools);
    return Ok{};
}

Result<> read_input(const OrderedJson& body, OrderedJson& variables) {
    ChatMessages messages;
    if (const std::string* text = text_member(body, "instructions"))
        messages.add_text("system", *text, ChatMessages::Join::kNever);
    const OrderedJson& input = body["input"];
    if (input.is_string()) {
        messages.add_text("user", input.get<std::string>(), ChatMessages::Join::kNever);
    } else {
        for (std::size_t i = 0; i < input.size(); ++i) {
            RETURN_IF_ERROR(add_item(input[i], i, messages));
        }
    }
    variables["messages"] = messages.take();
    variables["add_generation_prompt"] = true;
    return Ok{};
}

// Collects the members of the request that the answer repeats, with the values in effect, because
// the server keeps no responses.
void show_request(const OrderedJson& body, bool reads_calls, OpenAiResponses& call) {
    const auto given = [&](const char* name, const OrderedJson& otherwise) {
        const OrderedJson* value = member(body, name);
        call.shown.emplace_back(name, dumped(value == nullptr ? otherwise : *value));
    };
    const auto show = [&](const char* name, const OrderedJson& value) {
        call.shown.emplace_back(name, dumped(value));
    };
    const messages::SamplingParams& params = call.call.request.sampling;
    show("background", false);
    given("instructions", nullptr);
    given("max_output_tokens", nullptr);
    given("max_tool_calls", nullptr);
    given("metadata", OrderedJson::object());
    show("parallel_tool_calls", !call.call.takes_one_call);
    show("previous_response_id", nullptr);
    given("prompt_cache_key", nullptr);
    const OrderedJson* reasoning = member(body, "reasoning");
    const OrderedJson* effort = reasoning == nullptr ? nullptr : member(*reasoning, "effort");
    show(
        "reasoning", {{"effort", effort == nullptr ? OrderedJson() : *effort}, {"summary", nullptr}}
    );
    given("safety_identifier", nullptr);
    show("service_tier", "default");
    show("store", false);
    show("temperature", params.temperature);
    OrderedJson format = OrderedJson::object();
    format["type"] = "text";
    show("text", {{"format", std::move(format)}, {"verbosity", "medium"}});
    given("tool_choice", "auto");
    OrderedJson tools = OrderedJson::array();
    if (const OrderedJson* all = member(body, "tools")) tools = *all;
    for (OrderedJson& tool : tools) {
        const OrderedJson* strict = member(tool, "strict");
        tool["strict"] = reads_calls && strict != nullptr && *strict == true;
    }
    show("tools", tools);
    show("top_logprobs", call.top_logprobs.value_or(0));
    if (call.top_logprobs && (member(body, "logprobs_mode") != nullptr || has_grammar(params)))
        show("logprobs_mode", messages::name_of(call.call.request.logprobs.mode));
    show("top_p", params.top_p);
    show("truncation", "disabled");
    given("user", nullptr);
}

}  // namespace

Result<OpenAiResponses> parse_openai_responses(std::string_view text, bool reads_calls) {
    ASSIGN_OR_RETURN(const Json json, parse_json_object(text));
    FieldReader fields(json);
    OpenAiResponses responses;
    ChatCall& call = responses.call;
    OrderedJson variables = OrderedJson::object();
    const Json* input = fields.find("input");
    const bool is_list = input != nullptr && input->is_array() && !input->empty();
    if (!is_list && (input == nullptr || !input->is_string()))
        fields.fail("input", "a string, or a list of at least one item");
    const Json* instructions = fields.find("instructions");
    if (instructions != nullptr && !instructions->is_string())
        fields.fail("instructions", "a string");
    refuse_by_name(fields);
    read_text_config(fields, text, call.request.sampling);
    read_tool_choice(fields, call);
    read_logprobs(fields, responses);
    read_reasoning(fields, variables);
    check_metadata(fields);
    read_chat_call(fields, call);
    std::optional<std::int64_t>& max_tokens = call.request.sampling.max_new_tokens;
    fields.read("max_output_tokens", max_tokens);
    if (max_tokens && *max_tokens < 1) fields.fail("max_output_tokens", "[1, ...]");
    if (fields.error()) return *fields.error();

    ASSIGN_OR_RETURN(const OrderedJson body, parse_ordered(text));
    RETURN_IF_ERROR(read_input(body, variables));
    RETURN_IF_ERROR(read_tools(body, call, variables));
    RETURN_IF_ERROR(finish_chat_call(body, std::move(variables), call));
    show_request(body, reads_calls, responses);
    return responses;
}

}  // namespace pitstop::http
