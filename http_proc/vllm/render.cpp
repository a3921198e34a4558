// Serves vLLM's render routes: they return a request as tokens and options for the route
// /inference/v1/generate. Trainers render a chat once, and generate from its tokens repeatedly.
#include "http_proc/format/sampling_fields.h"
#include "http_proc/generation/prompts.h"
#include "http_proc/generation/request_checks.h"
#include "http_proc/generation/turn_prompt.h"
#include "http_proc/openai/answer.h"
#include "http_proc/openai/chat_request.h"
#include "http_proc/openai/chat_turn.h"
#include "http_proc/openai/completions_request.h"
#include "http_proc/vllm/answers.h"
#include "http_proc/vllm/routes.h"

#include <nlohmann/json.hpp>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

using OrderedJson = nlohmann::ordered_json;

// `logprobs`: the number for output tokens; absent: no logprobs.
OrderedJson sampling_json(const OpenAiOptions& options, std::optional<std::int64_t> logprobs) {
    OrderedJson json = vllm_sampling(options.sampling);
    json["n"] = options.n;
    if (logprobs) json["logprobs"] = *logprobs;
    if (options.prompt_logprobs) json["prompt_logprobs"] = *options.prompt_logprobs;
    if (!options.logprob_ids.empty()) json["logprob_token_ids"] = ids_json(options.logprob_ids);
    if (options.names_logprobs_mode)
        json["logprobs_mode"] = messages::name_of(options.logprobs_mode);
    if (options.routes.start) json["routed_experts_prompt_start"] = *options.routes.start;
    return json;
}

// Writes the options that only some requests have.
void write_options(OrderedJson& json, const OpenAiOptions& options) {
    if (options.replica) json["routed_dp_rank"] = *options.replica;
    if (options.kv_tolerance != messages::KvTolerance::kNever)
        json["kv_tolerance"] = messages::name_of(options.kv_tolerance);
    if (options.kv_max_lag != 0) json["kv_max_lag"] = options.kv_max_lag;
    if (options.draft_ids) json["draft_ids"] = ids_json(*options.draft_ids);
    if (options.draft_key) json["draft_key"] = *options.draft_key;
    if (options.wants_prompt_ids) json["return_prompt_token_ids"] = true;
    if (options.routes.is_streamed) json["stream_routed_experts"] = true;
    if (options.wants_usage || options.wants_usage_always) {
        json["stream_options"] = {
            {"include_usage", options.wants_usage},
            {"continuous_usage_stats", options.wants_usage_always}};
    }
}

OrderedJson rendered(
    Exchange& exchange,
    const OpenAiOptions& options,
    std::optional<std::int64_t> logprobs,
    const std::vector<TokenId>& ids
) {
    // /inference/v1/generate names an adapter as the model.
    const std::string& named = options.adapter.empty() ? options.model : options.adapter;
    OrderedJson json{
        {"request_id", name_of_caller(exchange.request(), options.id)},
        {"token_ids", ids_json(ids)},
        {"features", nullptr},
        {"sampling_params", sampling_json(options, logprobs)},
        {"model", named.empty() ? exchange.tree().hello().model : named},
        {"stream", options.is_streamed},
        {"priority", -options.priority},  // in vLLM, lower values come first
        {"kv_transfer_params", nullptr}};
    write_options(json, options);
    return json;
}

// Refuses a field that no rendered request can have.
Response refusal_of_field(std::string_view field, std::string_view why) {
    return vllm_text_refusal(make_error(
        ErrorCode::kInvalidArgument, "{} is not supported by a render route: {}", field, why
    ));
}

Task<Response> render_chat(Exchange& exchange) {
    Result<OpenAiChat> call = parse_openai_chat(exchange.request().body);
    if (!call) co_return vllm_text_refusal(call.error());
    if (!call->thinking.is_included) {
        co_return refusal_of_field(
            "include_reasoning", "/inference/v1/generate returns all tokens, those of thinking too"
        );
    }
    if (call->wants_prompt_text) {
        co_return refusal_of_field(
            "return_prompt_text", "/inference/v1/generate has no text of its prompt"
        );
    }
    OpenAiOptions& options = call->options;
    const Result<> known = co_await find_adapter_of(exchange, options.model, options.adapter);
    if (!known) co_return vllm_text_refusal(known.error());
    Result<AssistantTurn::Args> turn = turn_of_chat(exchange.server().formats(), *call);
    if (!turn) co_return vllm_text_refusal(turn.error());
    Result<TurnPrompt> prompt = co_await prompt_of_turn(
        exchange, call->chat, call->forced_call, std::move(call->input_ids)
    );
    if (!prompt) co_return vllm_text_refusal(prompt.error());
    turn->opening = std::move(prompt->opening);
    turn->start = prompt->start;
    if (auto held = hold_turn(*turn, prompt->has_ended_thinking, options.sampling); !held)
        co_return vllm_text_refusal(held.error());
    if (turn->reads_special_tokens()) options.sampling.skip_special_tokens = false;
    const auto logprobs = call->has_logprobs ? std::optional(call->top_logprobs) : std::nullopt;
    co_return Response::json(200, rendered(exchange, options, logprobs, prompt->ids));
}

// Answers with a list of one entry per prompt.
Task<Response> render_completions(Exchange& exchange) {
    Result<OpenAiCompletions> call = parse_openai_completions(exchange.request().body);
    if (!call) co_return vllm_text_refusal(call.error());
    if (call->is_echoed)
        co_return refusal_of_field("echo", "/inference/v1/generate returns the output alone");
    OpenAiOptions& options = call->options;
    std::map<std::string, std::string> adapters;  // by `lora_path`: many prompts may have the same
    for (const OpenAiPrompt& given : call->prompts) {
        const auto [place, is_new] = adapters.emplace(given.adapter, given.adapter);
        if (!is_new) continue;
        const Result<> known = co_await find_adapter_of(exchange, options.model, place->second);
        if (!known) co_return vllm_text_refusal(known.error());
    }
    OrderedJson all = OrderedJson::array();
    for (OpenAiPrompt& given : call->prompts) {
        options.adapter = adapters.at(given.adapter);
        messages::Generate prompt;
        prompt.text = std::move(given.text);
        prompt.input_ids = std::move(given.ids);
        const Result<> tokenized = co_await tokenize_prompt(exchange, prompt);
        if (!tokenized) co_return vllm_text_refusal(tokenized.error());
        all.push_back(rendered(exchange, options, call->logprobs, *prompt.input_ids));
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
