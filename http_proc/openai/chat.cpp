// Serves OpenAI's /v1/chat/completions, with the extras of SGLang and vLLM. The model's chat
// template makes the prompt from the messages (tokenizer_proc/chat_template.h). Tool calls and
// thinking are parsed from the output if --tool-call-parser and --reasoning-parser name their
// formats.
#include "http_proc/format/grammar_fields.h"
#include "http_proc/format/turn_pieces.h"
#include "http_proc/format/versions.h"
#include "http_proc/generation/assistant_turn.h"
#include "http_proc/generation/request_checks.h"
#include "http_proc/generation/turn_prompt.h"
#include "http_proc/openai/answer.h"
#include "http_proc/openai/chat_request.h"
#include "http_proc/openai/chat_turn.h"
#include "http_proc/openai/routes.h"
#include "http_proc/server/errors.h"
#include "messages/chunks.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

constexpr std::string_view kWhole = "chat.completion";
constexpr std::string_view kChunk = "chat.completion.chunk";

struct ChatChoice {
    std::vector<messages::Span> spans{};
    Usage usage{};
    bool has_begun = false;  // the first delta, which has the role, was sent
    AssistantTurn turn{};
    std::int64_t num_calls = 0;  // calls begun so far
};

struct Chat : OpenAiAnswer {
    static constexpr Dialect kDialect = Dialect::kOpenAi;

    ChatPrompt chat{};
    bool has_logprobs = false;
    bool wants_prompt_text = false;
    std::string prompt_text{};
    std::vector<TokenId> prompt_ids{};
    std::optional<ForcedCall> forced_call{};
    bool takes_one_call = false;  // drop the output after the first call
    bool shows_thinking = false;  // thinking is separated and shown
    AssistantTurn::Args turn{};   // for every choice
    std::vector<ChatChoice> choices{};

    Chat(Exchange& exchange, OpenAiChat call, AssistantTurn::Args turn);

    static Result<Chat> parse(Exchange& exchange) {
        RETURN_IF_ERROR(check_is_json(exchange.request()));
        ASSIGN_OR_RETURN(OpenAiChat call, parse_openai_chat(exchange.request().body));
        RETURN_IF_ERROR(read_adapter_of(exchange, call.options.model, call.options.adapter));
        RETURN_IF_ERROR(finish_routes(exchange, call.options.n, call.options));
        ASSIGN_OR_RETURN(AssistantTurn::Args turn, turn_of_chat(exchange.server().formats(), call));
        return Chat(exchange, std::move(call), std::move(turn));
    }
    // A chat for a model that has no chat template is the caller's mistake, too.
    static Response refusal(const Error& error) {
        if (error.code != ErrorCode::kUnsupported) return openai_refusal(error);
        return error_response(kDialect, 400, error.message);
    }
    // Counting the tokens of thinking needs their texts.
    [[nodiscard]] bool wants_texts() const {
        return OpenAiAnswer::wants_texts() || turn.thinking_format;
    }
    Task<Result<>> complete(Exchange& exchange, Prompt& prompt);
    void add_sample(std::size_t /*prompt*/, const messages::Generate& /*request*/) {
        add_routes();
        choices.emplace_back().turn = AssistantTurn(turn);
    }
    bool handle_event(Generation::Event& event) {
        choices[event.index].usage.add(event.chunk);
        take_routes(event.index, event.chunk);
        return true;
    }
    void write_events(EventStream& stream, Generation::Event event);
    void write_end(EventStream& stream) const { write_usage_event(stream, kChunk, usage()); }
    void write_whole(JsonWriter& json, std::vector<messages::OutputChunk>& outputs);

    void write_logprobs(JsonWriter& json, const messages::OutputChunk& chunk) const;
    void write_message(JsonWriter& json, ChatChoice& choice, const TurnPieces& pieces) const;
    void write_delta(JsonWriter& json, ChatChoice& choice, const TurnPieces& pieces) const;
    void write_thinking(JsonWriter& json, std::string_view thinking) const;
    void write_rest_of_choice(JsonWriter& json, std::size_t index, messages::OutputChunk& chunk);
    void write_prompt(JsonWriter& json, const messages::PromptLogprobs* shown) const;
    void begin_choice(JsonWriter& json, std::size_t index) const;
    void write_first_event(JsonWriter& json, std::size_t index, const messages::OutputChunk& chunk)
        const;
    void write_event(JsonWriter& json, std::size_t index, messages::OutputChunk& chunk);
    // Counts a prompt's tokens once, however many samples it has.
    Usage usage() const;
};

