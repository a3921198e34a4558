#include "http_proc/format/call_grammar.h"

#include "http_proc/format/call_text.h"
#include "http_proc/format/ordered_json.h"
#include "http_proc/format/tagged_call_grammar.h"
#include "messages/sampling.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Tool = ToolSpec;

constexpr auto kReplaceBytes = OrderedJson::error_handler_t::replace;

// The texts with which a format writes calls: `list_open`, calls with `separator` between them,
// `list_close`. A call consists of `open`, the name, the arguments, and `close`.
struct CallForm {
    // The place of the arguments.
    enum class Arguments : std::uint8_t {
        kMember,  // the member `arguments` of a JSON object that also has the name
        kTagged,  // each argument between tags
        // JSON after the opening of a forced call of one function. Special tokens, which no grammar
        // can match, separate names from arguments. So other calls are not held to their schemas.
        kAfterOpening,
    };
    ToolFormat format{};
    Arguments place = Arguments::kMember;
    std::string_view list_open{};
    std::string_view open{};
    std::string_view arguments{};   // `arguments` in JSON, up to its value
    std::string_view name_close{};  // of a tagged call
    ParameterTags tags{};
    std::string_view close{};
    std::string_view separator{};
    std::string_view list_close{};
    std::string_view trigger{};  // begins a call within any text; empty: text has no calls
    std::string_view never{};    // also begins a call: text outside of calls may not contain it
};
constexpr std::array kCallForms{
    CallForm{
        .format = ToolFormat::kHermes,
        .open = "<tool_call>\n{\"name\": ",
        .arguments = ", \"arguments\": ",
        .close = "}\n</tool_call>",
        .separator = "\n",
        .trigger = "<tool_call>"},
    CallForm{
        .format = ToolFormat::kLlama3,
        .open = "{\"name\": ",
        .arguments = ", \"parameters\": ",
        .close = "}",
        .separator = "; ",
        .never = "<|python_tag|>"},
    CallForm{
        .format = ToolFormat::kMistral,
        .list_open = "[TOOL_CALLS][",
        .open = "{\"name\": ",
        .arguments = ", \"arguments\": ",
        .close = "}",
        .separator = ", ",
        .list_close = "]"},
    CallForm{
        .format = ToolFormat::kQwen3Coder,
        .place = CallForm::Arguments::kTagged,
        .open = "<tool_call>\n<function=",
        .name_close = ">",
        .tags = kQwen3CoderParameters,
        .close = "\n</function>\n</tool_call>",
        .separator = "\n",
        .trigger = "<tool_call>",
        .never = "<function="},
    CallForm{
        .format = ToolFormat::kGlm45,
        .place = CallForm::Arguments::kTagged,
        .open = "<tool_call>",
        .tags = {"\n<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "</arg_value>"},
        .close = "\n</tool_call>",
        .separator = "\n",
        .trigger = "<tool_call>"},
    CallForm{
        .format = ToolFormat::kGlm47,
        .place = CallForm::Arguments::kTagged,
        .open = "<tool_call>",
        .tags = {"<arg_key>", "</arg_key><arg_value>", "</arg_value>", "</arg_value>"},
        .close = "</tool_call>",
        .trigger = "<tool_call>"},
    CallForm{.format = ToolFormat::kKimiK2, .place = CallForm::Arguments::kAfterOpening},
    CallForm{
        .format = ToolFormat::kDeepseekV3,
        .place = CallForm::Arguments::kAfterOpening,
        .close = "\n```"},
    CallForm{.format = ToolFormat::kDeepseekV31, .place = CallForm::Arguments::kAfterOpening},
    CallForm{.format = ToolFormat::kHarmony, .place = CallForm::Arguments::kAfterOpening},
};

const CallForm* form_of(ToolFormat format) {
    const auto* const form = std::ranges::find(kCallForms, format, &CallForm::format);
    return form == kCallForms.end() ? nullptr : form;
}

// Returns whether calls are held to their schemas even if tool_choice does not name them.
bool holds_any_call(const CallForm& form) {
    return form.place != CallForm::Arguments::kAfterOpening;
}

Error not_held(const Tool& tool, std::string_view why) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "the arguments of tool '{}' cannot be held to its schema: {}",
        tool.name,
        why
    );
}

OrderedJson const_text(std::string_view text) {
    return {{"type", "const_string"}, {"value", std::string(text)}};
}

OrderedJson elements_of(std::string_view type, OrderedJson elements) {
    return {{"type", std::string(type)}, {"elements", std::move(elements)}};
}

