#include "http_proc/openai/options.h"

#include "http_proc/format/common_fields.h"

#include <nlohmann/json.hpp>

#include <array>

namespace pitstop {
namespace {

using Json = nlohmann::json;

constexpr std::array kUnsupportedSampling{
    Unsupported{"regex", "there are no grammars"},
    Unsupported{"ebnf", "there are no grammars"},
    Unsupported{"json_schema", "there are no grammars"},
    Unsupported{"structural_tag", "there are no grammars"},
    Unsupported{"structured_outputs", "there are no grammars"},
    Unsupported{"guided_json", "there are no grammars"},
    Unsupported{"guided_regex", "there are no grammars"},
    Unsupported{"guided_choice", "there are no grammars"},
    Unsupported{"guided_grammar", "there are no grammars"},
    Unsupported{"stop_regex", "stop texts are plain"},
    Unsupported{"allowed_token_ids", "tokens are not masked; logit_bias may do"},
    Unsupported{"bad_words", "tokens are not masked; logit_bias may do"},
    Unsupported{"custom_logit_processor", "code is not run"},
    Unsupported{"logits_processors", "code is not run"},
    Unsupported{"use_beam_search", "samples are drawn once each"},
};
constexpr std::array kUnsupported{
    Unsupported{"lora_path", "no adapters are loaded"},
    Unsupported{"session_params", "there are no sessions"},
    Unsupported{"return_hidden_states", "the engine does not keep them"},
    Unsupported{"return_routed_experts", "the engine does not keep them"},
};

}  // namespace

Generate OpenAiOptions::request() const {
    Generate request;
    request.sampling = sampling;
    request.logprobs.mode = logprobs_mode;
    request.stream = is_streamed;
    request.priority = priority;
    request.replica = replica;
    request.kv_tolerance = kv_tolerance;
    request.kv_max_lag = kv_max_lag;
    return request;
}

void read_openai_sampling(FieldReader& fields, OpenAiOptions& options) {
    refuse_unsupported(fields, kUnsupportedSampling);
    SamplingParams& params = options.sampling;
    fields.read("max_tokens", params.max_new_tokens);
    fields.read("min_tokens", params.min_new_tokens);
    read_sampling(fields, params);
    if (params.top_k == 0) params.top_k = -1;  // vLLM's way to say all
    fields.read("seed", params.seed);
    fields.read("include_stop_str_in_output", params.no_stop_trim);
    fields.read("prompt_logprobs", options.prompt_logprobs);
    fields.read("logprob_token_ids", options.logprob_ids);
    fields.read("n", options.n);
    if (!fields.error() && (options.n < 1 || options.n > kOpenAiSamplesMax))
        fields.fail("n", fmt::format("[1, {}]", kOpenAiSamplesMax));
    if (!fields.error() && options.prompt_logprobs &&
        (*options.prompt_logprobs < 0 || *options.prompt_logprobs > kTopLogprobsMax))
        fields.fail("prompt_logprobs", fmt::format("[0, {}]", kTopLogprobsMax));
}

void read_openai_options(FieldReader& fields, OpenAiOptions& options) {
    refuse_unsupported(fields, kUnsupported);
    read_openai_sampling(fields, options);
    fields.read("model", options.model);
    fields.read("request_id", options.id);
    fields.read("rid", options.id);
    fields.read("stream", options.is_streamed);
    fields.read("return_token_ids", options.wants_token_ids);
    fields.read("return_tokens_as_token_ids", options.shows_tokens_as_ids);
    read_logprobs_mode(fields, options.logprobs_mode);
    fields.read("priority", options.priority);
    fields.read("data_parallel_rank", options.replica);
    fields.read("routed_dp_rank", options.replica);
    Generate tolerance;
    read_kv_tolerance(fields, tolerance);
    options.kv_tolerance = tolerance.kv_tolerance;
    options.kv_max_lag = tolerance.kv_max_lag;
    if (const Json* given = fields.find("response_format"); given != nullptr) {
        if (!given->is_object() || given->value("type", Json()) != "text")
            fields.refuse("response_format", "there are no grammars");
    }
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

}  // namespace pitstop
