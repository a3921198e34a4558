#include "http_proc/format/thinking_fields.h"

#include <nlohmann/json.hpp>

#include <array>
#include <string>
#include <string_view>

namespace pitstop::http {

using Json = nlohmann::json;

namespace {

// The field's names in vLLM and in SGLang.
constexpr std::array<std::string_view, 2> kBudgetNames{
    "thinking_token_budget", "max_thinking_tokens"};
constexpr std::int64_t kNoBudget = -1;

}  // namespace

void read_thinking_fields(FieldReader& fields, ThinkingFields& thinking) {
    fields.read("separate_reasoning", thinking.is_separate);
    fields.read("stream_reasoning", thinking.is_streamed);
    fields.read("include_reasoning", thinking.is_included);
    if (!thinking.is_separate && !thinking.is_included)
        fields.refuse("include_reasoning", "separate_reasoning is false");
    if (fields.has(kBudgetNames[0]) && fields.has(kBudgetNames[1]))
        fields.refuse(
            kBudgetNames[1],
            "thinking_token_budget is given and means the same; send one of the two"
        );
    for (const std::string_view name : kBudgetNames) {
        fields.read(name, thinking.budget);
        if (thinking.budget && *thinking.budget < kNoBudget)
            fields.fail(name, "a number of tokens, or -1 for no limit");
        if (thinking.budget == kNoBudget) thinking.budget.reset();
        if (thinking.budget && !thinking.is_separate)
            fields.refuse(name, "separate_reasoning is false");
    }
}

void refuse_thinking_fields(FieldReader& fields) {
    const Json* given = fields.find("include_reasoning");
    if (given != nullptr && *given != true)
        fields.refuse("include_reasoning", "this route does not separate thinking from output");
    for (const std::string_view name : kBudgetNames) {
        const Json* budget = fields.find(name);
        if (budget != nullptr && !budget->is_null())
            fields.refuse(name, "this route does not separate thinking from output");
    }
}

Result<> check_thinking(
    const ThinkingFields& thinking, const std::optional<ThinkingFormat>& format
) {
    if (thinking.budget && format && format->has_special_markers) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "thinking_token_budget is not supported for this model: the end of its thinking, {}, "
            "is a special token, which is never forced",
            format->close
        );
    }
    if (format || (thinking.is_included && !thinking.budget)) return Ok{};
    return make_error(
        ErrorCode::kInvalidArgument,
        "{}, but the server does not separate thinking from output: start it with "
        "--reasoning-parser",
        thinking.budget ? "thinking_token_budget (max_thinking_tokens) is given"
                        : "include_reasoning is false"
    );
}

void name_thinking_for_template(nlohmann::ordered_json& messages) {
    if (!messages.is_array()) return;
    for (nlohmann::ordered_json& message : messages) {
        if (!message.is_object() || message.contains("reasoning_content")) continue;
        const auto thinking = message.find("reasoning");
        if (thinking == message.end() || !thinking->is_string()) continue;
        std::string text = thinking->get<std::string>();
        message["reasoning_content"] = std::move(text);
    }
}

std::string text_to_continue(std::string_view variables) {
    const Json json = Json::parse(variables.begin(), variables.end(), nullptr, false);
    if (!json.is_object()) return {};
    const Json messages = json.value("messages", Json());
    if (!messages.is_array() || messages.empty() || !messages.back().is_object()) return {};
    const Json content = messages.back().value("content", Json());
    if (content.is_string()) return content.get<std::string>();
    std::string text;
    if (!content.is_array()) return text;
    for (const Json& part : content) {
        const Json one = part.is_object() ? part.value("text", Json()) : Json();
        if (one.is_string()) text += one.get<std::string>();
    }
    return text;
}

}  // namespace pitstop::http
