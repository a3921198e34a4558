#include "http_proc/sglang/sampling_params.h"

#include "http_proc/format/common_fields.h"
#include "http_proc/format/json_body.h"
#include "http_proc/format/sampling_fields.h"
#include "http_proc/format/thinking_fields.h"
#include "http_proc/sglang/generate_request.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxNewTokensDefault = 128;

// Members of SGLang's sampling_params that sampling_names() lacks: accepted or refused by name.
constexpr auto kOfSglang = std::to_array<std::string_view>({
    "n",
    "sampling_seed",
    "stream_interval",
    "stop_regex",
    "custom_params",
    "max_thinking_tokens",
    "temp_last",
    "is_normalized",
});

bool is_sampling_name(std::string_view name) {
    if (name == "seed") return false;  // SGLang's name is sampling_seed
    return std::ranges::find(kOfSglang, name) != kOfSglang.end() ||
           std::ranges::find(sampling_names(), name) != sampling_names().end();
}

// A name in another dialect, and SGLang's name of the same parameter.
constexpr auto kOtherNames = std::to_array<std::array<std::string_view, 2>>({
    {"max_tokens", "max_new_tokens"},
    {"max_completion_tokens", "max_new_tokens"},
    {"min_tokens", "min_new_tokens"},
    {"seed", "sampling_seed"},
    {"logprobs", "return_logprob and top_logprobs_num, outside sampling_params"},
    {"return_logprob", "return_logprob, outside sampling_params"},
    {"stream", "stream, outside sampling_params"},
    {"include_stop_str_in_output", "no_stop_trim"},
});

Error unknown_sampling(std::string_view name) {
    std::string_view here;
    for (const auto& [other, own] : kOtherNames) {
        if (other == name) here = own;
    }
    return make_error(
        ErrorCode::kInvalidArgument,
        "sampling_params has no parameter '{}'{}{}",
        name,
        here.empty() ? "" : "; its name here is ",
        here
    );
}

}  // namespace

Result<SglangSampling> parse_sglang_sampling(const Json& object) {
    if (!object.is_object())
        return make_error(ErrorCode::kInvalidArgument, "sampling_params is not an object");
    for (const auto& [name, value] : object.items()) {
        if (!is_sampling_name(name)) return unknown_sampling(name);
    }
    FieldReader fields(object, "sampling_params");
    refuse_unsupported(fields);
    refuse_thinking_fields(fields);
    refuse_routed_experts(fields, "its place is outside sampling_params");
    refuse_adapter(fields);
    SglangSampling sampling;
    messages::SamplingParams& params = sampling.params;
    // Absent means 128; an explicit null means as many tokens as fit.
    if (!object.contains("max_new_tokens")) params.max_new_tokens = kMaxNewTokensDefault;
    fields.read("max_new_tokens", params.max_new_tokens);
    fields.read("min_new_tokens", params.min_new_tokens);
    read_sampling(fields, params);
    // As in SGLang, ignore_eos disables all stops by token.
    if (params.ignore_eos) sampling.unused_stop_ids = std::exchange(params.stop_token_ids, {});
    fields.read("sampling_seed", params.seed);
    fields.read("n", sampling.n);
    fields.read("stream_interval", sampling.stream_interval);
    if (!fields.error() && (sampling.n < 1 || sampling.n > static_cast<std::int64_t>(kSamplesMax)))
        fields.fail("n", fmt::format("[1, {}]", kSamplesMax));
    constexpr std::int64_t kIntervalMax = std::int64_t{1} << 30;  // may be added to a token count
    if (!fields.error() &&
        (sampling.stream_interval < 1 || sampling.stream_interval > kIntervalMax))
        fields.fail("stream_interval", fmt::format("[1, {}]", kIntervalMax));
    if (fields.error()) return *fields.error();
    return sampling;
}

}  // namespace pitstop::http
