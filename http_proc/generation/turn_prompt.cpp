#include "http_proc/generation/turn_prompt.h"

#include "http_proc/format/thinking_fields.h"
#include "http_proc/generation/prompts.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

// The last tokens in which a marker of thinking may be: a marker has at most 128 bytes, and white
// space may follow it.
constexpr std::ptrdiff_t kTailTokens = 160;

Task<Result<std::string>> text_of_tail(Exchange& exchange, const std::vector<TokenId>& ids) {
    const auto num = std::min<std::ptrdiff_t>(kTailTokens, std::ssize(ids));
    co_return co_await text_of(exchange, std::vector<TokenId>(ids.end() - num, ids.end()));
}

bool ends_with_marker(std::string_view tail, std::string_view marker) {
    const std::size_t end = tail.find_last_not_of(" \n\r\t");
    return end != std::string_view::npos && tail.substr(0, end + 1).ends_with(marker);
}

}  // namespace

Task<Result<TurnPrompt>> prompt_of_turn(
    Exchange& exchange,
    const ChatPrompt& chat,
    const std::optional<ForcedCall>& forced,
    std::optional<std::vector<TokenId>> given
) {
    const OutputFormats formats = exchange.server().formats();  // a copy: another tree may follow
    if (auto known = check_forced_call(forced, formats.calls); !known) co_return known.error();
    TurnPrompt prompt;
    std::string tail;
    const bool is_given = given.has_value();
    if (is_given) {
        prompt.ids = *std::move(given);
        if (formats.thinking && !prompt.ids.empty()) {
            Result<std::string> text = co_await text_of_tail(exchange, prompt.ids);
            if (!text) co_return text.error();
            tail = *std::move(text);
        }
    } else {
        Result<messages::TokenizeReply> rendered = co_await ask(exchange, chat.question());
        if (!rendered) co_return rendered.error();
        prompt.ids = std::move(rendered->ids);
        prompt.text = std::move(rendered->text);
        tail = prompt.text;
    }
    std::string closing;
    if (formats.thinking) {
        if (!is_given && chat.continue_final_message) {
            prompt.start = start_within(*formats.thinking, text_to_continue(chat.variables));
        } else {
            prompt.start = start_after(*formats.thinking, tail);
        }
        prompt.has_ended_thinking = ends_with_marker(tail, formats.thinking->close);
        if (opens_thinking(*formats.thinking, tail)) closing = formats.thinking->close + "\n\n";
    }
    if (forced) {
        ForcedCall next = *forced;
        next.num_before = num_calls_in(chat.variables);
        prompt.opening = next.opening(*formats.calls);
        Result<> appended = co_await append_text(exchange, closing + prompt.opening, prompt.ids);
        if (!appended) co_return std::move(appended).error();
        if (!prompt.text.empty()) prompt.text += closing + prompt.opening;
    }
    co_return prompt;
}

}  // namespace pitstop::http
