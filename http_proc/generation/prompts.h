// Completes prompts: the tokens of a text, and the text of tokens.
#pragma once

#include "http_proc/server/exchange.h"
#include "messages/generation.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::http {

// Asks the tree a question about a text; the question is cancelled if the client leaves.
template <class Question>
[[nodiscard]] Task<Result<messages::TokenizeReply>> ask(Exchange& exchange, Question question) {
    question.client = exchange.client();
    Later<Result<messages::TokenizeReply>> later;
    Client& client = exchange.tree().client();
    const CallId call = client.call(
        std::move(question),
        std::function<void(Result<messages::TokenizeReply>)>(
            [setter = later.setter()](Result<messages::TokenizeReply> reply) {
                setter.set(std::move(reply));
            }
        )
    );
    exchange.on_gone([&client, call] { client.cancel_calls({call}); });
    Result<messages::TokenizeReply> reply = co_await later;
    exchange.on_gone(nullptr);
    co_return reply;
}

// Replaces the prompt's text, if it has one, by its tokens. Errors: the tree's.
[[nodiscard]] Task<Result<>> tokenize_prompt(Exchange& exchange, messages::Generate& prompt);

// Appends the tokens of `text`, which continues the prompt; an empty text has none.
// Errors: the tree's.
[[nodiscard]] Task<Result<>> append_text(
    Exchange& exchange, std::string text, std::vector<TokenId>& ids
);

// Returns the text of tokens. Errors: the tree's.
[[nodiscard]] Task<Result<std::string>> text_of(Exchange& exchange, std::vector<TokenId> ids);

}  // namespace pitstop::http
