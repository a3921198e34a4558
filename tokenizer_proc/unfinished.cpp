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

template <class Number>
Number take_number(std::string_view& text) {
    const std::string_view word = take_word(text);
    Number number = 0;
    std::from_chars(word.data(), word.data() + word.size(), number);
    return number;
}

}  // namespace

std::string line_of(const Unfinished& unfinished) {
    if (unfinished == Unfinished{}) return "";
    const auto* name = std::ranges::find(kCallsNames, unfinished.calls, &CallsName::first);
    // An adapter's name may have blanks, so its size is before it.
    return fmt::format(
        "{} {} {} {}{}",
        name->second,
        unfinished.session,
        unfinished.session_adapter.size(),
        unfinished.session_adapter,
        unfinished.session_what
    );
}

Unfinished read_unfinished(std::string_view line) {
    if (line.empty()) return {};
    const auto* name = std::ranges::find(kCallsNames, take_word(line), &CallsName::second);
    Unfinished unfinished{
        .calls = name == kCallsNames.end() ? Unfinished::Calls::kCollected : name->first};
    unfinished.session = take_number<std::uint64_t>(line);
    const std::size_t adapter_bytes = std::min(take_number<std::size_t>(line), line.size());
    unfinished.session_adapter = line.substr(0, adapter_bytes);
    unfinished.session_what = line.substr(adapter_bytes);
    return unfinished;
}

}  // namespace pitstop::tokenizer
