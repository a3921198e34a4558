#include "http_proc/anthropic/turns.h"

#include "http_proc/format/chat_call.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr auto kSameRole = ChatMessages::Join::kSameRole;

Error wrong(std::string_view where, const OrderedJson& given, std::string_view accepted) {
    return make_error(
        ErrorCode::kInvalidArgument, "{} is {}; accepted is {}", where, shown(given), accepted
    );
}

// The error for a block that is not text: names the block's type, such as image or document.
Error not_text(std::string_view where, const OrderedJson& block) {
    const std::string* type = text_member(block, "type");
    if (type == nullptr) return wrong(where, block, "an object with a type");
    if (*type == "text") return wrong(where, block, "an object with a text");
    return make_error(
        ErrorCode::kInvalidArgument,
        "{}: {} is not supported: the model accepts text only",
        where,
        shown(OrderedJson(*type))
    );
}

// Returns the text of a text block; other blocks are an error.
Result<std::string> text_of_block(std::string_view where, const OrderedJson& block) {
    const std::string* type = text_member(block, "type");
    const std::string* text = text_member(block, "text");
    if (type == nullptr || *type != "text" || text == nullptr) return not_text(where, block);
    return *text;
}

// Returns a tool's result as text; several text blocks become one line each.
Result<std::string> text_of_result(const std::string& where, const OrderedJson& block) {
    const auto content = block.find("content");
    if (content == block.end() || content->is_null()) return std::string();
    if (content->is_string()) return content->get<std::string>();
    if (!content->is_array())
        return wrong(where + ".content", *content, "a string or a list of blocks");
    std::string all;
    for (std::size_t i = 0; i < content->size(); ++i) {
        const std::string place = fmt::format("{}.content[{}]", where, i);
        ASSIGN_OR_RETURN(const std::string text, text_of_block(place, (*content)[i]));
        if (i != 0) all += '\n';
        all += text;
    }
    return all;
}

Result<> add_result(const std::string& where, const OrderedJson& block, ChatMessages& to) {
    const std::string* id = text_member(block, "tool_use_id");
    if (id == nullptr) return wrong(where, block, "a tool_result with a tool_use_id");
    const auto error = block.find("is_error");
    const bool is_error = error != block.end() && *error == true;
    ASSIGN_OR_RETURN(std::string text, text_of_result(where, block));
    to.add_result(*id, std::move(text), is_error);
    return Ok{};
}

Result<> add_call(const std::string& where, const OrderedJson& block, ChatMessages& to) {
    const std::string* id = text_member(block, "id");
    const std::string* name = text_member(block, "name");
    const auto input = block.find("input");
    if (id == nullptr || name == nullptr || input == block.end() || !input->is_object())
        return wrong(where, block, "a tool_use with an id, a name and an input");
    std::string arguments =
        input->dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
    to.add_call({.id = *id, .name = *name, .arguments = std::move(arguments)});
    return Ok{};
}

Result<> add_block(
    const std::string& where, std::string_view role, const OrderedJson& block, ChatMessages& to
) {
    const std::string* given = text_member(block, "type");
    const std::string_view type = given == nullptr ? std::string_view() : *given;
    if (type == "tool_result" && role == "user") return add_result(where, block, to);
    if (type == "tool_use" && role == "assistant") return add_call(where, block, to);
    if (type == "thinking" && role == "assistant") {
        const std::string* text = text_member(block, "thinking");
        if (text == nullptr) return wrong(where, block, "a block with its thinking");
        to.add_reasoning(*text);
        return Ok{};
    }
    if (type == "tool_result" || type == "tool_use" || type == "thinking") {
        return make_error(
            ErrorCode::kInvalidArgument, "{}: {} is not a block of the {}", where, type, role
        );
    }
    ASSIGN_OR_RETURN(std::string text, text_of_block(where, block));
    to.add_text(role, std::move(text), kSameRole);
    return Ok{};
}

}  // namespace

Result<> add_system(const OrderedJson& system, ChatMessages& to) {
    if (system.is_string()) {
        if (system != "") to.add_text("system", system.get<std::string>(), kSameRole);
        return Ok{};
    }
    if (!system.is_array()) return wrong("system", system, "a string or a list of blocks of text");
    for (std::size_t i = 0; i < system.size(); ++i) {
        ASSIGN_OR_RETURN(std::string text, text_of_block(fmt::format("system[{}]", i), system[i]));
        to.add_text("system", std::move(text), kSameRole);
    }
    return Ok{};
}

Result<> add_turn(const OrderedJson& turn, std::size_t index, ChatMessages& to) {
    const std::string where = fmt::format("messages[{}]", index);
    const std::string* role = text_member(turn, "role");
    if (role == nullptr || (*role != "user" && *role != "assistant" && *role != "system"))
        return wrong(where, turn, "an object with the role user, assistant or system");
    const auto content = turn.find("content");
    if (content == turn.end()) return wrong(where, turn, "an object with content");
    if (content->is_string()) {
        to.add_text(*role, content->get<std::string>(), kSameRole);
        return Ok{};
    }
    if (!content->is_array())
        return wrong(where + ".content", *content, "a string or a list of blocks");
    for (std::size_t i = 0; i < content->size(); ++i) {
        const std::string place = fmt::format("{}.content[{}]", where, i);
        RETURN_IF_ERROR(add_block(place, *role, (*content)[i], to));
    }
    return Ok{};
}

}  // namespace pitstop::http
