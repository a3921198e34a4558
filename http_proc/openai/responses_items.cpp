#include "http_proc/openai/responses_items.h"

#include "http_proc/format/chat_call.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Join = ChatMessages::Join;

constexpr std::array<std::string_view, 4> kTextTypes{
    "input_text", "output_text", "text", "reasoning_text"};
constexpr std::string_view kRefusal = "refusal";

Error wrong(std::string_view where, const OrderedJson& given, std::string_view accepted) {
    return make_error(
        ErrorCode::kInvalidArgument, "{} is {}; accepted is {}", where, shown(given), accepted
    );
}

// Returns the text of a content part: of an input_text, an output_text or a refusal.
Result<std::string> text_of_part(std::string_view where, const OrderedJson& part) {
    const std::string* type = text_member(part, "type");
    if (type == nullptr) return wrong(where, part, "an object with a type");
    const bool is_text = std::ranges::find(kTextTypes, *type) != kTextTypes.end();
    if (!is_text && *type != kRefusal) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{}: {} is not supported: the model accepts text only",
            where,
            shown(OrderedJson(*type))
        );
    }
    const std::string* text = text_member(part, is_text ? "text" : kRefusal);
    if (text == nullptr) return wrong(where, part, "an object with its text");
    return *text;
}

// Passes each text of `content`, which is a string or a list of parts, to `use`.
template <class Use>
Result<> read_content(const std::string& where, const OrderedJson& content, Use use) {
    if (content.is_string()) {
        use(content.get<std::string>());
        return Ok{};
    }
    if (!content.is_array()) return wrong(where, content, "a string or a list of parts");
    for (std::size_t i = 0; i < content.size(); ++i) {
        ASSIGN_OR_RETURN(
            std::string text, text_of_part(fmt::format("{}[{}]", where, i), content[i])
        );
        use(std::move(text));
    }
    return Ok{};
}

Result<> add_message(const std::string& where, const OrderedJson& item, ChatMessages& to) {
    const std::string* given = text_member(item, "role");
    const auto content = item.find("content");
    if (given == nullptr || content == item.end())
        return wrong(where, item, "a message with a role and content");
    // Few templates know the role developer, OpenAI's newer name of the role system.
    const std::string_view role = *given == "developer" ? "system" : std::string_view(*given);
    if (role != "user" && role != "assistant" && role != "system")
        return wrong(where + ".role", OrderedJson(*given), "user, assistant, system or developer");
    // Templates accept one system message, so adjacent system messages are joined.
    Join join = role == "system" ? Join::kSameRole : Join::kNever;
    return read_content(where + ".content", *content, [&](std::string text) {
        to.add_text(role, std::move(text), std::exchange(join, Join::kSameRole));
    });
}

Result<> add_call(const std::string& where, const OrderedJson& item, ChatMessages& to) {
    const std::string* id = text_member(item, "call_id");
    const std::string* name = text_member(item, "name");
    const std::string* arguments = text_member(item, "arguments");
    if (id == nullptr || name == nullptr || arguments == nullptr)
        return wrong(where, item, "a function_call with a call_id, a name and arguments");
    to.add_call({.id = *id, .name = *name, .arguments = *arguments});
    return Ok{};
}

Result<> add_output(const std::string& where, const OrderedJson& item, ChatMessages& to) {
    const std::string* id = text_member(item, "call_id");
    const auto output = item.find("output");
    if (id == nullptr || output == item.end())
        return wrong(where, item, "a function_call_output with a call_id and an output");
    std::string all;
    bool is_first = true;
    const auto add_line = [&](const std::string& text) {
        if (!std::exchange(is_first, false)) all += '\n';
        all += text;
    };
    RETURN_IF_ERROR(read_content(where + ".output", *output, add_line));
    to.add_result(*id, std::move(all), /*is_error=*/false);
    return Ok{};
}

Result<> add_reasoning(const std::string& where, const OrderedJson& item, ChatMessages& to) {
    if (text_member(item, "encrypted_content") != nullptr) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "{}.encrypted_content is not supported: only the server that encrypted it can read it",
            where
        );
    }
    const auto content = item.find("content");
    if (content == item.end() || content->is_null()) return Ok{};  // the item has only a summary
    return read_content(where + ".content", *content, [&](const std::string& text) {
        to.add_reasoning(text);
    });
}

}  // namespace

Result<> add_item(const OrderedJson& item, std::size_t index, ChatMessages& to) {
    const std::string where = fmt::format("input[{}]", index);
    if (!item.is_object()) return wrong(where, item, "an object");
    const std::string* given = text_member(item, "type");
    const std::string_view type = given == nullptr ? std::string_view("message") : *given;
    if (type == "message") return add_message(where, item, to);
    if (type == "function_call") return add_call(where, item, to);
    if (type == "function_call_output") return add_output(where, item, to);
    if (type == "reasoning") return add_reasoning(where, item, to);
    return make_error(
        ErrorCode::kInvalidArgument,
        "{}: {} is not supported; accepted are message, function_call, function_call_output and "
        "reasoning{}",
        where,
        shown(OrderedJson(*given)),
        type == "item_reference" ? ": nothing is kept of earlier responses" : ""
    );
}

}  // namespace pitstop::http
