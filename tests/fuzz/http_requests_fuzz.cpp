// Every parser of http_proc that reads a client's bytes: bodies of the four dialects, targets,
// keys; and the parser of a model's output. What a parser accepts must be valid for the engine, and
// the JSON writer must write it as JSON. The first byte, '0' to ':', selects the parser.
#include "base/check.h"
#include "base/utf8.h"
#include "http_proc/anthropic/messages_request.h"
#include "http_proc/format/control_fields.h"
#include "http_proc/format/harmony.h"
#include "http_proc/format/json_body.h"
#include "http_proc/format/json_writer.h"
#include "http_proc/format/keys.h"
#include "http_proc/format/message.h"
#include "http_proc/format/thinking.h"
#include "http_proc/format/tool_calls.h"
#include "http_proc/openai/chat_request.h"
#include "http_proc/openai/completions_request.h"
#include "http_proc/openai/responses_request.h"
#include "http_proc/sglang/generate_request.h"
#include "http_proc/vllm/generate_request.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {
namespace {

void parse_as_target(std::string_view text) {
    http::Request request;
    if (!parse_target(text, request)) return;
    CHECK(!request.path.empty() && request.path.find('\0') == std::string::npos);
    for (const auto& [name, value] : request.query)
        CHECK(name.size() + value.size() <= text.size());
}

void parse_as_key(std::string_view text) {
    http::Request request;
    request.headers.push_back({"authorization", std::string(text)});
    const http::Keys keys{.api = "key", .admin = "other"};
    const http::Grant grant = grant_of(request, keys);
    if (grant == http::Grant::kData) CHECK(text.ends_with("key"));
    if (grant == http::Grant::kAdmin) CHECK(text.ends_with("other"));
}

void write_as_json(std::string_view text) {
    if (!is_utf8(text)) return;
    http::JsonWriter json;
    json.begin_array().string(text).end_array();
    CHECK(nlohmann::json::parse(json.text())[0] == text);
}

void parse_as_chat(std::string_view text) {
    if (const auto call = http::parse_openai_chat(text)) {
        CHECK(!messages::invalid(call->options.sampling));
        CHECK(call->input_ids || nlohmann::json::accept(call->chat.variables));
    }
    // The parser of /tokenize reads the same chats, and no other fields.
    if (const auto chat = http::parse_prompt_chat(text))
        CHECK(nlohmann::json::accept(chat->variables));
}

// The first line is a target, the rest a body.
void parse_as_control(std::string_view text) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    http::Request request;
    if (!parse_target(text.substr(0, end), request)) return;
    request.body = text.substr(std::min(end + 1, text.size()));
    const auto fields = control_fields(request);
    if (!fields) return;
    CHECK(fields->is_object());
    for (const auto& [name, value] : request.query) CHECK(fields->contains(name));
}

// Reads the text in pieces of some length. REQUIRES: len > 0.
template <class Parser>
http::TurnPieces read_in_pieces(Parser parser, std::string_view text, std::size_t len) {
    http::TurnPieces pieces;
    for (std::size_t at = 0; at < text.size(); at += len)
        pieces.append(parser.append(text.substr(at, len)));
    pieces.append(parser.finish());
    return pieces;
}

http::TurnPieces calls_in_pieces(http::ToolFormat format, std::string_view text, std::size_t len) {
    if (format == http::ToolFormat::kHarmony)
        return read_in_pieces(http::HarmonyParser({}), text, len);
    return read_in_pieces(http::ToolCallParser(format), text, len);
}

// The first byte selects a format and the length of the pieces: in pieces and as a whole the result
// is the same.
void parse_as_tool_calls(std::string_view text) {
    if (text.empty() || !is_utf8(text.substr(1))) return;
    const auto first = static_cast<std::uint8_t>(text[0]);
    const http::ToolFormat format = http::kToolFormats[first % http::kToolFormats.size()].format;
    const std::size_t len = 1 + first / http::kToolFormats.size();
    text.remove_prefix(1);
    const http::TurnPieces whole = calls_in_pieces(format, text, text.size() + 1);
    CHECK(calls_in_pieces(format, text, len) == whole);
    const std::vector<http::TurnItem> items = whole_items(whole);
    const bool has_call = std::ranges::any_of(items, [](const http::TurnItem& item) {
        return item.kind == http::TurnItem::Kind::kCall;
    });
    const bool leaves_out_markers = format == http::ToolFormat::kHarmony;
    CHECK(
        has_call || leaves_out_markers ||
        (items.empty() ? text.empty() : items.front().text == text)
    );
    for (const http::TurnItem& item : items) {
        if (item.kind == http::TurnItem::Kind::kCall)
            CHECK(nlohmann::json::parse(item.call.arguments).is_object());
    }
}

