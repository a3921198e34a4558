#include "http_proc/generation/chat_answer.h"

#include "http_proc/format/versions.h"
#include "http_proc/generation/prompts.h"

#include <utility>

namespace pitstop::http {

ChatAnswer::ChatAnswer(Exchange& exchange, ChatCall given, std::string_view prefix)
    : call(std::move(given)) {
    const std::string caller = name_of_caller(exchange.request(), call.id);
    answer_id = std::string(prefix) + caller;
    model = call.model.empty() ? exchange.tree().hello().model : call.model;
    created = ServerContext::unix_time();
    names = {answer_id, caller};
    std::optional<ToolFormat> format;
    if (call.has_tools) format = exchange.server().options().tool_format;
    turn = AssistantTurn(
        format,
        call.takes_one_call ? AssistantTurn::Calls::kOne : AssistantTurn::Calls::kAny,
        call.forced_call && format ? call.forced_call->opening(*format) : std::string()
    );
    Prompt& only = prompts.emplace_back(Prompt{.request = std::move(call.request)});
    if (call.wants_token_ids) only.num_kept = 1;
    // Some models' markers of calls are special tokens.
    if (format) only.request.sampling.skip_special_tokens = false;
}

Task<Result<>> ChatAnswer::complete(Exchange& exchange, Prompt& prompt) {
    Result<std::vector<TokenId>> ids = co_await tokens_of_chat(exchange, call);
    if (!ids) co_return ids.error();
    call.chat = {};  // may be as large as the body
    if (call.wants_token_ids) prompt_ids = *ids;
    prompt.request.input_ids = *std::move(ids);
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
    write_version_members(json, spans);
    if (!call.wants_token_ids) return;
    json.key("prompt_token_ids").ids(prompt_ids);
    json.key("token_ids").ids(token_ids);
}

Task<Result<std::vector<TokenId>>> tokens_of_chat(Exchange& exchange, const ChatCall& call) {
    const std::optional<ToolFormat> format = exchange.server().options().tool_format;
    if (auto known = check_forced_call(call.forced_call, format); !known) co_return known.error();
    Result<messages::TokenizeReply> rendered = co_await ask(exchange, call.chat.question());
    if (!rendered) co_return rendered.error();
    if (call.forced_call) {
        Result<> appended =
            co_await append_text(exchange, call.forced_call->opening(*format), rendered->ids);
        if (!appended) co_return std::move(appended).error();
    }
    co_return std::move(rendered->ids);
}

int status_of_chat(ErrorCode code) {
    if (code == ErrorCode::kAlreadyExists || code == ErrorCode::kUnsupported) return 400;
    return status_of(code);
}

}  // namespace pitstop::http
