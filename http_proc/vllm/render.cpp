// Serves vLLM's render routes: they return a request as tokens and options for the route
// /inference/v1/generate. Trainers render a chat once, and generate from its tokens repeatedly.
#include "http_proc/format/sampling_fields.h"
#include "http_proc/generation/prompts.h"
#include "http_proc/generation/request_checks.h"
#include "http_proc/generation/turn_prompt.h"
#include "http_proc/openai/answer.h"
#include "http_proc/openai/chat_request.h"
#include "http_proc/openai/completions_request.h"
#include "http_proc/vllm/answers.h"
#include "http_proc/vllm/routes.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

// `logprobs`: the number for output tokens; absent: no logprobs.
nlohmann::ordered_json sampling_json(
    const OpenAiOptions& options, std::optional<std::int64_t> logprobs
) {
    nlohmann::ordered_json json = vllm_sampling(options.sampling);
    json["n"] = options.n;
    if (logprobs) json["logprobs"] = *logprobs;
    if (options.prompt_logprobs) json["prompt_logprobs"] = *options.prompt_logprobs;
    if (options.routes.start) json["routed_experts_prompt_start"] = *options.routes.start;
    return json;
}

nlohmann::ordered_json rendered(
    Exchange& exchange,
    const OpenAiOptions& options,
    std::optional<std::int64_t> logprobs,
    const std::vector<TokenId>& ids
) {
    // /inference/v1/generate names an adapter as the model.
    const std::string& named = options.adapter.empty() ? options.model : options.adapter;
    nlohmann::ordered_json json{
        {"request_id", name_of_caller(exchange.request(), options.id)},
        {"token_ids", nlohmann::ordered_json::array()},
        {"features", nullptr},
        {"sampling_params", sampling_json(options, logprobs)},
        {"model", named.empty() ? exchange.tree().hello().model : named},
        {"stream", options.is_streamed},
        {"priority", -options.priority},  // in vLLM, lower values come first
        {"kv_transfer_params", nullptr}};
    if (options.routes.is_streamed) json["stream_routed_experts"] = true;
    for (const TokenId id : ids) json["token_ids"].push_back(raw(id));
    return json;
}

Task<Response> render_chat(Exchange& exchange) {
    Result<OpenAiChat> call = parse_openai_chat(exchange.request().body);
    if (!call) co_return vllm_text_refusal(call.error());
    OpenAiOptions& options = call->options;
    const Result<> known = co_await find_adapter_of(exchange, options.model, options.adapter);
    if (!known) co_return vllm_text_refusal(known.error());
    const Result<TurnPrompt> prompt = co_await prompt_of_turn(
        exchange, call->chat, call->forced_call, std::move(call->input_ids)
    );
    if (!prompt) co_return vllm_text_refusal(prompt.error());
    const auto logprobs = call->has_logprobs ? std::optional(call->top_logprobs) : std::nullopt;
    co_return Response::json(200, rendered(exchange, call->options, logprobs, prompt->ids));
}

// Answers with a list of one entry per prompt.
Task<Response> render_completions(Exchange& exchange) {
    Result<OpenAiCompletions> call = parse_openai_completions(exchange.request().body);
    if (!call) co_return vllm_text_refusal(call.error());
    OpenAiOptions& options = call->options;
    const Result<> known = co_await find_adapter_of(exchange, options.model, options.adapter);
    if (!known) co_return vllm_text_refusal(known.error());
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (OpenAiPrompt& given : call->prompts) {
        messages::Generate prompt;
        prompt.text = std::move(given.text);
        prompt.input_ids = std::move(given.ids);
        const Result<> tokenized = co_await tokenize_prompt(exchange, prompt);
        if (!tokenized) co_return vllm_text_refusal(tokenized.error());
        all.push_back(rendered(exchange, call->options, call->logprobs, *prompt.input_ids));
    }
    co_return Response::json(200, all);
}

}  // namespace

void add_vllm_render(Router& router) {
    router.add(
        Dialect::kVllm,
        Access::kData,
        {{"POST", "/v1/chat/completions/render", render_chat},
         {"POST", "/v1/completions/render", render_completions}}
    );
}

}  // namespace pitstop::http
