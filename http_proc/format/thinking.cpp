#include "http_proc/format/thinking.h"

#include <algorithm>
#include <array>
#include <utility>

namespace pitstop::http {
namespace {

using Begins = ThinkingFormat::Begins;

struct ThinkingRow {
    std::string_view name{};
    std::string_view open{};
    std::string_view close{};
    Begins begins = Begins::kByPrompt;
    std::string_view interrupted_by{};
    bool has_special_markers = false;
    bool is_harmony = false;
};

constexpr std::string_view kHarmonyOpen = "<|channel|>analysis<|message|>";
constexpr std::string_view kHarmonyClose = "<|end|>";
constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";
constexpr std::string_view kKimiSection = "<|tool_calls_section_begin|>";
constexpr std::string_view kToolCallMarker = "<tool_call>";

// A model whose template opens the thinking in the prompt needs no row, because the prompt shows
// it. The first template of DeepSeek-R1 did not, and outputs had no opening marker.
constexpr std::array kThinkingRows{
    ThinkingRow{"qwen3", kThinkOpen, kThinkClose, Begins::kByPrompt, kToolCallMarker},
    ThinkingRow{"qwen3-thinking", kThinkOpen, kThinkClose, Begins::kInside, kToolCallMarker},
    ThinkingRow{"deepseek-r1", kThinkOpen, kThinkClose, Begins::kInside},
    ThinkingRow{"deepseek_r1", kThinkOpen, kThinkClose, Begins::kInside},
    ThinkingRow{"deepseek-v3", kThinkOpen, kThinkClose, Begins::kByPrompt},
    ThinkingRow{"deepseek_v3", kThinkOpen, kThinkClose, Begins::kByPrompt},
    ThinkingRow{"glm45", kThinkOpen, kThinkClose, Begins::kByPrompt, kToolCallMarker},
    ThinkingRow{"kimi_k2", kThinkOpen, kThinkClose, Begins::kByPrompt, kKimiSection},
    ThinkingRow{"kimi", "◁think▷", "◁/think▷", Begins::kByPrompt, {}, true},
    ThinkingRow{"mistral", "[THINK]", "[/THINK]", Begins::kByPrompt, {}, true},
    ThinkingRow{"gpt-oss", kHarmonyOpen, kHarmonyClose, Begins::kByPrompt, {}, true, true},
    ThinkingRow{"openai_gptoss", kHarmonyOpen, kHarmonyClose, Begins::kByPrompt, {}, true, true},
};

constexpr std::string_view kThinkingSpace = " \t\r\n";
constexpr std::size_t kThinkingSpaceBytesMax = 256;  // withheld where the opening marker may follow
constexpr std::size_t kMarkerBytesMax = 128;         // of a marker in --reasoning-parser

ThinkingFormat format_of(const ThinkingRow& row) {
    return {
        .open = std::string(row.open),
        .close = std::string(row.close),
        .begins = row.begins,
        .interrupted_by = std::string(row.interrupted_by),
        .has_special_markers = row.has_special_markers,
        .is_harmony = row.is_harmony};
}

std::string_view without_trailing_space(std::string_view text) {
    const std::size_t last = text.find_last_not_of(kThinkingSpace);
    return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

// Returns the length of the longest suffix of `text` that is a prefix of `marker`.
std::size_t num_overlapping(std::string_view text, std::string_view marker) {
    if (marker.empty()) return 0;
    for (std::size_t len = std::min(text.size(), marker.size() - 1); len > 0; --len) {
        if (text.ends_with(marker.substr(0, len))) return len;
    }
    return 0;
}

}  // namespace

Result<ThinkingFormat> thinking_format_named(std::string_view name) {
    const auto row = std::ranges::find(kThinkingRows, name, &ThinkingRow::name);
    if (row != kThinkingRows.end()) return format_of(*row);
    const std::size_t space = name.find(' ');
    const std::string_view open = name.substr(0, space);
    const std::string_view close =
        space == std::string_view::npos ? std::string_view() : name.substr(space + 1);
    const bool is_pair = !open.empty() && !close.empty() && open != close &&
                         close.find_first_of(kThinkingSpace) == std::string_view::npos &&
                         std::max(open.size(), close.size()) <= kMarkerBytesMax;
    if (is_pair) return ThinkingFormat{.open = std::string(open), .close = std::string(close)};
    return make_error(
        ErrorCode::kInvalidArgument,
        "--reasoning-parser is '{}'; accepted are {}, auto, or two different markers with a space "
        "between them, of at most {} bytes each",
        name,
        thinking_format_names(),
        kMarkerBytesMax
    );
}

std::string thinking_format_names() {
    std::string names;
    for (const ThinkingRow& row : kThinkingRows) {
        if (!names.empty()) names += ", ";
        names += row.name;
    }
    return names;
}

std::optional<ThinkingFormat> thinking_format_in(std::string_view chat_template) {
    const auto has = [&](std::string_view text) {
        return chat_template.find(text) != std::string_view::npos;
    };
    for (const std::string_view name : {"kimi", "mistral", "gpt-oss"}) {
        const auto row = std::ranges::find(kThinkingRows, name, &ThinkingRow::name);
        if (has(row->open)) return format_of(*row);
    }
    // Some templates contain only the end marker, to cut thinking from earlier turns.
    if (!has(kThinkOpen) && !has(kThinkClose)) return std::nullopt;
    ThinkingFormat format{.open = std::string(kThinkOpen), .close = std::string(kThinkClose)};
    if (has(kKimiSection)) {
        format.interrupted_by = kKimiSection;
    } else if (has(kToolCallMarker)) {
        format.interrupted_by = kToolCallMarker;
    }
    return format;
}

ThinkingParser::Part ThinkingParser::append(std::string_view piece) {
    Part part;
    if (state_ == State::kAnswer) {
        part.answer = piece;
        return part;
    }
    held_ += piece;
    step_start(part, /*is_end=*/false);
    return part;
}

ThinkingParser::Part ThinkingParser::finish() {
    Part part;
    step_start(part, /*is_end=*/true);
    return part;
}

void ThinkingParser::step_start(Part& part, bool is_end) {
    if (state_ == State::kStart || state_ == State::kInsideStart) {
        const std::size_t begin = std::min(held_.find_first_not_of(kThinkingSpace), held_.size());
        const std::string_view rest = std::string_view(held_).substr(begin);
        const bool is_near = begin <= kThinkingSpaceBytesMax;
        const bool is_cut = rest.size() < format_.open.size() && format_.open.starts_with(rest);
        if (is_near && is_cut && !is_end) return;
        if (is_near && rest.starts_with(format_.open)) {
            held_.erase(0, begin + format_.open.size());
            state_ = State::kInside;
        } else {
            state_ = state_ == State::kInsideStart ? State::kInside : State::kAnswer;
        }
        has_thought_ = state_ == State::kInside;
    }
    if (state_ == State::kInside) step_inside(part, is_end);
    if (state_ == State::kAnswer) part.answer += std::exchange(held_, {});
}

void ThinkingParser::step_inside(Part& part, bool is_end) {
    const std::string& call = format_.interrupted_by;
    const std::size_t close = held_.find(format_.close);
    const std::size_t interruption = call.empty() ? std::string::npos : held_.find(call);
    const std::size_t end = std::min(close, interruption);
    if (end != std::string::npos) {
        part.thinking.append(held_, 0, end);
        held_.erase(0, end + (close < interruption ? format_.close.size() : 0));
        state_ = State::kAnswer;
        return;
    }
    const std::size_t num_held =
        is_end ? 0 : std::max(num_overlapping(held_, format_.close), num_overlapping(held_, call));
    part.thinking.append(held_, 0, held_.size() - num_held);
    held_.erase(0, held_.size() - num_held);
}

bool opens_thinking(const ThinkingFormat& format, std::string_view tail) {
    return without_trailing_space(tail).ends_with(format.open);
}

ThinkingParser::Start start_after(const ThinkingFormat& format, std::string_view tail) {
    using Start = ThinkingParser::Start;
    if (opens_thinking(format, tail)) return Start::kInside;
    if (without_trailing_space(tail).ends_with(format.close)) return Start::kOutside;
    return format.begins == Begins::kInside ? Start::kInside : Start::kOutside;
}

ThinkingParser::Start start_within(const ThinkingFormat& format, std::string_view begun) {
    using Start = ThinkingParser::Start;
    const std::size_t open = begun.rfind(format.open);
    const std::size_t close = begun.rfind(format.close);
    if (open == std::string_view::npos) return Start::kOutside;
    return close == std::string_view::npos || close < open ? Start::kInside : Start::kOutside;
}

}  // namespace pitstop::http
