// Follows the assistant's turn in one answer: separates text, thinking and tool calls, if the
// request asks for that.
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
        kWhole,   // in one piece, when it has ended
        kHidden,  // left out of the answer, but counted
    };

    struct Args {
        std::optional<ToolFormat> calls_format{};      // null: calls are text
        std::shared_ptr<const ToolSchemas> schemas{};  // the tools' schemas; null: unknown
        Calls calls = Calls::kAny;
        // The beginning of the turn that the prompt already has. The first output repeats it. No
        // thinking follows it.
        std::string opening{};
        std::optional<ThinkingFormat> thinking_format{};  // null: thinking is text
        ThinkingParser::Start start = ThinkingParser::Start::kOutside;
        Thinking thinking = Thinking::kInPieces;
        std::optional<std::int64_t> thinking_budget{};  // ThinkingFields::budget
        std::string held_calls{};  // the grammar its calls must match (call_grammar.h), or ""
        const TokenTexts* texts = nullptr;  // to count tokens of thinking; null: no count

        // Returns whether a marker may be a special token, which the output's text must then keep.
        [[nodiscard]] bool reads_special_tokens() const {
            return calls_format || (thinking_format && thinking_format->has_special_markers);
        }
        // Returns whether the output is a list of messages, which HarmonyParser alone parses.
        [[nodiscard]] bool is_harmony() const {
            return calls_format == ToolFormat::kHarmony ||
                   (thinking_format && thinking_format->is_harmony);
        }
    };

    AssistantTurn() = default;
    explicit AssistantTurn(Args args);

    // Adds a chunk's text, and returns the pieces that are final so far.
    [[nodiscard]] TurnPieces append(messages::OutputChunk& chunk);
    // Returns whether the turn has had a complete call.
    [[nodiscard]] bool has_calls() const { return has_calls_; }
    // Returns the number of tokens of thinking so far, markers included.
    [[nodiscard]] std::int64_t num_thinking_tokens() const {
        if (harmony_count_) return harmony_count_->num_tokens();
        return count_ ? count_->num_tokens() : 0;
    }
    // Returns whether the thinking used up its budget, so that its end was forced; null: no budget.
    [[nodiscard]] std::optional<bool> is_budget_used() const {
        if (!args_.thinking_budget) return std::nullopt;
        return count_ && count_->num_between() >= *args_.thinking_budget;
    }

    // Returns the id that the model gave the call, or makes one: nine letters and digits if the
    // model's template accepts only such ids, otherwise `prefix` and 24 digits.
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

// Restricts the output to the turn's grammar: the thinking to its budget, then the answer to the
// request's grammar. `has_ended_thinking`: as in TurnPrompt. Errors: those of
// set_turn_grammar().
[[nodiscard]] Result<> hold_turn(
    const AssistantTurn::Args& turn, bool has_ended_thinking, messages::SamplingParams& params
);

// Writes whether the thinking has used up its budget, if it has one.
void write_budget(JsonWriter& json, const AssistantTurn& turn);

// Returns how to parse the turns of a request, before its prompt is known.
[[nodiscard]] AssistantTurn::Args turn_args(
    const OutputFormats& formats,
    bool has_tools,
    bool takes_one_call,
    std::shared_ptr<const ToolSchemas> schemas,
    const ThinkingFields& thinking
);

}  // namespace pitstop::http
