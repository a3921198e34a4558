#include "http_proc/vllm/generate_request.h"

#include "http_proc/format/common_fields.h"
#include "http_proc/format/grammar_fields.h"
#include "http_proc/format/sampling_fields.h"
#include "http_proc/format/thinking_fields.h"
#include "messages/supports.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>

namespace pitstop::http {
namespace {

void read_output_mode(FieldReader& fields, VllmGenerate& call) {
    std::string mode = "tokens";
    fields.read("output_mode", mode);
    call.shows_text = mode == "text";
    if (mode != "text" && mode != "tokens") fields.fail("output_mode", "tokens or text");
}

void refuse_misplaced_routes(FieldReader& sampling) {
    for (const std::string_view name :
         {"return_routed_experts",
          "routed_experts_start_len",
          "stream_routed_experts",
          "routed_experts"}) {
        if (sampling.has(name)) sampling.refuse(name, "its place is outside sampling_params");
    }
}

}  // namespace

Result<VllmGenerate> parse_vllm_generate(std::string_view body) {
    ASSIGN_OR_RETURN(const nlohmann::json json, parse_json_object(body));
    FieldReader fields(json);
    VllmGenerate call;
    OpenAiOptions& options = call.options;
    fields.read("token_ids", call.prompt);
    if (!fields.error() && call.prompt.empty()) fields.fail("token_ids", "a list of token ids");
    const nlohmann::json* given = fields.find("sampling_params");
    if (given == nullptr || !given->is_object()) fields.fail("sampling_params", "an object");
    for (const std::string_view name : {"features", "content_parts"}) {
        if (const nlohmann::json* part = fields.find(name); part != nullptr && !part->empty())
            fields.refuse(name, "the model accepts text only");
    }
    if (fields.error()) return *fields.error();

    // The top level has fields about the answer; sampling_params has those about the tokens.
    refuse_sampling(fields);
    constexpr std::string_view kPlace = "sampling_params.structured_outputs has the grammar";
    refuse_formats(fields, kPlace);
    if (fields.has("routed_experts_prompt_start"))
        fields.refuse("routed_experts_prompt_start", "its place is in sampling_params");
    read_openai_options(fields, options);
    read_lora_path(fields, options);
    refuse_thinking_fields(fields);
    // Routes have vLLM's form here, even if SGLang's return_routed_experts requested them.
    options.routes.form = RoutesForm::kNumpy;
    options.priority = -options.priority;  // in vLLM, lower values come first
    options.sampling = {};
    options.n = 1;
    options.prompt_logprobs.reset();
    FieldReader sampling(*given, "sampling_params");
    refuse_adapter(sampling);
    refuse_misplaced_routes(sampling);
    constexpr auto kServed = std::to_array<std::string_view>(
        {"trace_decode_token_ids", "prompt_logprob_token_ids", "prompt_logprob_start"}
    );
    read_openai_sampling(sampling, options, kServed);
    sampling.read("trace_decode_token_ids", call.trace);
    call.candidates = CandidateScores::read(
        sampling,
        std::ssize(call.prompt),
        messages::kLogprobIdsMax - std::min(options.logprob_ids.size(), messages::kLogprobIdsMax)
    );
    if (call.candidates && options.is_streamed)
        sampling.refuse("prompt_logprob_token_ids", "a stream has no matrix of scores");
    refuse_response_format(sampling, kPlace);
    read_structured_outputs(sampling, body, "sampling_params", options.sampling);
    refuse_thinking_fields(sampling);
    sampling.read("logprobs", call.logprobs);
    read_logprobs_mode(sampling, options.logprobs_mode);
    if (sampling.has("logprobs_mode")) options.names_logprobs_mode = true;
    bool detokenizes = true;
    sampling.read("detokenize", detokenizes);
    check_lengths(sampling, "max_tokens", options.sampling);
    if (!sampling.error()) check_top_logprobs(sampling, "logprobs", call.logprobs);
    if (sampling.error()) return *sampling.error();
    fields.read("return_sampling_mask", call.wants_mask);
    read_output_mode(fields, call);
    if (call.shows_text && !detokenizes) fields.refuse("output_mode", "detokenize is false");
    if (options.is_streamed && options.prompt_logprobs.value_or(0) != 0)
        fields.refuse("prompt_logprobs", "a stream accepts only 0");
    if (fields.error()) return *fields.error();
    if (auto problem = messages::invalid(options.sampling))
        return make_error(ErrorCode::kInvalidArgument, "sampling_params: {}", *problem);
    return call;
}

Result<VllmGenerate> parse_skyrl_generate(std::string_view body, std::int64_t context_len) {
    ASSIGN_OR_RETURN(const nlohmann::json json, parse_json_object(body));
    FieldReader fields(json);
    const nlohmann::json* given = fields.find("return_full_logprobs");
    if (given != nullptr && !asks_for_nothing(*given))
        fields.refuse("return_full_logprobs", "logprobs of sampling_params is -1 for all");
    bool wants_support = false;
    fields.read("return_sample_support", wants_support);
    if (fields.error()) return *fields.error();
    ASSIGN_OR_RETURN(VllmGenerate call, parse_vllm_generate(body));
    const messages::SamplingParams& sampling = call.options.sampling;
    const std::int64_t top_k = sampling.top_k.value_or(0);
    const bool fits = top_k >= 2 && top_k <= messages::kSupportMax;
    if (wants_support && (!fits || sampling.temperature == 0)) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "return_sample_support needs a top_k from 2 to {} and a temperature over 0: its rows "
            "have top_k tokens",
            messages::kSupportMax
        );
    }
    constexpr std::int64_t kPackedMax = std::int64_t{1} << 24;  // the most ids in an answer
    const std::int64_t num_rows = sampling.max_new_tokens.value_or(
        std::max<std::int64_t>(context_len - std::ssize(call.prompt), 0)
    );
    if (wants_support && num_rows > kPackedMax / top_k) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "return_sample_support: {} rows (max_tokens; without it, as many as fit) of {} tokens "
            "(top_k) are more than {} ids",
            num_rows,
            top_k,
            kPackedMax
        );
    }
    call.wants_packed_support = wants_support;
    return call;
}

}  // namespace pitstop::http
