// Serves vLLM's /inference/v1/generate: tokens in, tokens out.
#include "http_proc/format/sampling_masks.h"
#include "http_proc/format/versions.h"
#include "http_proc/generation/request_checks.h"
#include "http_proc/openai/answer.h"
#include "http_proc/server/errors.h"
#include "http_proc/vllm/generate_request.h"
#include "http_proc/vllm/routes.h"
#include "http_proc/vllm/trace.h"

#include <charconv>
#include <optional>
#include <utility>
#include <vector>

namespace pitstop::http {
namespace {

struct VllmAnswer : OpenAiAnswer {
    static constexpr Dialect kDialect = Dialect::kVllm;

    std::vector<TokenId> prompt_ids{};
    std::optional<CandidateScores> candidates{};
    std::vector<TokenId> trace{};  // empty: the output is sampled
    bool has_logprobs = false;
    bool shows_text = false;
    bool packs_support = false;
    bool has_told_prompt = false;                      // in a stream
    std::vector<std::vector<messages::Span>> spans{};  // by choice
    Usage usage{};

    VllmAnswer(Exchange& exchange, VllmGenerate call);

    static Result<VllmAnswer> parse(Exchange& exchange) {
        ASSIGN_OR_RETURN(VllmGenerate call, parse_vllm_generate(exchange.request().body));
        RETURN_IF_ERROR(check(exchange, call));
        return VllmAnswer(exchange, std::move(call));
    }
    static Result<> check(Exchange& exchange, VllmGenerate& call) {
        RETURN_IF_ERROR(read_adapter_of(exchange, call.options.model, call.options.adapter));
        RETURN_IF_ERROR(prepare_trace(call));
        // A trace has no routes: those that the server adds by default are left out.
        if (call.trace.empty())
            RETURN_IF_ERROR(finish_routes(exchange, call.options.n, call.options));
        RETURN_IF_ERROR(check_tokens(exchange, "trace_decode_token_ids", call.trace));
        if (!call.logprobs)
            RETURN_IF_ERROR(check_tokens(exchange, "logprob_token_ids", call.options.logprob_ids));
        return Ok{};
    }
    static Response refusal(const Error& error) {
        const int status = error.code == ErrorCode::kAlreadyExists ? 400 : status_of(error.code);
        return error_response(kDialect, status, error);
    }
    [[nodiscard]] const std::string& named_model() const { return options.model; }
    static Task<Result<>> complete(Exchange& /*exchange*/, Prompt& /*prompt*/) { co_return Ok{}; }
    void add_sample(std::size_t /*prompt*/, const messages::Generate& /*request*/) {
        add_routes();
        spans.emplace_back();
    }
    bool handle_event(Generation::Event& event) {
        if (!trace.empty()) show_trace(trace, logprobs.asked, event.chunk);
        usage.add(event.chunk);
        take_routes(event.index, event.chunk);
        return true;
    }
    [[nodiscard]] std::optional<Error> problem_of(const messages::OutputChunk& chunk) const {
        if (!packs_support || !chunk.supports) return std::nullopt;
        return error_of_wide_support(*chunk.supports, *options.sampling.top_k);
    }
    void write_events(EventStream& stream, Generation::Event event);
    void write_end(EventStream& stream) const;
    void write_whole(JsonWriter& json, std::vector<messages::OutputChunk>& outputs);

