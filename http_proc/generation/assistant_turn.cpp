#include "http_proc/generation/assistant_turn.h"

#include "http_proc/format/turn_grammar.h"
#include "http_proc/server/tree.h"

#include <cstddef>
#include <utility>

namespace pitstop::http {

AssistantTurn::AssistantTurn(Args args) : args_(std::move(args)) {
    if (args_.is_harmony()) {
        const bool thinks = args_.thinking_format && args_.thinking_format->is_harmony;
        const bool calls = args_.calls_format == ToolFormat::kHarmony;
        harmony_.emplace(HarmonyParser::Reads{.thinking = thinks, .calls = calls}, args_.start);
        if (thinks && args_.texts != nullptr) harmony_count_.emplace(args_.start, args_.texts);
        return;
    }
    if (args_.calls_format) calls_.emplace(*args_.calls_format, args_.schemas);
    if (!args_.thinking_format || !args_.opening.empty()) return;
    thinking_.emplace(*args_.thinking_format, args_.start);
    if (args_.texts != nullptr) count_.emplace(*args_.thinking_format, args_.start, args_.texts);
}

TurnPieces AssistantTurn::append(messages::OutputChunk& chunk) {
    TurnPieces pieces;
    if (count_) count_->add(chunk.tokens);
    if (harmony_count_) harmony_count_->add(chunk.tokens);
    if (is_over_) return pieces;
    const bool is_end = chunk.finish.has_value();
    if (!chunk.text.empty()) chunk.text.insert(0, std::exchange(args_.opening, {}));
    if (harmony_) {
        pieces = append_harmony(chunk.text, is_end);
    } else if (!thinking_) {
        add_answer(chunk.text, is_end, pieces);
    } else {
        ThinkingParser::Part part = thinking_->append(chunk.text);
        if (is_end) {
            const ThinkingParser::Part last = thinking_->finish();
            part.thinking += last.thinking;
            part.answer += last.answer;
        }
        add_thinking(part.thinking, pieces);
        if (thinking_->is_in_answer() || is_end) end_thinking(pieces);
        add_answer(part.answer, is_end, pieces);
    }
    drop_after_first_call(pieces);
    return pieces;
}

TurnPieces AssistantTurn::append_harmony(std::string_view text, bool is_end) {
    TurnPieces read = harmony_->append(text);
    if (is_end) read.append(harmony_->finish());
    TurnPieces pieces;
    for (const TurnPiece& piece : read.list()) {
        if (piece.kind == TurnPiece::Kind::kThinking) {
            add_thinking(piece.text, pieces);
        } else {
            end_thinking(pieces);
            pieces.add(piece);
        }
    }
    if (is_end) end_thinking(pieces);
    return pieces;
}

// Adds the thinking that was withheld to be shown in one piece.
void AssistantTurn::end_thinking(TurnPieces& pieces) {
    pieces.add_thinking(std::exchange(held_thinking_, {}));
}

void AssistantTurn::add_thinking(std::string_view text, TurnPieces& pieces) {
    switch (args_.thinking) {
        case Thinking::kInPieces:
            pieces.add_thinking(text);
            break;
        case Thinking::kWhole:
            held_thinking_ += text;
            break;
        case Thinking::kHidden:
            break;
    }
}

void AssistantTurn::add_answer(std::string_view text, bool is_end, TurnPieces& pieces) {
    if (!calls_) return pieces.add_text(text);
    pieces.append(calls_->append(text));
    if (is_end) pieces.append(calls_->finish());
}

void AssistantTurn::drop_after_first_call(TurnPieces& pieces) {
    for (std::size_t i = 0; i < pieces.list().size(); ++i) {
        if (pieces.list()[i].kind != TurnPiece::Kind::kCallEnd) continue;
        has_calls_ = true;
        if (args_.calls != Calls::kOne) return;
        is_over_ = true;
        return pieces.resize(i + 1);
    }
}

std::string AssistantTurn::call_id(std::string_view prefix, std::string_view given) const {
    if (!given.empty()) return std::string(given);
    if (args_.calls_format && row_of(*args_.calls_format).has_short_ids)
        return Tree::random_id().substr(0, 9);
    return std::string(prefix) + Tree::random_id().substr(0, 24);
}

AssistantTurn::Args turn_args(
    const OutputFormats& formats,
    bool has_tools,
    bool takes_one_call,
    std::shared_ptr<const ToolSchemas> schemas,
    const ThinkingFields& thinking
) {
    using Thinking = AssistantTurn::Thinking;
    AssistantTurn::Args args;
    if (has_tools) args.calls_format = formats.calls;
    args.schemas = std::move(schemas);
    if (takes_one_call) args.calls = AssistantTurn::Calls::kOne;
    if (!thinking.is_separate) return args;
    args.thinking_format = formats.thinking;
    args.thinking_budget = thinking.budget;
    if (!thinking.is_included) {
        args.thinking = Thinking::kHidden;
    } else if (!thinking.is_streamed) {
        args.thinking = Thinking::kWhole;
    }
    return args;
}

void write_budget(JsonWriter& json, const AssistantTurn& turn) {
    if (const std::optional<bool> is_used = turn.is_budget_used())
        json.key("thinking_budget_used").boolean(*is_used);
}

Result<> hold_turn(
    const AssistantTurn::Args& turn, bool has_ended_thinking, messages::SamplingParams& params
) {
    TurnGrammar grammar{
        .start = turn.start,
        .has_ended_thinking = has_ended_thinking,
        .budget = turn.thinking_budget,
        .calls = turn.held_calls,
    };
    if (turn.opening.empty()) grammar.thinking = turn.thinking_format;
    return set_turn_grammar(grammar, params);
}

}  // namespace pitstop::http
