#include "http_proc/openai_options.h"

#include "http_proc/common_fields.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>

namespace pitstop {
namespace {

using Json = nlohmann::json;

constexpr double kGreedyBelow = 1e-6;

bool asks_for_nothing(const Json& value) {
    return value.is_null() || value == false || value == "" || value == "auto" ||
           ((value.is_array() || value.is_object()) && value.empty());
}

void refuse_unless_empty(
    FieldReader& fields, std::string_view why, std::initializer_list<std::string_view> names
) {
    for (const std::string_view name : names) {
        if (const Json* given = fields.find(name); given != nullptr && !asks_for_nothing(*given))
            fields.refuse(name, why);
    }
}

void read_logit_bias(FieldReader& fields, std::map<std::int64_t, double>& bias) {
    const Json* given = fields.find("logit_bias");
    if (given == nullptr) return;
    constexpr std::string_view kAccepted = "an object from token ids to numbers";
    if (!given->is_object()) return fields.fail("logit_bias", kAccepted);
    for (const auto& [key, value] : given->items()) {
        std::int64_t id = 0;
        const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
        const auto number = number_of(value);
        if (problem != std::errc{} || end != key.data() + key.size() || !number)
            return fields.fail("logit_bias", kAccepted);
        bias[id] = *number;
    }
}

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
    refuse_unless_empty(
        fields,
        "there are no grammars",
        {"regex",
         "ebnf",
         "json_schema",
         "structural_tag",
         "structured_outputs",
         "guided_json",
         "guided_regex",
         "guided_choice",
         "guided_grammar"}
    );
    refuse_unless_empty(fields, "stop texts are plain", {"stop_regex"});
    refuse_unless_empty(
        fields, "tokens are not masked; logit_bias may do", {"allowed_token_ids", "bad_words"}
    );
    refuse_unless_empty(fields, "code is not run", {"custom_logit_processor", "logits_processors"});
    refuse_unless_empty(fields, "samples are drawn once each", {"use_beam_search"});
    SamplingParams& params = options.sampling;
    fields.read("max_tokens", params.max_new_tokens);
    fields.read("min_tokens", params.min_new_tokens);
    fields.read("temperature", params.temperature);
    if (params.temperature >= 0 && params.temperature < kGreedyBelow) params.temperature = 0;
    fields.read("top_p", params.top_p);
    fields.read("top_k", params.top_k);
    if (params.top_k == 0) params.top_k = -1;  // vLLM's way to say all
    fields.read("min_p", params.min_p);
    fields.read("frequency_penalty", params.frequency_penalty);
    fields.read("presence_penalty", params.presence_penalty);
    fields.read("repetition_penalty", params.repetition_penalty);
    fields.read("seed", params.seed);
    fields.read("stop", params.stop);
    std::erase(params.stop, "");
    fields.read("stop_token_ids", params.stop_token_ids);
    fields.read("ignore_eos", params.ignore_eos);
    fields.read("no_stop_trim", params.no_stop_trim);
    fields.read("include_stop_str_in_output", params.no_stop_trim);
    fields.read("skip_special_tokens", params.skip_special_tokens);
    fields.read("spaces_between_special_tokens", params.spaces_between_special_tokens);
    read_logit_bias(fields, params.logit_bias);
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
    refuse_unless_empty(fields, "no adapters are loaded", {"lora_path"});
    refuse_unless_empty(fields, "there are no sessions", {"session_params"});
    refuse_unless_empty(
        fields, "the engine does not keep them", {"return_hidden_states", "return_routed_experts"}
    );
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
