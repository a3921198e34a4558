// vLLM's /inference/v1/generate: tokens in, tokens out.
#include "http_proc/format/versions.h"
#include "http_proc/generation/event_stream.h"
#include "http_proc/generation/generation.h"
#include "http_proc/openai/choice.h"
#include "http_proc/server/errors.h"
#include "http_proc/vllm/generate_request.h"
#include "http_proc/vllm/routes.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

namespace pitstop {
namespace {

struct Answer {
    VllmGenerate call{};
    LogprobOptions logprobs{};
    std::string id{};
    std::string model{};
    std::int64_t created = 0;
    const TokenTexts* texts = nullptr;
    std::vector<TokenId> eos_ids{};
    std::vector<std::vector<Span>> spans{};  // by choice
    Usage usage{};
};

Response refusal(const Error& error) {
    const int status = error.code == ErrorCode::kAlreadyExists ? 400 : status_of(error.code);
    return error_response(Dialect::kVllm, status, error.message);
}

// Newer clients read token_id, older ones token: both are there.
void write_entry(
    JsonWriter& json,
    const Answer& answer,
    TokenId id,
    float logprob,
    std::optional<std::int64_t> rank
) {
    const TokenNames names(answer.texts, !answer.call.shows_text);
    const std::string name = names.of(id);
    json.key("token_id").integer(raw(id)).key("logprob").logprob(logprob).key("rank");
    rank ? json.integer(*rank) : json.null();
    json.key("token").string(name).key("bytes").begin_array();
    for (const char c : name) json.integer(static_cast<unsigned char>(c));
    json.end_array();
}

void write_logprobs(JsonWriter& json, const Answer& answer, const OutputChunk& chunk) {
    json.begin_object().key("content").begin_array();
    for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
        const TokenLogprob position = output_logprob(chunk, i, answer.logprobs);
        json.begin_object();
        write_entry(json, answer, position.id, *position.logprob, position.rank());
        json.key("top_logprobs").begin_array();
        const auto show = [&](TokenId id, float logprob, std::optional<std::int64_t> rank) {
            json.begin_object();
            write_entry(json, answer, id, logprob, rank);
            json.end_object();
        };
        show(position.id, *position.logprob, position.rank());  // the sampled one is first
        for (std::size_t k = 0; k < position.top_ids.size(); ++k) {
            if (position.top_ids[k] == position.id) continue;
            show(position.top_ids[k], position.top_logprobs[k], static_cast<std::int64_t>(k) + 1);
        }
        for (std::size_t k = 0; k < position.asked_ids.size(); ++k)
            show(position.asked_ids[k], position.asked_logprobs[k], std::nullopt);
        json.end_array().end_object();
    }
    json.end_array().end_object();
}

void write_choice(JsonWriter& json, Answer& answer, std::size_t index, OutputChunk chunk) {
    json.begin_object().key("index").integer(static_cast<std::int64_t>(index));
    json.key("token_ids").ids(chunk.tokens);
    if (answer.call.shows_text) json.key("text").string(chunk.text);
    write_finish(json, chunk.finish ? &*chunk.finish : nullptr, answer.eos_ids);
    json.key("logprobs");
    if (answer.call.logprobs) {
        write_logprobs(json, answer, chunk);
    } else {
        json.null();
    }
    json.key("routed_experts").null().key("sampling_mask").null().key("weight_versions");
    append_spans(answer.spans[index], std::move(chunk.spans));
    if (chunk.finish) {
        write_weight_versions(json, answer.spans[index]);
    } else {
        json.null();
    }
    json.end_object();
}

void write_head(JsonWriter& json, const Answer& answer) {
    json.begin_object().key("request_id").string(answer.id).key("model").string(answer.model);
    json.key("created").integer(answer.created);
}

Task<Response> answer_whole(Generation& generation, Answer& answer) {
    const Result<std::vector<OutputChunk>> outputs = co_await collect(generation);
    if (!outputs) co_return refusal(outputs.error());
    for (const OutputChunk& output : *outputs) answer.usage.add(output);
    JsonWriter json;
    write_head(json, answer);
    json.key("usage");
    write_usage(json, answer.usage);
    json.key("choices").begin_array();
    for (std::size_t i = 0; i < outputs->size(); ++i) write_choice(json, answer, i, (*outputs)[i]);
    json.end_array().key("prompt_logprobs");
    const OpenAiOptions& options = answer.call.options;
    const std::optional<PromptLogprobs>& prompt = outputs->front().prompt;
    if (options.prompt_logprobs) {
        const TokenNames names(answer.texts, !answer.call.shows_text);
        const PromptLogprobs none;
        write_prompt_logprobs(
            json, prompt ? *prompt : none, answer.call.prompt, answer.logprobs, names
        );
    } else {
        json.null();
    }
    json.key("prompt_token_ids");
    if (options.wants_token_ids) {
        json.ids(answer.call.prompt);
    } else {
        json.null();
    }
    json.key("output_mode").string(answer.call.shows_text ? "text" : "tokens");
    json.key("kv_transfer_params").null().end_object();
    co_return Response::json_text(200, json.take());
}

Task<Response> answer_streamed(Exchange& exchange, Generation& generation, Answer& answer) {
    const OpenAiOptions& options = answer.call.options;
    EventStream stream(exchange);
    while (auto event = co_await generation.next()) {
        if (const auto error = error_of(event->chunk)) {
            if (!stream.has_begun()) co_return refusal(*error);
            stream.add_error(Dialect::kVllm, *error);
            break;
        }
        answer.usage.add(event->chunk);
        JsonWriter& json = stream.begin_event();
        write_head(json, answer);
        json.key("choices").begin_array();
        write_choice(json, answer, event->index, std::move(event->chunk));
        json.end_array();
        if (options.wants_usage_always) {
            json.key("usage");
            write_usage(json, answer.usage);
        }
        json.end_object();
        stream.end_event();
        if (!co_await stream.send(generation.has_more_now())) co_return Response::streamed();
    }
    if (options.wants_usage) {
        JsonWriter& json = stream.begin_event();
        write_head(json, answer);
        write_last_usage(json, answer.usage);
        stream.end_event();
    }
    co_await stream.end();
    co_return Response::streamed();
}

// vllm-router pins a replica with a header.
void read_replica_header(const Request& request, Generate& generate) {
    const auto header = request.header("x-data-parallel-rank");
    if (!header || generate.replica) return;
    std::int64_t replica = 0;
    const auto [end, problem] =
        std::from_chars(header->data(), header->data() + header->size(), replica);
    if (problem == std::errc{} && end == header->data() + header->size())
        generate.replica = replica;
}

Task<Response> generate(Exchange& exchange) {
    const Request& request = exchange.request();
    Result<VllmGenerate> call = parse_vllm_generate(request.body);
    if (!call) co_return refusal(call.error());
    Answer answer;
    answer.call = *std::move(call);
    const OpenAiOptions& options = answer.call.options;
    const std::string caller = name_of_caller(request, options.id);
    answer.id = "generate-tokens-" + caller;
    Preparations::Entry preparation = exchange.tree().preparations().begin({answer.id, caller});
    answer.logprobs.mode = options.logprobs_mode;
    answer.logprobs.enabled = answer.call.logprobs || options.prompt_logprobs;
    answer.logprobs.top =
        std::max(answer.call.logprobs.value_or(0), options.prompt_logprobs.value_or(0));
    if (answer.call.logprobs) answer.logprobs.ids = options.logprob_ids;
    if (options.prompt_logprobs) answer.logprobs.prompt_start = 0;
    if (answer.call.shows_text && answer.logprobs.enabled) {
        const Result<> loaded = co_await exchange.tree().token_texts().load(exchange.tree());
        if (!loaded) co_return refusal(loaded.error());
        answer.texts = &exchange.tree().token_texts();
    }
    const HelloReply& hello = exchange.tree().hello();
    answer.model = options.model.empty() ? hello.model : options.model;
    answer.created = ServerContext::unix_time();
    answer.eos_ids = hello.eos_ids;
    answer.spans.resize(static_cast<std::size_t>(options.n));

    std::vector<Generate> requests;
    Generate one = options.request();
    one.input_ids = answer.call.prompt;
    one.logprobs = answer.logprobs;
    one.text_output = answer.call.shows_text || !one.sampling.stop.empty();
    read_replica_header(request, one);
    const Result<> held = exchange.hold(one, {.num_copies = options.n, .num_kept = 1});
    if (!held) co_return refusal(held.error());
    for (std::int64_t sample = 0; sample < options.n; ++sample) {
        one.rid = options.n == 1 ? answer.id : fmt::format("{}-{}", answer.id, sample);
        if (sample > 0 && one.sampling.seed) ++*one.sampling.seed;
        requests.push_back(one);
    }
    Generation generation(exchange);
    generation.start(std::move(preparation), std::move(requests), {answer.id, caller});
    if (options.is_streamed) co_return co_await answer_streamed(exchange, generation, answer);
    co_return co_await answer_whole(generation, answer);
}

}  // namespace

void add_vllm_generate(Router& router) {
    router.add(
        {.methods = "POST",
         .path = "/inference/v1/generate",
         .dialect = Dialect::kVllm,
         .access = Access::kData,
         .handler = generate}
    );
}

}  // namespace pitstop
