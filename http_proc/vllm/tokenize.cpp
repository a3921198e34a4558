// Serves vLLM's /tokenize, /detokenize and /tokenizer_info, in shapes that SGLang's clients read.
#include "http_proc/format/json_body.h"
#include "http_proc/generation/prompts.h"
#include "http_proc/openai/chat_request.h"
#include "http_proc/vllm/answers.h"
#include "http_proc/vllm/routes.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

constexpr std::size_t kTextsMax = 4096;  // per call

// Returns the tokens of a text or a chat, with the text of each token if requested.
Task<Result<messages::TokenizeReply>> tokens_of(
    Exchange& exchange, std::optional<std::string> text, bool adds_special, bool wants_texts
) {
    messages::Tokenize question;
    question.text = std::move(text);
    question.add_special_tokens = adds_special;
    question.each_token = wants_texts;
    co_return co_await ask(exchange, std::move(question));
}

Task<Response> tokenize_chat(Exchange& exchange, bool wants_texts) {
    const Result<ChatPrompt> chat = parse_prompt_chat(exchange.request().body);
    if (!chat) co_return vllm_text_refusal(chat.error());
    const Result<messages::TokenizeReply> reply = co_await ask(exchange, chat->question());
    if (!reply) co_return vllm_text_refusal(reply.error());
    nlohmann::ordered_json answer{
        {"count", reply->ids.size()},
        {"max_model_len", exchange.tree().hello().context_len},
        {"tokens", ids_json(reply->ids)},
        {"token_strs", nullptr},
        {"prompt", reply->text}};
    if (wants_texts) {
        messages::Tokenize question;
        question.ids = reply->ids;
        question.each_token = true;
        const Result<messages::TokenizeReply> texts = co_await ask(exchange, std::move(question));
        if (!texts) co_return vllm_text_refusal(texts.error());
        answer["token_strs"] = texts->texts;
    }
    co_return Response::json(200, answer);
}

Task<Response> tokenize(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    bool adds_special = true;
    bool wants_texts = false;
    fields.read("add_special_tokens", adds_special);
    fields.read("return_token_strs", wants_texts);
    const nlohmann::json* prompt = fields.find("prompt");
    const bool is_chat = prompt == nullptr && fields.has("messages");
    const bool is_list = prompt != nullptr && prompt->is_array();
    std::vector<std::string> texts;
    if (!is_chat) fields.read("prompt", texts);  // one string is accepted as a list
    if (!is_chat && prompt == nullptr) fields.fail("prompt", "a string, or messages in its place");
    if (texts.size() > kTextsMax) fields.fail("prompt", fmt::format("at most {}", kTextsMax));
    if (fields.error()) co_return vllm_text_refusal(*fields.error());
    if (is_chat) co_return co_await tokenize_chat(exchange, wants_texts);

    auto counts = nlohmann::ordered_json::array();
    auto tokens = nlohmann::ordered_json::array();
    auto strings = nlohmann::ordered_json::array();
    for (std::string& text : texts) {
        const Result<messages::TokenizeReply> reply =
            co_await tokens_of(exchange, std::move(text), adds_special, wants_texts);
        if (!reply) co_return vllm_text_refusal(reply.error());
        counts.push_back(reply->ids.size());
        tokens.push_back(ids_json(reply->ids));
        strings.push_back(reply->texts);
    }
    nlohmann::ordered_json answer{
        {"count", is_list ? counts : counts.front()},
        {"max_model_len", exchange.tree().hello().context_len},
        {"tokens", is_list ? tokens : tokens.front()},
        {"token_strs", nullptr}};
    if (wants_texts) answer["token_strs"] = is_list ? strings : strings.front();
    co_return Response::json(200, answer);
}

Task<Response> tokenizer_info(Exchange& exchange) {
    Result<messages::TokenizerReply> reply =
        co_await exchange.tree().call(messages::DescribeTokenizer{});
    if (!reply) co_return vllm_text_refusal(reply.error());
    co_return Response::json_text(200, std::move(reply->config));
}

Task<Response> detokenize(Exchange& exchange) {
    FieldReader fields(parse_json_object(exchange.request().body));
    bool skips_special = false;
    fields.read("skip_special_tokens", skips_special);
    const nlohmann::json* tokens = fields.find("tokens");
    const bool is_batch =
        tokens != nullptr && tokens->is_array() && !tokens->empty() && tokens->front().is_array();
    std::vector<std::vector<TokenId>> lists(is_batch ? 0 : 1);
    if (tokens == nullptr) fields.fail("tokens", "a list of token ids, or a list of such lists");
    if (is_batch && tokens->size() > kTextsMax)
        fields.fail("tokens", fmt::format("at most {} lists", kTextsMax));
    if (!is_batch && tokens != nullptr) fields.read("tokens", lists.front());
    for (std::size_t i = 0; is_batch && i < tokens->size() && !fields.error(); ++i) {
        const nlohmann::json one{{"tokens", (*tokens)[i]}};
        FieldReader list(one, fmt::format("[{}]", i));
        list.read("tokens", lists.emplace_back());
        if (list.error()) co_return vllm_text_refusal(*list.error());
    }
    if (fields.error()) co_return vllm_text_refusal(*fields.error());

    auto texts = nlohmann::ordered_json::array();
    for (std::vector<TokenId>& ids : lists) {
        messages::Tokenize question;
        question.ids = std::move(ids);
        question.skip_special_tokens = skips_special;
        Result<messages::TokenizeReply> reply = co_await ask(exchange, std::move(question));
        if (!reply) {
            Error error = reply.error();
            error.message = is_batch ? fmt::format("tokens[{}]: {}", texts.size(), error.message)
                                     : "tokens: " + error.message;
            co_return vllm_text_refusal(error);
        }
        texts.push_back(std::move(reply->text));
    }
    const nlohmann::ordered_json text = is_batch ? texts : texts.front();
    co_return Response::json(200, {{"prompt", text}, {"text", text}});
}

}  // namespace

void add_vllm_tokenize(Router& router) {
    router.add(
        Dialect::kVllm,
        Access::kData,
        {
            {"POST", "/tokenize", tokenize},
            {"POST", "/v1/tokenize", tokenize},
            {"POST", "/detokenize", detokenize},
            {"POST", "/v1/detokenize", detokenize},
            {"GET", "/tokenizer_info", tokenizer_info},
        }
    );
}

}  // namespace pitstop::http
