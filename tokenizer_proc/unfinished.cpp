#include "tokenizer_proc/unfinished.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace pitstop::tokenizer {
namespace {

using CallsName = std::pair<Unfinished::Calls, std::string_view>;
constexpr std::array<CallsName, 3> kCallsNames{{
    {Unfinished::Calls::kNone, "none"},
    {Unfinished::Calls::kStandStill, "stand_still"},
    {Unfinished::Calls::kCollected, "collected"},
}};

// Removes a word and the blank after it from `text`. Returns the word.
std::string_view take_word(std::string_view& text) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    return word;
}

}  // namespace

std::string line_of(const Unfinished& unfinished) {
    if (unfinished == Unfinished{}) return "";
    const auto* name = std::ranges::find(kCallsNames, unfinished.calls, &CallsName::first);
    return fmt::format("{} {} {}", name->second, unfinished.session, unfinished.session_what);
}

Unfinished read_unfinished(std::string_view line) {
    if (line.empty()) return {};
    const auto* name = std::ranges::find(kCallsNames, take_word(line), &CallsName::second);
    const std::string_view number = take_word(line);
    Unfinished unfinished{
        .calls = name == kCallsNames.end() ? Unfinished::Calls::kCollected : name->first,
        .session_what = std::string(line)};
    std::from_chars(number.data(), number.data() + number.size(), unfinished.session);
    return unfinished;
}

}  // namespace pitstop::tokenizer