Chat::Chat(Exchange& exchange, OpenAiChat call, AssistantTurn::Args turn_args)
    : OpenAiAnswer(exchange, std::move(call.options), "chatcmpl-"),
      chat(std::move(call.chat)),
      has_logprobs(call.has_logprobs),
      wants_prompt_text(call.wants_prompt_text),
      forced_call(std::move(call.forced_call)),
      takes_one_call(call.takes_one_call),
      turn(std::move(turn_args)) {
    logprobs = shown_logprobs(
        options, has_logprobs, call.top_logprobs, exchange.tree().hello().vocab_size
    );
    logprobs.asked.ids = options.logprob_ids;
    shows_thinking = turn.thinking_format && call.thinking.is_included;
    Prompt& only = prompts.emplace_back(prompt());
    only.num_kept = 1;
    only.request.input_ids = std::move(call.input_ids);
    if (turn.reads_special_tokens()) only.request.sampling.skip_special_tokens = false;
}

Task<Result<>> Chat::complete(Exchange& exchange, Prompt& prompt) {
    Result<TurnPrompt> made =
        co_await prompt_of_turn(exchange, chat, forced_call, std::move(prompt.request.input_ids));
    if (!made) co_return made.error();
    turn.opening = std::move(made->opening);
    turn.start = made->start;
    const Result<> held = hold_turn(turn, made->has_ended_thinking, prompt.request.sampling);
    if (!held) co_return held.error();
    is_held = has_grammar(prompt.request.sampling);
    turn.texts = texts;
    if (wants_prompt_text) prompt_text = std::move(made->text);
    prompt_ids = made->ids;
    prompt.request.input_ids = std::move(made->ids);
    co_return Ok{};
}

void Chat::write_logprobs(JsonWriter& json, const messages::OutputChunk& chunk) const {
    json.key("logprobs");
    if (!has_logprobs) {
        json.null();
        return;
    }
    json.begin_object().key("content").begin_array();
    write_logprob_entries(json, chunk, logprobs, token_names());
    json.end_array().end_object();
    write_logprobs_mode(json, options, is_held);
}

// Writes the thinking under SGLang's and vLLM's names; null if there is no thinking.
void Chat::write_thinking(JsonWriter& json, std::string_view thinking) const {
    for (const std::string_view name : {"reasoning_content", "reasoning"}) {
        json.key(name);
        thinking.empty() ? json.null() : json.string(thinking);
    }
}

// Writes the members of a message. The member content is always present, even if null.
void Chat::write_message(JsonWriter& json, ChatChoice& choice, const TurnPieces& pieces) const {
    std::string text;
    std::string thinking;
    std::vector<ToolCall> calls;
    for (TurnItem& item : whole_items(pieces)) {
        switch (item.kind) {
            case TurnItem::Kind::kText:
                text += item.text;
                break;
            case TurnItem::Kind::kThinking:
                thinking += item.text;
                break;
            case TurnItem::Kind::kCall:
                calls.push_back(std::move(item.call));
        }
    }
    json.key("content");
    text.empty() && !calls.empty() ? json.null() : json.string(text);
    if (shows_thinking) write_thinking(json, thinking);
    if (calls.empty()) return;
    json.key("tool_calls").begin_array();
    for (const ToolCall& call : calls) {
        json.begin_object().key("index").integer(choice.num_calls++);
        json.key("id").string(choice.turn.call_id("call_", call.id));
        json.key("type").string("function");
        json.key("function").begin_object().key("name").string(call.name);
        json.key("arguments").string(call.arguments).end_object().end_object();
    }
    json.end_array();
}

// Writes the members of a delta. The first entry of a call has its id, its name, and the arguments
// so far; later deltas have more arguments.
void Chat::write_delta(JsonWriter& json, ChatChoice& choice, const TurnPieces& pieces) const {
    using Kind = TurnPiece::Kind;
    std::string text;
    std::string thinking;
    JsonWriter calls;
    const TurnPiece* begun = nullptr;  // a call of this delta whose entry is not written yet
    std::string arguments;
    const auto end_entry = [&] {
        if (begun == nullptr && arguments.empty()) return;
        calls.begin_object().key("index");
        if (begun != nullptr) {
            calls.integer(choice.num_calls++);
            calls.key("id").string(choice.turn.call_id("call_", begun->id));
            calls.key("type").string("function");
        } else {
            calls.integer(choice.num_calls - 1);
        }
        calls.key("function").begin_object();
        if (begun != nullptr) calls.key("name").string(begun->text);
        calls.key("arguments").string(arguments).end_object().end_object();
        begun = nullptr;
        arguments.clear();
    };
    for (const TurnPiece& piece : pieces.list()) {
        switch (piece.kind) {
            case Kind::kText:
                text += piece.text;
                break;
            case Kind::kThinking:
                thinking += piece.text;
                break;
            case Kind::kCall:
                begun = &piece;
                break;
            case Kind::kArguments:
                arguments += piece.text;
                break;
            case Kind::kCallEnd:
            case Kind::kCallBroken:
                end_entry();
        }
    }
    end_entry();
    if (!thinking.empty()) write_thinking(json, thinking);
    const bool has_more = !thinking.empty() || !calls.text().empty();
    if (!text.empty() || !has_more) json.key("content").string(text);
    if (!calls.text().empty()) json.key("tool_calls").raw("[" + calls.text() + "]");
}

