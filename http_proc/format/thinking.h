// Separates a model's thinking from its answer, while the output arrives.
//
//   ThinkingParser parser(format, ThinkingParser::Start::kOutside);
//   for (each piece of output) use(parser.append(piece));
//   use(parser.finish());
//
// Nothing but the markers is left out: thinking and answer keep their white space. Text that may
// become a marker is held back until that is decided.
//
// Source: the reasoning parsers of these names in SGLang and in vLLM.
// Bounded: holds back no more than a marker and kThinkingSpaceBytesMax; time is linear in the
// output.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

// The marks of a model's thinking. A model thinks at most once, at the beginning of its turn.
struct ThinkingFormat {
    enum class Begins : std::uint8_t {
        kByPrompt,  // begins inside if the prompt ends there, else at the opening marker
        kInside,    // begins inside, unless the prompt has ended the thinking
    };

    std::string open{};
    std::string close{};
    Begins begins = Begins::kByPrompt;
    // A call's marker, which may end thinking without `close` and belongs to the answer; or empty.
    std::string interrupted_by{};
    bool has_special_markers = false;  // the markers are special tokens
    bool is_harmony = false;           // thinking is a message, which harmony.h reads
};

// Reads --reasoning-parser: a name from the engines' flags, or two markers with a space between.
// Errors: kInvalidArgument, with the names.
[[nodiscard]] Result<ThinkingFormat> thinking_format_named(std::string_view name);
[[nodiscard]] std::string thinking_format_names();  // "deepseek-r1, deepseek-v3, ..."

// Finds the format in a model's chat template; nothing if the template has none that is known.
[[nodiscard]] std::optional<ThinkingFormat> thinking_format_in(std::string_view chat_template);

class ThinkingParser {
  public:
    enum class Start : std::uint8_t { kOutside, kInside };

    // A part of the output. The thinking was written before the answer.
    struct Part {
        std::string thinking{};
        std::string answer{};
    };

    ThinkingParser(ThinkingFormat format, Start start)
        : format_(std::move(format)),
          state_(start == Start::kInside ? State::kInsideStart : State::kStart) {}

    [[nodiscard]] Part append(std::string_view piece);
    [[nodiscard]] Part finish();
    // Whether all further output belongs to the answer.
    [[nodiscard]] bool is_in_answer() const { return state_ == State::kAnswer; }
    // The number of output bytes at the end that are in no part yet.
    [[nodiscard]] std::size_t num_held() const { return held_.size(); }
    // Whether the output was inside its thinking at any time.
    [[nodiscard]] bool has_thought() const { return has_thought_; }

  private:
    enum class State : std::uint8_t {
        kStart,        // only white space, or the beginning of the opening marker
        kInsideStart,  // the same, inside: the opening marker may be missing
        kInside,
        kAnswer,
    };

    void step_start(Part& part, bool is_end);
    void step_inside(Part& part, bool is_end);

    ThinkingFormat format_;
    State state_;
    std::string held_{};  // not reported yet
    bool has_thought_ = false;
};

// Returns where an output begins after a prompt whose last bytes are `tail`.
[[nodiscard]] ThinkingParser::Start start_after(
    const ThinkingFormat& format, std::string_view tail
);
// Returns where an output begins that continues `begun`, a turn without what the template adds.
[[nodiscard]] ThinkingParser::Start start_within(
    const ThinkingFormat& format, std::string_view begun
);
// Whether the prompt's end opens the thinking, so that a call after it must first close it.
[[nodiscard]] bool opens_thinking(const ThinkingFormat& format, std::string_view tail);

}  // namespace pitstop::http
