// Separates a model's thinking from its answer as the output arrives.
//
//   ThinkingParser parser(format, ThinkingParser::Start::kOutside);
//   for (each piece of output) use(parser.append(piece));
//   use(parser.finish());
//
// Only the markers are left out: thinking and answer keep their white space. Text that may become a
// marker is withheld until more text decides.
//
// Source: the reasoning parsers of the same names in SGLang and vLLM.
// Bounded: withholds at most a marker and kThinkingSpaceBytesMax; time is linear in the
// output.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

// The markers of a model's thinking. A model thinks at most once, at the beginning of its turn.
struct ThinkingFormat {
    enum class Begins : std::uint8_t {
        kByPrompt,  // inside if the prompt ends with `open`, else at `open` in the output
        kInside,    // inside, unless the prompt has ended the thinking
    };

    std::string open{};
    std::string close{};
    Begins begins = Begins::kByPrompt;
    // The marker of a call that may end thinking without `close`, and belongs to the answer; or "".
    std::string interrupted_by{};
    bool has_special_markers = false;  // the markers are special tokens
    bool is_harmony = false;           // the thinking is a message; harmony.h reads it
};

// Reads --reasoning-parser: a name from the engines' flags, or two markers with a space between
// them. Errors: kInvalidArgument; the text lists the names.
[[nodiscard]] Result<ThinkingFormat> thinking_format_named(std::string_view name);
[[nodiscard]] std::string thinking_format_names();  // "deepseek-r1, deepseek-v3, ..."

// Finds the format in a model's chat template; nothing if the template has no known format.
[[nodiscard]] std::optional<ThinkingFormat> thinking_format_in(std::string_view chat_template);

class ThinkingParser {
  public:
    enum class Start : std::uint8_t { kOutside, kInside };

    // A part of the output. Its thinking precedes its answer.
    struct Part {
        std::string thinking{};
        std::string answer{};
    };

    ThinkingParser(ThinkingFormat format, Start start)
        : format_(std::move(format)),
          state_(start == Start::kInside ? State::kInsideStart : State::kStart) {}

    [[nodiscard]] Part append(std::string_view piece);
    [[nodiscard]] Part finish();
    // Returns whether all further output belongs to the answer.
    [[nodiscard]] bool is_in_answer() const { return state_ == State::kAnswer; }
    // Returns how many bytes at the output's end are in no part yet.
    [[nodiscard]] std::size_t num_held() const { return held_.size(); }
    // Returns whether the output has been inside its thinking.
    [[nodiscard]] bool has_thought() const { return has_thought_; }

  private:
    enum class State : std::uint8_t {
        kStart,        // only white space so far, or the start of the opening marker
        kInsideStart,  // as kStart, but inside: the opening marker may be missing
        kInside,
        kAnswer,
    };

    void step_start(Part& part, bool is_end);
    void step_inside(Part& part, bool is_end);

    ThinkingFormat format_;
    State state_;
    std::string held_{};  // bytes that are in no part yet
    bool has_thought_ = false;
};

// Returns whether an output begins inside its thinking, after a prompt that ends with `tail`.
[[nodiscard]] ThinkingParser::Start start_after(
    const ThinkingFormat& format, std::string_view tail
);
// The same for an output that continues `begun`, a turn without the template's additions.
[[nodiscard]] ThinkingParser::Start start_within(
    const ThinkingFormat& format, std::string_view begun
);
// Returns whether the prompt's end opens the thinking, which a forced call must then close.
[[nodiscard]] bool opens_thinking(const ThinkingFormat& format, std::string_view tail);

}  // namespace pitstop::http
