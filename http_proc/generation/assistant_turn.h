// Follows the assistant's turn in one answer: its text, its thinking, and its tool calls, as far as
// these are looked for.
#pragma once

#include "base/result.h"
#include "http_proc/format/harmony.h"
#include "http_proc/format/json_writer.h"
#include "http_proc/format/thinking.h"
#include "http_proc/format/thinking_fields.h"
#include "http_proc/format/tool_calls.h"
#include "http_proc/format/turn_pieces.h"
#include "http_proc/generation/harmony_count.h"
#include "http_proc/generation/thinking_count.h"
#include "http_proc/server/server_context.h"
#include "http_proc/server/token_texts.h"
#include "messages/generation.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop::http {

class AssistantTurn {
  public:
    enum class Calls : std::uint8_t {
        kAny,
        kOne,  // the output after the first whole call is dropped
    };
    enum class Thinking : std::uint8_t {
        kInPieces,
        kWhole,   // in one piece, after its end
        kHidden,  // left out, but counted
    };

    struct Args {
        std::optional<ToolFormat> calls_format{};      // null: calls are text
        std::shared_ptr<const ToolSchemas> schemas{};  // of the tools; null: none is known
        Calls calls = Calls::kAny;
        // Begins the turn. The prompt already ends with it, and the first output includes it. No
        // thinking follows.
        std::string opening{};
        std::optional<ThinkingFormat> thinking_format{};  // null: thinking is text
        ThinkingParser::Start start = ThinkingParser::Start::kOutside;
        Thinking thinking = Thinking::kInPieces;
        std::optional<std::int64_t> thinking_budget{};  // ThinkingFields::budget
        std::string held_calls{};  // what its calls must match (call_grammar.h); empty: nothing
        const TokenTexts* texts = nullptr;  // to count the tokens of thinking; null: none counted

        // Whether a marker may be a special token, which the output must then keep.
        [[nodiscard]] bool reads_special_tokens() const {
            return calls_format || (thinking_format && thinking_format->has_special_markers);
        }
        // Whether the output is a list of messages: then only harmony is parsed.
        [[nodiscard]] bool is_harmony() const {
            return calls_format == ToolFormat::kHarmony ||
                   (thinking_format && thinking_format->is_harmony);
        }
    };

    AssistantTurn() = default;
    explicit AssistantTurn(Args args);

    // Adds a chunk's text, and returns the pieces that are decided so far.
    [[nodiscard]] TurnPieces append(messages::OutputChunk& chunk);
    // Whether the turn had a whole call.
    [[nodiscard]] bool has_calls() const { return has_calls_; }
    // The tokens of thinking so far, with its markers.
    [[nodiscard]] std::int64_t num_thinking_tokens() const {
        if (harmony_count_) return harmony_count_->num_tokens();
        return count_ ? count_->num_tokens() : 0;
    }
    // Whether the thinking has used up its budget, so that its end was forced; null: it has none.
    [[nodiscard]] std::optional<bool> is_budget_used() const {
        if (!args_.thinking_budget) return std::nullopt;
        return count_ && count_->num_between() >= *args_.thinking_budget;
    }

    // Returns the id that the model gave the call; else makes one: nine letters and digits if the
    // model's template accepts no other, else `prefix` and 24 digits.
    [[nodiscard]] std::string call_id(std::string_view prefix, std::string_view given) const;

  private:
    TurnPieces append_harmony(std::string_view text, bool is_end);
    void add_thinking(std::string_view text, TurnPieces& pieces);
    void end_thinking(TurnPieces& pieces);
    void add_answer(std::string_view text, bool is_end, TurnPieces& pieces);
    void drop_after_first_call(TurnPieces& pieces);

    Args args_{};
    std::optional<ToolCallParser> calls_{};
    std::optional<ThinkingParser> thinking_{};
    std::optional<ThinkingCount> count_{};
    std::optional<HarmonyParser> harmony_{};  // if set, the only parser
    std::optional<HarmonyCount> harmony_count_{};
    std::string held_thinking_{};  // for Thinking::kWhole
    bool has_calls_ = false;
    bool is_over_ = false;
};

// Holds the output to what the turn must match: the request's grammar after its thinking, and the
// thinking to its budget. `has_ended_thinking`: as TurnPrompt has it.
// Errors: those of set_turn_grammar().
[[nodiscard]] Result<> hold_turn(
    const AssistantTurn::Args& turn, bool has_ended_thinking, messages::SamplingParams& params
);

// Writes whether the thinking has used up its budget, if it has one.
void write_budget(JsonWriter& json, const AssistantTurn& turn);

// Returns what is looked for in the turns of a request, before its prompt is known.
[[nodiscard]] AssistantTurn::Args turn_args(
    const OutputFormats& formats,
    bool has_tools,
    bool takes_one_call,
    std::shared_ptr<const ToolSchemas> schemas,
    const ThinkingFields& thinking
);

}  // namespace pitstop::http
