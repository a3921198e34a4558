#include "http_proc/generation/prompts.h"

#include <optional>
#include <utility>

namespace pitstop::http {

Task<Result<>> tokenize_prompt(Exchange& exchange, messages::Generate& prompt) {
    if (!prompt.text) co_return Ok{};
    messages::Tokenize question;
    question.text = std::exchange(prompt.text, std::nullopt);
    Result<messages::TokenizeReply> reply = co_await ask(exchange, std::move(question));
    if (!reply) co_return std::move(reply).error();
    prompt.input_ids = std::move(reply->ids);
    co_return Ok{};
}

Task<Result<>> append_text(Exchange& exchange, std::string text, std::vector<TokenId>& ids) {
    if (text.empty()) co_return Ok{};
    messages::Tokenize question;
    question.text = std::move(text);
    question.add_special_tokens = false;
    Result<messages::TokenizeReply> reply = co_await ask(exchange, std::move(question));
    if (!reply) co_return std::move(reply).error();
    ids.insert(ids.end(), reply->ids.begin(), reply->ids.end());
    co_return Ok{};
}

Task<Result<std::string>> text_of(Exchange& exchange, std::vector<TokenId> ids) {
    messages::Tokenize question;
    question.ids = std::move(ids);
    Result<messages::TokenizeReply> reply = co_await ask(exchange, std::move(question));
    if (!reply) co_return std::move(reply).error();
    co_return std::move(reply->text);
}

}  // namespace pitstop::http
