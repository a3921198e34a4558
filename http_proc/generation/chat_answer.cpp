#include "http_proc/generation/chat_answer.h"

#include "http_proc/format/versions.h"
#include "http_proc/generation/turn_prompt.h"

#include <utility>

namespace pitstop::http {

ChatAnswer::ChatAnswer(Exchange& exchange, ChatCall given, std::string_view prefix)
    : call(std::move(given)) {
    const std::string caller = name_of_caller(exchange.request(), call.id);
    answer_id = std::string(prefix) + caller;
    model = call.model.empty() ? exchange.tree().hello().model : call.model;
    created = ServerContext::unix_time();
    names = {answer_id, caller};
    turn_args = http::turn_args(
        exchange.server().formats(),
        call.has_tools,
        call.takes_one_call,
        call.schemas,
        call.thinking
    );
    Prompt& only = prompts.emplace_back(Prompt{.request = std::move(call.request)});
    if (call.wants_token_ids) only.num_kept = 1;
    if (turn_args.reads_special_tokens()) only.request.sampling.skip_special_tokens = false;
}

Result<> ChatAnswer::hold_calls(Exchange& exchange) {
    const std::optional<ToolFormat>& format = exchange.server().formats().calls;
    RETURN_IF_ERROR(check_forced_call(call.forced_call, format));
    ASSIGN_OR_RETURN(
        turn_args.held_calls,
        call_grammar(format, call.tools, call.forced_call, call.takes_one_call)
    );
    return Ok{};
}

Task<Result<>> ChatAnswer::complete(Exchange& exchange, Prompt& prompt) {
    Result<TurnPrompt> made = co_await prompt_of_turn(exchange, call.chat, call.forced_call);
    if (!made) co_return made.error();
    call.chat = {};  // frees the chat, which may be as large as the body
    turn_args.opening = std::move(made->opening);
    turn_args.start = made->start;
    const Result<> held = hold_turn(turn_args, made->has_ended_thinking, prompt.request.sampling);
    if (!held) co_return held.error();
    turn_args.texts = texts;
    turn = AssistantTurn(turn_args);
    if (call.wants_token_ids) prompt_ids = made->ids;
    prompt.request.input_ids = std::move(made->ids);
    co_return Ok{};
}

bool ChatAnswer::handle_event(const Generation::Event& event) {
    usage.add(event.chunk);
    append_spans(spans, event.chunk.spans);
    if (call.wants_token_ids) {
        const std::vector<TokenId>& next = event.chunk.tokens;
        token_ids.insert(token_ids.end(), next.begin(), next.end());
    }
    return true;
}

void ChatAnswer::write_own_members(JsonWriter& json) const {
    write_budget(json, turn);
    write_version_members(json, spans);
    if (!call.wants_token_ids) return;
    json.key("prompt_token_ids").ids(prompt_ids);
    json.key("token_ids").ids(token_ids);
}

int status_of_chat(ErrorCode code) {
    if (code == ErrorCode::kAlreadyExists || code == ErrorCode::kUnsupported) return 400;
    return status_of(code);
}

}  // namespace pitstop::http
