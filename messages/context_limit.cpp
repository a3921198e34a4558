#include "messages/context_limit.h"

#include <charconv>
#include <string_view>
#include <system_error>

namespace pitstop::messages {
namespace {

constexpr std::string_view kBetween = " prompt tokens and ";
constexpr std::string_view kThan = " output tokens are more than the model's context of ";
constexpr std::string_view kEnd = " tokens";

// Removes a number and then `then` from the start of `text`; nothing if `text` differs.
std::optional<std::int64_t> take_number(std::string_view& text, std::string_view then) {
    std::int64_t number = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (problem != std::errc{}) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.starts_with(then)) return std::nullopt;
    text.remove_prefix(then.size());
    return number;
}

}  // namespace

Error beyond_context(const ContextLimit& limit) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "{}{}{}{}{}{}",
        limit.prompt_len,
        kBetween,
        limit.output_len,
        kThan,
        limit.context_len,
        kEnd
    );
}

std::optional<ContextLimit> context_limit_of(const Error& error) {
    if (error.code != ErrorCode::kInvalidArgument) return std::nullopt;
    std::string_view text = error.message;
    const auto prompt_len = take_number(text, kBetween);
    if (!prompt_len) return std::nullopt;
    const auto output_len = take_number(text, kThan);
    if (!output_len) return std::nullopt;
    const auto context_len = take_number(text, kEnd);
    if (!context_len || !text.empty()) return std::nullopt;
    return ContextLimit{*prompt_len, *output_len, *context_len};
}

}  // namespace pitstop::messages