// Writes the members of a choice that follow its message or delta.
void Chat::write_rest_of_choice(JsonWriter& json, std::size_t index, messages::OutputChunk& chunk) {
    ChatChoice& choice = choices[index];
    write_logprobs(json, chunk);
    const bool has_calls = choice.turn.has_calls();
    // Hides a finish by length if only one call was wanted and that call is complete.
    if (chunk.finish && takes_one_call && has_calls &&
        chunk.finish->reason == messages::FinishReason::kLength)
        chunk.finish->reason = messages::FinishReason::kStop;
    write_finish(
        json, chunk.finish ? &*chunk.finish : nullptr, eos_ids, has_calls ? "tool_calls" : "stop"
    );
    if (chunk.finish) write_budget(json, choice.turn);
    if (options.wants_token_ids) json.key("token_ids").ids(chunk.tokens);
    append_spans(choice.spans, std::move(chunk.spans));
    if (chunk.finish) {
        json.key("weight_versions");
        write_weight_versions(json, choice.spans);
    }
    write_choice_routes(json, index, chunk.finish.has_value());
    json.end_object();
}

void Chat::write_prompt(JsonWriter& json, const messages::PromptLogprobs* shown) const {
    if (options.wants_prompt_ids) json.key("prompt_token_ids").ids(prompt_ids);
    if (wants_prompt_text) json.key("prompt_text").string(prompt_text);
    if (!options.prompt_logprobs) return;
    json.key("prompt_logprobs");
    const messages::PromptLogprobs none;
    write_prompt_logprobs(
        json, shown != nullptr ? *shown : none, prompt_ids, logprobs, token_names()
    );
}

Usage Chat::usage() const {
    Usage sum = choices.front().usage;
    for (std::size_t i = 1; i < choices.size(); ++i) {
        sum.completion_tokens += choices[i].usage.completion_tokens;
        if (const auto more = choices[i].usage.thinking_tokens)
            sum.thinking_tokens = sum.thinking_tokens.value_or(0) + *more;
    }
    return sum;
}

void Chat::write_whole(JsonWriter& json, std::vector<messages::OutputChunk>& outputs) {
    write_head(json, kWhole);
    json.key("choices").begin_array();
    const std::optional<messages::PromptLogprobs> shown = outputs.front().prompt;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        ChatChoice& choice = choices[i];
        json.begin_object().key("index").integer(static_cast<std::int64_t>(i));
        json.key("message").begin_object().key("role").string("assistant");
        write_message(json, choice, choice.turn.append(outputs[i]));
        if (turn.thinking_format) choice.usage.thinking_tokens = choice.turn.num_thinking_tokens();
        json.key("refusal").null().end_object();
        write_rest_of_choice(json, i, outputs[i]);
    }
    json.end_array().key("usage");
    write_usage(json, usage());
    write_prompt(json, shown ? &*shown : nullptr);
    write_versions(json, choices.front().spans);
    write_sglext(json, 0, /*is_last=*/true);
    json.end_object();
}

void Chat::begin_choice(JsonWriter& json, std::size_t index) const {
    write_head(json, kChunk);
    json.key("choices").begin_array();
    json.begin_object().key("index").integer(static_cast<std::int64_t>(index));
    json.key("delta").begin_object();
}

// Writes the first event of a choice, which has its role. The first event of the first choice also
// has the prompt; `chunk` has the prompt's logprobs.
void Chat::write_first_event(
    JsonWriter& json, std::size_t index, const messages::OutputChunk& chunk
) const {
    begin_choice(json, index);
    json.key("role").string("assistant").key("content").string("").end_object();
    json.key("logprobs").null().key("finish_reason").null().end_object().end_array();
    if (index == 0) write_prompt(json, chunk.prompt ? &*chunk.prompt : nullptr);
    write_event_usage(json, options, choices[index].usage);
    json.end_object();
}

void Chat::write_event(JsonWriter& json, std::size_t index, messages::OutputChunk& chunk) {
    ChatChoice& choice = choices[index];
    begin_choice(json, index);
    write_delta(json, choice, choice.turn.append(chunk));
    if (turn.thinking_format) choice.usage.thinking_tokens = choice.turn.num_thinking_tokens();
    json.end_object();
    const bool is_last = chunk.finish.has_value();
    write_rest_of_choice(json, index, chunk);
    json.end_array();
    write_event_usage(json, options, choice.usage);
    if (is_last && index == 0) write_versions(json, choice.spans);
    write_sglext(json, index, is_last);
    json.end_object();
}

void Chat::write_events(EventStream& stream, Generation::Event event) {
    if (!std::exchange(choices[event.index].has_begun, true)) {
        write_first_event(stream.begin_event(), event.index, event.chunk);
        stream.end_event();
    }
    write_event(stream.begin_event(), event.index, event.chunk);
    stream.end_event();
}

}  // namespace

void add_openai_chat(Router& router) {
    router.add(Dialect::kOpenAi, Access::kData, {{"POST", "/v1/chat/completions", serve<Chat>}});
}

}  // namespace pitstop::http