    void write_head(JsonWriter& json) const;
    void write_prompt(JsonWriter& json, const messages::OutputChunk& first) const;
    void write_entry(JsonWriter& json, TokenId id, float logprob, std::optional<std::int64_t> rank)
        const;
    void write_logprobs(JsonWriter& json, const messages::OutputChunk& chunk) const;
    void write_masks(JsonWriter& json, const messages::OutputChunk& chunk) const;
    void write_choice(JsonWriter& json, std::size_t index, messages::OutputChunk& chunk);
};

// vllm-router selects a replica with the header x-data-parallel-rank.
void read_replica_header(const Request& request, messages::Generate& generate) {
    const auto header = request.header("x-data-parallel-rank");
    if (!header || generate.replica) return;
    std::int64_t replica = 0;
    const auto [end, problem] =
        std::from_chars(header->data(), header->data() + header->size(), replica);
    if (problem == std::errc{} && end == header->data() + header->size())
        generate.replica = replica;
}

VllmAnswer::VllmAnswer(Exchange& exchange, VllmGenerate call)
    : OpenAiAnswer(exchange, std::move(call.options), "generate-tokens-"),
      prompt_ids(std::move(call.prompt)),
      candidates(std::move(call.candidates)),
      trace(std::move(call.trace)),
      has_logprobs(call.logprobs.has_value()),
      shows_text(call.shows_text),
      packs_support(call.wants_packed_support) {
    options.shows_tokens_as_ids = !shows_text;
    logprobs = shown_logprobs(
        options, has_logprobs, call.logprobs.value_or(0), exchange.tree().hello().vocab_size
    );
    if (has_logprobs) logprobs.asked.ids = options.logprob_ids;
    const bool is_served =
        exchange.server().options().returns_masks && messages::may_truncate(options.sampling);
    logprobs.asked.support = call.wants_mask || packs_support || (is_served && trace.empty());
    if (has_logprobs && !trace.empty() && !options.prompt_logprobs)
        logprobs.asked.prompt_start = static_cast<std::int64_t>(prompt_ids.size());
    if (candidates) {
        candidates->request(logprobs.asked);
        logprobs.num_hidden_ids = candidates->num_ids();
    }
    Prompt& only = prompts.emplace_back(prompt());
    only.num_kept = 1;
    if (options.n == 1) only.request.rid = answer_id;
    only.request.input_ids = prompt_ids;
    only.request.input_ids->insert(only.request.input_ids->end(), trace.begin(), trace.end());
    only.request.text_output = shows_text || !options.sampling.stop.empty();
    read_replica_header(exchange.request(), only.request);
}

// Newer clients read token_id, older ones read token, so an entry has both.
void VllmAnswer::write_entry(
    JsonWriter& json, TokenId id, float logprob, std::optional<std::int64_t> rank
) const {
    const TokenNames shown = token_names();
    json.key("token_id").integer(raw(id)).key("logprob").logprob(logprob).key("rank");
    rank ? json.integer(*rank) : json.null();
    json.key("token").string(shown.of(id)).key("bytes").begin_array();
    for (const char c : shown.bytes_of(id)) json.integer(static_cast<unsigned char>(c));
    json.end_array();
}

void VllmAnswer::write_logprobs(JsonWriter& json, const messages::OutputChunk& chunk) const {
    json.begin_object().key("content").begin_array();
    for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
        const TokenLogprob position = output_logprob(chunk, i, logprobs);
        json.begin_object();
        write_entry(json, position.id, *position.logprob, position.rank);
        json.key("top_logprobs").begin_array();
        const auto show = [&](TokenId id, float logprob, std::optional<std::int64_t> rank) {
            json.begin_object();
            write_entry(json, id, logprob, rank);
            json.end_object();
        };
        show(position.id, *position.logprob, position.rank);  // the sampled token comes first
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

void VllmAnswer::write_masks(JsonWriter& json, const messages::OutputChunk& chunk) const {
    const messages::Supports none;
    const messages::Supports& supports = chunk.supports ? *chunk.supports : none;
    json.key("sampling_mask");
    if (logprobs.asked.support && !packs_support) {
        std::string lists;
        append_masks(lists, supports);
        json.raw_list(lists);
    } else {
        json.null();
    }
    if (!packs_support) return;
    json.key("rollout_sample_support");
    write_packed_support(json, supports, *options.sampling.top_k);
}

void VllmAnswer::write_choice(JsonWriter& json, std::size_t index, messages::OutputChunk& chunk) {
    json.begin_object().key("index").integer(static_cast<std::int64_t>(index));
    json.key("token_ids").ids(chunk.tokens);
    if (shows_text) json.key("text").string(chunk.text);
    write_finish(json, chunk.finish ? &*chunk.finish : nullptr, eos_ids);
    json.key("logprobs");
    if (has_logprobs) {
        write_logprobs(json, chunk);
        write_logprobs_mode(json, options, is_held);
    } else {
        json.null();
    }
    const bool is_last = chunk.finish.has_value();
    if (routes[index].rows.has_part(is_last)) {
        write_choice_routes(json, index, is_last);
    } else {
        json.key("routed_experts").null();
    }
    write_masks(json, chunk);
    json.key("weight_versions");
    append_spans(spans[index], std::move(chunk.spans));
    if (chunk.finish) {
        write_weight_versions(json, spans[index]);
    } else {
        json.null();
    }
    json.end_object();
}

void VllmAnswer::write_head(JsonWriter& json) const {
    json.begin_object().key("request_id").string(answer_id).key("model").string(model);
    json.key("created").integer(created);
}

// Writes what is asked for of the prompt; null for the rest.
void VllmAnswer::write_prompt(JsonWriter& json, const messages::OutputChunk& first) const {
    json.key("prompt_logprobs");
    if (options.prompt_logprobs) {
        const messages::PromptLogprobs none;
        const std::optional<messages::PromptLogprobs>& shown = first.prompt;
        write_prompt_logprobs(json, shown ? *shown : none, prompt_ids, logprobs, token_names());
    } else {
        json.null();
    }
    json.key("prompt_token_id_logprobs");
    if (candidates) {
        candidates->write(json, first.prompt);
    } else {
        json.null();
    }
    json.key("prompt_token_ids");
    if (options.wants_prompt_ids) {
        json.ids(prompt_ids);
    } else {
        json.null();
    }
}

void VllmAnswer::write_whole(JsonWriter& json, std::vector<messages::OutputChunk>& outputs) {
    write_head(json);
    json.key("usage");
    write_usage(json, usage);
    json.key("choices").begin_array();
    for (std::size_t i = 0; i < outputs.size(); ++i) write_choice(json, i, outputs[i]);
    json.end_array();
    write_prompt(json, outputs.front());
    json.key("output_mode").string(shows_text ? "text" : "tokens");
    json.key("kv_transfer_params").null().end_object();
}

void VllmAnswer::write_events(EventStream& stream, Generation::Event event) {
    JsonWriter& json = stream.begin_event();
    write_head(json);
    json.key("choices").begin_array();
    write_choice(json, event.index, event.chunk);
    json.end_array();
    const bool asks_of_prompt = options.prompt_logprobs || candidates || options.wants_prompt_ids;
    if (asks_of_prompt && event.index == 0 && !std::exchange(has_told_prompt, true))
        write_prompt(json, event.chunk);
    if (options.wants_usage_always) {
        json.key("usage");
        write_usage(json, usage);
    }
    json.end_object();
    stream.end_event();
}

void VllmAnswer::write_end(EventStream& stream) const {
    if (!options.wants_usage) return;
    JsonWriter& json = stream.begin_event();
    write_head(json);
    write_last_usage(json, usage);
    stream.end_event();
}

// SkyRL's generate: answers of a model with experts have routes without a request, except for a
// trace, in SkyRL's form.
struct SkyRlAnswer : VllmAnswer {
    static Result<SkyRlAnswer> parse(Exchange& exchange) {
        ASSIGN_OR_RETURN(
            VllmGenerate call,
            parse_skyrl_generate(exchange.request().body, exchange.tree().hello().context_len)
        );
        RoutesAsked& asked = call.options.routes;
        if (!asked.start && call.trace.empty() && exchange.tree().hello().routes) asked.start = 0;
        asked.form = RoutesForm::kSmallest;
        RETURN_IF_ERROR(check(exchange, call));
        return SkyRlAnswer{VllmAnswer(exchange, std::move(call))};
    }
};

}  // namespace

void add_vllm_generate(Router& router) {
    router.add(
        Dialect::kVllm,
        Access::kData,
        {{"POST", "/inference/v1/generate", serve<VllmAnswer>},
         {"POST", "/skyrl/v1/generate", serve<SkyRlAnswer>}}
    );
}

}  // namespace pitstop::http
