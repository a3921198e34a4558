#include "http_proc/format/common_fields.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <map>
#include <string>

namespace pitstop {
namespace {

using Json = nlohmann::json;

constexpr double kGreedyBelow = 1e-6;  // both engines take what is less for 0

bool asks_for_nothing(const Json& value) {
    return value.is_null() || value == false || value == "" ||
           (value.is_array() && std::ranges::all_of(value, asks_for_nothing)) ||
           (value.is_object() && value.empty());
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

void read_logprobs_mode(FieldReader& fields, LogprobsMode& mode) {
    std::string name;
    fields.read("logprobs_mode", name);
    if (name.empty()) return;
    if (name == "raw" || name == "raw_logprobs") {
        mode = LogprobsMode::kRaw;
    } else if (name == "scaled") {
        mode = LogprobsMode::kScaled;
    } else if (name == "truncated" || name == "processed_logprobs") {
        mode = LogprobsMode::kTruncated;
    } else {
        fields.fail("logprobs_mode", "raw, scaled, truncated, raw_logprobs or processed_logprobs");
    }
}

void read_kv_tolerance(FieldReader& fields, Generate& request) {
    std::string name;
    fields.read("kv_tolerance", name);
    fields.read("kv_max_lag", request.kv_max_lag);
    if (name.empty()) return;
    if (name == "never") {
        request.kv_tolerance = KvTolerance::kNever;
    } else if (name == "max_lag") {
        request.kv_tolerance = KvTolerance::kMaxLag;
    } else if (name == "keep") {
        request.kv_tolerance = KvTolerance::kKeep;
    } else {
        fields.fail("kv_tolerance", "never, max_lag or keep");
    }
}

void read_sampling(FieldReader& fields, SamplingParams& params) {
    fields.read("temperature", params.temperature);
    if (params.temperature >= 0 && params.temperature < kGreedyBelow) params.temperature = 0;
    fields.read("top_p", params.top_p);
    fields.read("top_k", params.top_k);
    fields.read("min_p", params.min_p);
    fields.read("frequency_penalty", params.frequency_penalty);
    fields.read("presence_penalty", params.presence_penalty);
    fields.read("repetition_penalty", params.repetition_penalty);
    fields.read("stop", params.stop);
    std::erase(params.stop, "");
    fields.read("stop_token_ids", params.stop_token_ids);
    fields.read("ignore_eos", params.ignore_eos);
    fields.read("no_stop_trim", params.no_stop_trim);
    fields.read("skip_special_tokens", params.skip_special_tokens);
    fields.read("spaces_between_special_tokens", params.spaces_between_special_tokens);
    read_logit_bias(fields, params.logit_bias);
}

void refuse_unsupported(FieldReader& fields, std::span<const Unsupported> entries) {
    for (const Unsupported& entry : entries) {
        const Json* given = fields.find(entry.name);
        if (given != nullptr && !asks_for_nothing(*given)) fields.refuse(entry.name, entry.why);
    }
}

}  // namespace pitstop
