#include "http_proc/format/turn_grammar.h"

#include "http_proc/format/grammar_fields.h"
#include "http_proc/format/ordered_json.h"
#include "messages/structural_tag.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kBudgetMax = std::int64_t{1} << 30;  // more than any output has

// Returns the parameters' grammar as the format of a structural tag; null if they have no grammar,
// or one that cannot be converted.
OrderedJson own_format_of(const messages::SamplingParams& params) {
    if (!params.regex.empty()) return {{"type", "regex"}, {"pattern", params.regex}};
    if (!params.ebnf.empty()) return {{"type", "grammar"}, {"grammar", params.ebnf}};
    const bool is_schema = !params.json_schema.empty();
    Result<OrderedJson> given =
        parse_ordered_json(is_schema ? params.json_schema : params.structural_tag);
    if (!given) return nullptr;
    if (is_schema) return {{"type", "json_schema"}, {"json_schema", *std::move(given)}};
    const OrderedJson tag = messages::in_present_form(*std::move(given));
    if (!tag.is_object() || !tag.contains("format")) return nullptr;
    return tag.at("format").is_object() ? tag.at("format") : OrderedJson();
}

OrderedJson sequence_of(OrderedJson first, OrderedJson second) {
    return {
        {"type", "sequence"},
        {"elements", OrderedJson::array({std::move(first), std::move(second)})}};
}

OrderedJson any_text_without(const std::string& excluded) {
    OrderedJson text{{"type", "any_text"}};
    if (!excluded.empty()) text["excludes"] = OrderedJson::array({excluded});
    return text;
}

// Returns the grammar of the thinking: from its opening marker, or from inside the thinking.
OrderedJson thinking_of(const TurnGrammar& turn, bool may_be_interrupted) {
    const ThinkingFormat& format = *turn.thinking;
    const bool is_inside = turn.start == ThinkingParser::Start::kInside;
    OrderedJson content =
        any_text_without(may_be_interrupted ? std::string() : format.interrupted_by);
    if (turn.budget) content["max_tokens"] = std::min(*turn.budget, kBudgetMax);
    OrderedJson ends = OrderedJson::array({format.close});
    if (may_be_interrupted && !format.interrupted_by.empty()) ends.push_back(format.interrupted_by);
    return {
        {"type", "tag"},
        {"begin", is_inside ? "" : format.open},
        {"content", std::move(content)},
        {"end", std::move(ends)}};
}

// Returns the turn's grammar if thinking has a budget and the answer may be any text: each opening
// marker begins thinking.
OrderedJson with_budget(const TurnGrammar& turn) {
    OrderedJson thought =
        sequence_of(thinking_of(turn, /*may_be_interrupted=*/true), {{"type", "any_text"}});
    if (turn.start == ThinkingParser::Start::kInside) return thought;
    return {
        {"type", "or"},
        {"elements",
         OrderedJson::array({std::move(thought), any_text_without(turn.thinking->open)})}};
}

// Returns the turn's grammar if the answer must match `answer`.
OrderedJson with_answer(const TurnGrammar& turn, OrderedJson answer) {
    OrderedJson thinking = thinking_of(turn, /*may_be_interrupted=*/false);
    // JSON may begin with the line ends that models write after their thinking.
    const auto type = answer.find("type");
    if (type != answer.end() && *type == "json_schema")
        thinking = sequence_of(std::move(thinking), {{"type", "regex"}, {"pattern", "\\n{0,2}"}});
    if (turn.start != ThinkingParser::Start::kInside)
        thinking = {{"type", "optional"}, {"content", std::move(thinking)}};
    return sequence_of(std::move(thinking), std::move(answer));
}

}  // namespace

Result<> set_turn_grammar(const TurnGrammar& turn, messages::SamplingParams& params) {
    const bool is_inside = turn.start == ThinkingParser::Start::kInside;
    const bool thinks = turn.thinking && (is_inside || !turn.has_ended_thinking);
    if (has_grammar(params) && !turn.calls.empty()) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "calls of tools are held to schemas (tool_choice, strict), and the request has another "
            "grammar: only one can be followed"
        );
    }
    OrderedJson answer =
        turn.calls.empty() ? own_format_of(params) : OrderedJson::parse(turn.calls);
    const bool has_budget = thinks && turn.budget;
    if (answer.is_null() && !has_budget) return Ok{};
    if (answer.is_null() && has_grammar(params)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "thinking_token_budget needs a JSON grammar, or a structural tag with a format; this "
            "grammar is neither"
        );
    }
    if (thinks && is_inside && turn.thinking->has_special_markers) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a grammar cannot begin inside the model's thinking: this prompt ends before '{}', a "
            "special token; end the prompt after it, or send no grammar",
            turn.thinking->close
        );
    }
    const bool can_follow = thinks && !turn.thinking->has_special_markers;
    OrderedJson format;
    if (answer.is_null()) {
        format = with_budget(turn);
    } else if (can_follow && (has_budget || turn.calls.empty())) {
        format = with_answer(turn, std::move(answer));
    } else if (!turn.calls.empty()) {
        format = std::move(answer);  // accepts thinking without a budget as text before the calls
    } else {
        return Ok{};
    }
    const OrderedJson tag{{"type", "structural_tag"}, {"format", std::move(format)}};
    for (std::string* text : {&params.json_schema, &params.regex, &params.ebnf}) text->clear();
    params.structural_tag =
        tag.dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
    return Ok{};
}

}  // namespace pitstop::http
