#include "http_proc/generation/prompts.h"

#include <optional>
#include <utility>

namespace pitstop {

Task<Result<>> tokenize_prompt(Exchange& exchange, Generate& prompt) {
    if (!prompt.text) co_return Ok{};
    Tokenize question;
    question.text = std::exchange(prompt.text, std::nullopt);
    Result<TokenizeReply> reply = co_await ask(exchange, std::move(question));
    if (!reply) co_return std::move(reply).error();
    prompt.input_ids = std::move(reply->ids);
    co_return Ok{};
}

Task<Result<std::string>> text_of(Exchange& exchange, std::vector<TokenId> ids) {
    Tokenize question;
    question.ids = std::move(ids);
    Result<TokenizeReply> reply = co_await ask(exchange, std::move(question));
    if (!reply) co_return std::move(reply).error();
    co_return std::move(reply->text);
}

}  // namespace pitstop