// Returns the schema of a tool's arguments, which must be an object.
Result<OrderedJson> schema_of(const Tool& tool) {
    const OrderedJson any{{"type", "object"}};
    if (tool.parameters.empty()) return any;
    if (tool.parameters.size() > messages::kGrammarBytesMax) {
        return not_held(
            tool, fmt::format("it has over {} bytes, the most accepted", messages::kGrammarBytesMax)
        );
    }
    ASSIGN_OR_RETURN(OrderedJson schema, parse_ordered_json(tool.parameters));
    if (!schema.is_object()) return not_held(tool, "it is no object");
    if (schema.empty()) return any;
    constexpr auto kForms =
        std::to_array<std::string_view>({"$ref", "anyOf", "oneOf", "allOf", "enum", "const"});
    const bool has_form = std::ranges::any_of(kForms, [&](std::string_view name) {
        return schema.contains(std::string(name));
    });
    if (!schema.contains("type") && !has_form) schema["type"] = "object";
    if (schema.contains("type") && schema["type"] != "object")
        return not_held(tool, "its type is not object");
    return schema;
}

// Returns the grammar of a call, without the first `num_written` bytes, which are in the prompt.
Result<OrderedJson> call_of(const CallForm& form, const Tool& tool, std::size_t num_written) {
    std::string begin(form.open);
    OrderedJson content;
    if (form.place == CallForm::Arguments::kTagged) {
        if (!is_call_name(tool.name))
            return not_held(
                tool,
                "in this format a name has only ASCII letters, digits and _ - . : /, because any "
                "other character ends it"
            );
        begin += tool.name;
        begin += form.name_close;
        ASSIGN_OR_RETURN(const OrderedJson schema, schema_of(tool));
        Result<OrderedJson> tagged = tagged_arguments(schema, form.tags);
        if (!tagged) return not_held(tool, tagged.error().message);
        content = *std::move(tagged);
    } else {
        begin += OrderedJson(tool.name).dump(-1, ' ', /*ensure_ascii=*/false, kReplaceBytes);
        begin += form.arguments;
        ASSIGN_OR_RETURN(OrderedJson schema, schema_of(tool));
        content = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
    }
    return OrderedJson{
        {"type", "tag"},
        {"begin", begin.substr(std::min(num_written, begin.size()))},
        {"content", std::move(content)},
        {"end", std::string(form.close)}};
}

Result<OrderedJson> calls_of(
    const CallForm& form, const std::vector<Tool>& tools, std::size_t num_written
) {
    OrderedJson calls = OrderedJson::array();
    for (const Tool& tool : tools) {
        ASSIGN_OR_RETURN(OrderedJson call, call_of(form, tool, num_written));
        calls.push_back(std::move(call));
    }
    return calls;
}

// Returns the grammar of a list of calls. The first `num_written` bytes are in the prompt.
Result<OrderedJson> list_of_calls(
    const CallForm& form, const std::vector<Tool>& tools, bool takes_one, std::size_t num_written
) {
    const std::size_t num_open = std::min(form.list_open.size(), num_written);
    OrderedJson list = OrderedJson::array();
    if (num_open < form.list_open.size())
        list.push_back(const_text(form.list_open.substr(num_open)));
    ASSIGN_OR_RETURN(OrderedJson first, calls_of(form, tools, num_written - num_open));
    list.push_back(elements_of("or", std::move(first)));
    if (!takes_one) {
        ASSIGN_OR_RETURN(OrderedJson others, calls_of(form, tools, 0));
        OrderedJson next =
            OrderedJson::array({const_text(form.separator), elements_of("or", std::move(others))});
        list.push_back({{"type", "star"}, {"content", elements_of("sequence", std::move(next))}});
    }
    if (!form.list_close.empty()) list.push_back(const_text(form.list_close));
    return elements_of("sequence", std::move(list));
}

// Returns the grammar of the only call's arguments. The prompt ends with the call's opening.
Result<OrderedJson> arguments_of(const CallForm& form, const Tool& tool) {
    ASSIGN_OR_RETURN(OrderedJson schema, schema_of(tool));
    OrderedJson parts =
        OrderedJson::array({{{"type", "json_schema"}, {"json_schema", std::move(schema)}}});
    if (!form.close.empty()) parts.push_back(const_text(form.close));
    return elements_of("sequence", std::move(parts));
}

