#include "http_proc/format/harmony.h"

#include "http_proc/format/call_text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <utility>

namespace pitstop::http {
namespace {

using Start = ThinkingParser::Start;

constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kConstrain = "<|constrain|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kEnd = "<|end|>";
constexpr std::string_view kCall = "<|call|>";
constexpr std::string_view kReturn = "<|return|>";
constexpr std::array kMarkers{kStart, kChannel, kConstrain, kMessage, kEnd, kCall, kReturn};
constexpr std::size_t kHeaderBytesMax = 1024;
constexpr std::string_view kFunctions = "functions.";

bool is_one_of(std::string_view marker, std::initializer_list<std::string_view> markers) {
    return std::ranges::find(markers, marker) != markers.end();
}

// Removes and returns the next word; white space or a marker ends it.
std::string_view next_word(std::string_view& text) {
    text.remove_prefix(std::min(text.find_first_not_of(kCallSpace), text.size()));
    for (const std::string_view marker : kMarkers) {
        if (!text.starts_with(marker)) continue;
        text.remove_prefix(marker.size());
        return marker;
    }
    const std::size_t end = std::min(text.find_first_of(" \t\r\n<", 1), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(end);
    return word;
}

struct MessageHeader {
    bool is_assistants = true;
    std::string_view channel{};
    std::string_view recipient{};  // empty: no recipient
};

MessageHeader message_header_of(std::string_view text) {
    constexpr std::string_view kTo = "to=";
    MessageHeader header;
    std::string_view before;
    while (!text.empty()) {
        const std::string_view word = next_word(text);
        if (word.starts_with(kTo)) {
            header.recipient = word.substr(kTo.size());
        } else if (before == kStart) {
            header.is_assistants = word == "assistant";
        } else if (before == kChannel) {
            header.channel = word;
        }
        before = word;
    }
    if (is_one_of(header.recipient, {"all", "user", "assistant"})) header.recipient = {};
    return header;
}

}  // namespace

HarmonyParser::HarmonyParser(Reads reads, Start start) : reads_(reads) {
    if (start != Start::kInside) return;
    part_ = reads.thinking ? Part::kThinking : Part::kWritten;
    has_thinking_ = reads.thinking;
}

TurnPieces HarmonyParser::append(std::string_view piece) {
    for (const char c : piece) feed(c);
    return body_.take_pieces();
}

TurnPieces HarmonyParser::finish() {
    const std::string cut = std::exchange(marker_, {});
    if (part_ == Part::kAfterCall) {
        body_.take(cut);
    } else {
        for (const char c : cut) take(c);
    }
    if (part_ == Part::kHeader) body_.pieces().add_text(std::exchange(header_, {}));
    if (part_ == Part::kCall) break_call({});
    if (part_ == Part::kAfterCall) body_.end_call();
    part_ = Part::kOutside;
    return body_.take_pieces();
}

HarmonyParser::At HarmonyParser::at() const {
    if (part_ == Part::kThinking) return At::kThinking;
    const bool is_open = part_ == Part::kHeader || (part_ == Part::kOutside && !marker_.empty());
    return is_open ? At::kHeader : At::kOther;
}

void HarmonyParser::feed(char c) {
    marker_ += c;
    const auto may_become = [&](std::string_view marker) { return marker.starts_with(marker_); };
    while (!marker_.empty() && std::ranges::none_of(kMarkers, may_become)) {
        take(marker_.front());
        marker_.erase(0, 1);
    }
    if (std::ranges::find(kMarkers, marker_) != kMarkers.end())
        take_marker(std::exchange(marker_, {}));
}

// Takes a byte that belongs to no marker.
void HarmonyParser::take(char c) {
    const std::string_view byte(&c, 1);
    TurnPieces& pieces = body_.pieces();
    const std::string_view line = std::exchange(needs_line_, false) ? "\n" : "";
    switch (part_) {
        case Part::kHeader:
            header_ += c;
            if (header_.size() <= kHeaderBytesMax) return;
            pieces.add_text(std::exchange(header_, {}));
            part_ = Part::kOutside;
            return;
        case Part::kThinking:
            pieces.add_thinking(line);
            return pieces.add_thinking(byte);
        case Part::kCall:
        case Part::kAfterCall:
            return read_of_call(c);
        case Part::kAnswer:
            pieces.add_text(line);
            [[fallthrough]];
        case Part::kOutside:
        case Part::kWritten:
            pieces.add_text(byte);
    }
}

void HarmonyParser::take_marker(std::string_view marker) {
    const bool begins = is_one_of(marker, {kStart, kChannel});
    if (part_ == Part::kOutside) {
        if (!begins) return body_.pieces().add_text(marker);
        header_ = marker;
        part_ = Part::kHeader;
        return;
    }
    if (part_ == Part::kHeader) {
        if (marker == kMessage) return begin_message();
        if (is_one_of(marker, {kChannel, kConstrain})) {
            header_ += marker;
            return;
        }
        body_.pieces().add_text(std::exchange(header_, {}));
        part_ = Part::kOutside;
        return take_marker(marker);
    }
    if (is_one_of(marker, {kEnd, kCall, kReturn})) return end_message(marker);
    if (begins) {
        end_message({});
        return take_marker(marker);
    }
    for (const char c : marker) take(c);
}

// Called when the header is complete.
void HarmonyParser::begin_message() {
    const MessageHeader header = message_header_of(header_);
    std::string_view name = header.recipient;
    if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
    part_ = Part::kWritten;
    if (header.is_assistants && !header.recipient.empty()) {
        if (reads_.calls && is_call_name(name)) part_ = Part::kCall;
    } else if (header.is_assistants && header.channel == "analysis") {
        if (reads_.thinking) part_ = Part::kThinking;
    } else if (header.is_assistants && is_one_of(header.channel, {"final", "commentary", ""})) {
        part_ = Part::kAnswer;
    }
    if (part_ == Part::kThinking) needs_line_ = std::exchange(has_thinking_, true);
    if (part_ == Part::kAnswer) needs_line_ = std::exchange(has_answer_, true);
    name_ = name;
    const std::string header_text = std::exchange(header_, {}) + std::string(kMessage);
    if (part_ == Part::kWritten) body_.pieces().add_text(header_text);
    if (part_ == Part::kCall) {
        arguments_ = {};
        body_.begin(header_text);
    }
}

// `marker`: the marker that ends the message; empty: the next message ends it.
void HarmonyParser::end_message(std::string_view marker) {
    needs_line_ = false;
    if (part_ == Part::kCall) break_call({});
    if (part_ == Part::kWritten) body_.pieces().add_text(marker);
    if (part_ == Part::kAfterCall) {
        body_.take(marker);
        body_.end_call();
        body_.end();
    }
    part_ = Part::kOutside;
}

void HarmonyParser::read_of_call(char c) {
    const std::string_view byte(&c, 1);
    const bool is_space = is_call_space(c);
    if (part_ == Part::kAfterCall) {
        if (!is_space) return break_call(byte);
        return body_.take(byte);
    }
    const bool is_first = !body_.is_begun() && body_.arguments().empty();
    if (is_first && !is_space && c != '{') return break_call(byte);
    const CallStep step = arguments_.read(c, body_, CallStep::kCall);
    if (step == CallStep::kBroken) return break_call(byte);
    if (body_.may_begin()) body_.begin_call(name_, {});
    body_.take(byte);
    if (step == CallStep::kCall) part_ = Part::kAfterCall;
}

// Turns the message into text, from its first byte that is in no piece yet.
void HarmonyParser::break_call(std::string_view rest) {
    if (body_.is_begun()) {
        body_.break_call();
    } else {
        body_.pieces().add_text(body_.take_opening());
        body_.pieces().add_text(body_.take_written());
    }
    body_.end();
    body_.pieces().add_text(rest);
    part_ = Part::kWritten;
}

}  // namespace pitstop::http
