#include "messages/checks.h"

#include "messages/weights.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::messages {

std::optional<std::string> invalid_call(CallId call) {
    if (raw(call) == 0) return "call is 0; choose a number of 1 or more";
    return std::nullopt;
}

std::optional<std::string> invalid_call(CallId call, std::int64_t timeout_ms) {
    if (timeout_ms < 0) return fmt::format("timeout_ms is {}; accepted is 0 or more", timeout_ms);
    return invalid_call(call);
}

std::optional<std::string> invalid_label(std::string_view label) {
    return invalid_line("label", label);
}

bool has_control_character(std::string_view text) {
    return std::ranges::any_of(text, [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte < 0x20 || byte == 0x7f;
    });
}

std::optional<std::string> invalid_line(std::string_view field, std::string_view text) {
    if (text.size() > kLabelBytesMax) {
        return fmt::format(
            "{} has {} bytes; at most {} are accepted", field, text.size(), kLabelBytesMax
        );
    }
    if (has_control_character(text))
        return fmt::format("{} has a control character; it is one line of text", field);
    return std::nullopt;
}

}  // namespace pitstop::messages