// The first byte selects a format and where the output begins; in pieces and as a whole the result
// is the same.
void parse_as_thinking(std::string_view text) {
    if (text.empty()) return;
    const auto first = static_cast<std::uint8_t>(text[0]);
    constexpr std::array<std::string_view, 4> kNames{"qwen3", "kimi", "deepseek-r1", "a ab"};
    const auto format = http::thinking_format_named(kNames[first % kNames.size()]);
    CHECK(format);
    using Parser = http::ThinkingParser;
    const auto start = first / 4 % 2 == 0 ? Parser::Start::kOutside : Parser::Start::kInside;
    const std::size_t len = 1 + first / 8;
    text.remove_prefix(1);
    const auto read = [&](std::size_t piece_len) {
        Parser parser(*format, start);
        Parser::Part sum;
        const auto add = [&](const Parser::Part& part) {
            CHECK(part.thinking.empty() || sum.answer.empty());
            sum.thinking += part.thinking;
            sum.answer += part.answer;
        };
        for (std::size_t at = 0; at < text.size(); at += piece_len)
            add(parser.append(text.substr(at, piece_len)));
        add(parser.finish());
        return sum;
    };
    const Parser::Part whole = read(text.size() + 1);
    const Parser::Part pieces = read(len);
    CHECK(pieces.thinking == whole.thinking && pieces.answer == whole.answer);
    CHECK(text.ends_with(whole.answer));
}

// A chat in another shape must become one that templates accept.
void check_chat_call(const http::ChatCall& call) {
    CHECK(!messages::invalid(call.request.sampling));
    const auto variables = nlohmann::json::parse(call.chat.variables);
    for (const nlohmann::json& message : variables.at("messages"))
        CHECK(message.at("role").is_string());
}

void parse_as_responses(std::string_view text) {
    const auto given = http::parse_openai_responses(text);
    if (!given) return;
    check_chat_call(given->call);
    for (const auto& [name, json] : given->shown) CHECK(nlohmann::json::accept(json));
}

void parse_as_messages(std::string_view text) {
    if (const auto call = http::parse_anthropic_messages(text)) {
        CHECK(call->request.sampling.max_new_tokens);
        check_chat_call(*call);
    }
    if (const auto call = http::parse_anthropic_count(text)) check_chat_call(*call);
}

void fuzz(std::uint8_t which, std::string_view text) {
    switch (static_cast<std::uint8_t>(which - '0') % 12) {
        case 0:
            if (const auto call = http::parse_sglang_generate(text)) {
                CHECK(!call->prompts.empty());
                for (const messages::Generate& prompt : call->prompts)
                    CHECK(!messages::invalid(prompt));
            }
            break;
        case 1:
            if (const auto call = http::parse_openai_completions(text))
                CHECK(!messages::invalid(call->options.sampling));
            break;
        case 2:
            if (const auto call = http::parse_vllm_generate(text)) CHECK(!call->prompt.empty());
            break;
        case 3:
            parse_as_target(text);
            break;
        case 4:
            parse_as_key(text);
            break;
        case 5:
            parse_as_chat(text);
            break;
        case 6:
            parse_as_control(text);
            break;
        case 7:
            parse_as_tool_calls(text);
            break;
        case 8:
            write_as_json(text);
            break;
        case 9:
            parse_as_responses(text);
            break;
        case 10:  // ':'
            parse_as_messages(text);
            break;
        default:  // ';'
            parse_as_thinking(text);
    }
}

}  // namespace
}  // namespace pitstop

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    pitstop::fuzz(data[0], {reinterpret_cast<const char*>(data + 1), size - 1});
    return 0;
}
