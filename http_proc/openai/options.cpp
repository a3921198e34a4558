#include "http_proc/openai/options.h"

#include "http_proc/format/common_fields.h"
#include "http_proc/format/sampling_fields.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

// Reads SGLang's return_routed_experts and routed_experts_start_len, and pitstop's own
// stream_routed_experts. REQUIRES: vLLM's routed_experts_prompt_start was read.
void read_routes(FieldReader& fields, OpenAiOptions& options) {
    if (const Json* given = fields.find("routed_experts"); given && !asks_for_nothing(*given))
        fields.refuse("routed_experts", "/generate and the bus accept routes for a prompt");
    bool wants_routes = false;
    std::optional<std::int64_t> start;
    fields.read("return_routed_experts", wants_routes);
    fields.read("routed_experts_start_len", start);
    if (start.value_or(0) < 0) fields.fail("routed_experts_start_len", "0 or more");
    if (start && !wants_routes)
        fields.refuse("routed_experts_start_len", "return_routed_experts is not true");
    if (wants_routes && options.routes.start)
        fields.refuse(
            "routed_experts_prompt_start", "return_routed_experts asks for another form; set one"
        );
    if (wants_routes) options.routes = {.start = start.value_or(0), .form = RoutesForm::kSglang};
    read_streamed_routes(fields, options.is_streamed, options.routes.is_streamed);
}

}  // namespace

void check_top_logprobs(
    FieldReader& fields, std::string_view name, const std::optional<std::int64_t>& num
) {
    if (!num || *num == kAllLogprobs || (*num >= 0 && *num <= messages::kTopLogprobsMax)) return;
    fields.fail(name, fmt::format("[0, {}], or -1: all", messages::kTopLogprobsMax));
}

void check_lengths(
    FieldReader& fields, std::string_view longest, const messages::SamplingParams& params
) {
    constexpr std::string_view kAccepted = "0 or more";
    if (params.max_new_tokens.value_or(0) < 0) fields.fail(longest, kAccepted);
    if (params.min_new_tokens < 0) fields.fail("min_tokens", kAccepted);
    if (params.max_new_tokens && params.min_new_tokens > *params.max_new_tokens)
        fields.fail("min_tokens", fmt::format("up to {}, {}", longest, *params.max_new_tokens));
}

messages::Generate OpenAiOptions::request() const {
    messages::Generate request;
    request.sampling = sampling;
    request.logprobs.mode = logprobs_mode;
    request.routed_experts_start = routes.start;
    request.stream = is_streamed;
    request.priority = priority;
    request.replica = replica;
    request.kv_tolerance = kv_tolerance;
    request.kv_max_lag = kv_max_lag;
    request.adapter = adapter;
    request.draft_ids = draft_ids;
    request.draft_key = draft_key;
    return request;
}

void read_openai_sampling(
    FieldReader& fields, OpenAiOptions& options, std::span<const std::string_view> served
) {
    refuse_unsupported(fields, served);
    refuse_session(fields);
    messages::SamplingParams& params = options.sampling;
    fields.read("max_tokens", params.max_new_tokens);
    fields.read("min_tokens", params.min_new_tokens);
    read_sampling(fields, params);
    if (params.top_k == 0) params.top_k.reset();  // vLLM's 0 means all, too
    fields.read("seed", params.seed);
    fields.read("include_stop_str_in_output", params.no_stop_trim);
    fields.read("prompt_logprobs", options.prompt_logprobs);
    fields.read("logprob_token_ids", options.logprob_ids);
    fields.read("routed_experts_prompt_start", options.routes.start);
    if (options.routes.start.value_or(0) < 0)
        fields.fail("routed_experts_prompt_start", "0 or more");
    options.routes.form = RoutesForm::kNumpy;
    fields.read("n", options.n);
    if (!fields.error() && (options.n < 1 || options.n > kOpenAiSamplesMax))
        fields.fail("n", fmt::format("[1, {}]", kOpenAiSamplesMax));
    if (!fields.error()) check_top_logprobs(fields, "prompt_logprobs", options.prompt_logprobs);
    // Only OpenAI's routes limit the bias; SGLang's accept any finite one.
    constexpr double kBiasMax = 100;
    const auto is_accepted = [](const auto& entry) { return std::abs(entry.second) <= kBiasMax; };
    if (!std::ranges::all_of(params.logit_bias, is_accepted))
        fields.fail("logit_bias", "an object from token ids to numbers in [-100, 100]");
}

void read_lora_path(FieldReader& fields, OpenAiOptions& options) {
    fields.read("lora_path", options.adapter);
}

void read_openai_options(FieldReader& fields, OpenAiOptions& options) {
    read_openai_sampling(fields, options);
    bool wants_meta_info = false;
    fields.read("return_meta_info", wants_meta_info);
    if (wants_meta_info) fields.refuse("return_meta_info", "SGLang's /generate returns it");
    fields.read("model", options.model);
    fields.read("request_id", options.id);
    fields.read("rid", options.id);
    fields.read("stream", options.is_streamed);
    read_routes(fields, options);
    fields.read("return_token_ids", options.wants_token_ids);
    fields.read("return_prompt_token_ids", options.wants_prompt_ids);
    if (options.wants_token_ids) options.wants_prompt_ids = true;
    fields.read("return_tokens_as_token_ids", options.shows_tokens_as_ids);
    read_logprobs_mode(fields, options.logprobs_mode);
    options.names_logprobs_mode = fields.has("logprobs_mode");
    messages::Generate placed;
    read_placement(fields, placed);
    options.priority = placed.priority;
    options.replica = placed.replica;
    options.kv_tolerance = placed.kv_tolerance;
    options.kv_max_lag = placed.kv_max_lag;
    read_draft_ids(fields, placed);
    read_draft_key(fields, placed);
    options.draft_ids = std::move(placed.draft_ids);
    options.draft_key = std::move(placed.draft_key);
    const Json* stream_options = fields.find("stream_options");
    if (stream_options == nullptr) return;
    if (!stream_options->is_object()) return fields.fail("stream_options", "an object");
    if (!options.is_streamed) return fields.refuse("stream_options", "stream is not true");
    FieldReader stream_fields(*stream_options, "stream_options");
    stream_fields.read("include_usage", options.wants_usage);
    stream_fields.read("continuous_usage_stats", options.wants_usage_always);
    if (stream_fields.error())
        fields.fail("stream_options", "an object with include_usage true or false");
}

}  // namespace pitstop::http