// Returns the grammar of any text with calls in it.
Result<OrderedJson> text_with_calls(
    const CallForm& form, const std::vector<Tool>& tools, bool takes_one
) {
    OrderedJson never = OrderedJson::array();
    if (!form.never.empty()) never.push_back(std::string(form.never));
    if (!form.trigger.empty()) {
        ASSIGN_OR_RETURN(OrderedJson tags, calls_of(form, tools, 0));
        return OrderedJson{
            {"type", "triggered_tags"},
            {"triggers", OrderedJson::array({std::string(form.trigger)})},
            {"tags", std::move(tags)},
            {"excludes", std::move(never)},
            {"at_least_one", false},
            {"stop_after_first", takes_one}};
    }
    // The output is either calls alone, or text that does not begin like a call or its marker.
    ASSIGN_OR_RETURN(OrderedJson calls, list_of_calls(form, tools, takes_one, 0));
    OrderedJson text = OrderedJson::array(
        {{{"type", "regex"}, {"pattern", "[ \\t\\r\\n]{0,16}[^{< \\t\\r\\n]"}},
         {{"type", "any_text"}, {"excludes", std::move(never)}}}
    );
    return elements_of(
        "or", OrderedJson::array({std::move(calls), elements_of("sequence", std::move(text))})
    );
}

// Returns the forced function alone, or all tools if none is forced.
std::vector<Tool> tools_that_may_be(
    const std::vector<Tool>& tools, const std::optional<ForcedCall>& forced
) {
    std::vector<Tool> all = tools;
    if (forced && !forced->function.empty())
        std::erase_if(all, [&](const Tool& tool) { return tool.name != forced->function; });
    return all;
}

}  // namespace

std::vector<ToolSpec> tool_specs(const OrderedJson& tools) {
    std::vector<ToolSpec> specs;
    if (!tools.is_array()) return specs;
    const auto member = [](const OrderedJson& object, const char* name) -> const OrderedJson* {
        if (!object.is_object()) return nullptr;
        const auto found = object.find(name);
        return found == object.end() || found->is_null() ? nullptr : &*found;
    };
    for (const OrderedJson& tool : tools) {
        const OrderedJson* inner = member(tool, "function");
        const OrderedJson& function = inner != nullptr ? *inner : tool;
        const OrderedJson* name = member(function, "name");
        if (name == nullptr || !name->is_string()) continue;
        const OrderedJson* schema = member(function, "parameters");
        if (schema == nullptr) schema = member(function, "input_schema");
        const OrderedJson* strict = member(function, "strict");
        specs.push_back(
            {.name = name->get<std::string>(),
             .parameters = schema == nullptr
                               ? std::string()
                               : schema->dump(-1, ' ', /*ensure_ascii=*/false, kReplaceBytes),
             .is_strict = strict != nullptr && *strict == true}
        );
    }
    return specs;
}

Result<std::string> call_grammar(
    const std::optional<ToolFormat>& format,
    const std::vector<ToolSpec>& tools,
    const std::optional<ForcedCall>& forced,
    bool takes_one_call
) {
    std::vector<Tool> held = tools_that_may_be(tools, forced);
    const auto strict = std::ranges::find(held, true, &Tool::is_strict);
    const bool has_strict = strict != held.end();
    if (held.empty() || (!forced && !has_strict)) return std::string();
    if (!format) return std::string();  // without a format, calls are plain text
    const CallForm* form = form_of(*format);
    const bool is_named = forced && !forced->function.empty();
    const bool is_held = form != nullptr && (is_named || holds_any_call(*form));
    if (!is_held && !has_strict) return std::string();  // only the call's opening is forced
    if (!is_held || (!forced && *format == ToolFormat::kMistral)) {
        return not_held(
            *strict,
            "strict is not supported for this call in this model's format. It is supported for any "
            "call in hermes, llama3, qwen3_coder, glm45 and glm47; for a forced call in mistral; "
            "and in kimi_k2, deepseekv3, deepseekv31 and gpt-oss for the function that tool_choice "
            "names"
        );
    }
    OrderedJson grammar;
    if (!holds_any_call(*form)) {
        ASSIGN_OR_RETURN(grammar, arguments_of(*form, held.front()));
    } else if (forced) {
        const std::size_t num_written = forced->opening(*format).size();
        ASSIGN_OR_RETURN(grammar, list_of_calls(*form, held, takes_one_call, num_written));
    } else {
        // Tools without `strict` may have any arguments.
        for (Tool& tool : held)
            if (!tool.is_strict) tool.parameters.clear();
        ASSIGN_OR_RETURN(grammar, text_with_calls(*form, held, takes_one_call));
    }
    return grammar.dump(-1, ' ', /*ensure_ascii=*/false, kReplaceBytes);
}

}  // namespace pitstop::http
