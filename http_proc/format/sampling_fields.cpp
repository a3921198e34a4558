#include "http_proc/format/sampling_fields.h"

#include "http_proc/format/common_fields.h"
#include "messages/field_names.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string_view>;

// Fields that exist on the bus only: other engines lack them, and no HTTP client sends them.
constexpr auto kBusAlone = std::to_array<std::string_view>({"num_output_in_prompt", "bad_tokens"});
// Fields that have another name or another default in some dialect.
constexpr auto kOfDialects =
    std::to_array<std::string_view>({"max_new_tokens", "min_new_tokens", "seed"});
// The names of those fields in other dialects, and the number of samples.
constexpr auto kAliases =
    std::to_array<std::string_view>({"max_tokens", "min_tokens", "sampling_seed", "n"});
constexpr auto kOfVllm = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"max_new_tokens", "max_tokens"},
     {"min_new_tokens", "min_tokens"},
     {"no_stop_trim", "include_stop_str_in_output"}}
);
// Fields that vLLM's form has even if they are empty.
constexpr auto kNeverLeftOut = std::to_array<std::string_view>({"stop", "stop_token_ids"});

constexpr double kGreedyBelow = 1e-6;  // both engines treat lower temperatures as 0

bool is_among(const auto& names, std::string_view name) {
    return std::ranges::find(names, name) != names.end();
}

void read(FieldReader& fields, std::string_view name, std::map<std::int64_t, double>& numbers) {
    const Json* given = fields.find(name);
    if (given == nullptr) return;
    constexpr std::string_view kAccepted = "an object from token ids to numbers";
    if (!given->is_object()) return fields.fail(name, kAccepted);
    for (const auto& [key, value] : given->items()) {
        std::int64_t id = 0;
        const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
        const auto number = number_of(value);
        if (problem != std::errc{} || end != key.data() + key.size() || !number)
            return fields.fail(name, kAccepted);
        numbers[id] = *number;
    }
}

template <class T>
void read(FieldReader& fields, std::string_view name, T& value) {
    fields.read(name, value);
}

// Reads stop_token_ids, in which clients send the pad token that their tokenizer may lack, and
// allowed_token_ids.
void read(FieldReader& fields, std::string_view name, std::vector<TokenId>& ids) {
    if (name == "stop_token_ids") {
        fields.read_without_nulls(name, ids);
    } else {
        fields.read(name, ids);
    }
}

// Reads bad_tokens, which no body has.
void read(FieldReader&, std::string_view, std::vector<std::vector<TokenId>>&) {}

void write(nlohmann::ordered_json& to, const std::vector<TokenId>& ids) {
    to = nlohmann::ordered_json::array();
    for (const TokenId id : ids) to.push_back(raw(id));
}

void write(nlohmann::ordered_json& to, const std::vector<std::vector<TokenId>>& sequences) {
    to = nlohmann::ordered_json::array();
    for (const std::vector<TokenId>& ids : sequences) write(to.emplace_back(), ids);
}

void write(nlohmann::ordered_json& to, const std::map<std::int64_t, double>& numbers) {
    for (const auto& [id, number] : numbers) to[std::to_string(id)] = number;
}

template <class T>
void write(nlohmann::ordered_json& to, const T& value) {
    to = value;
}

template <class T>
void write(nlohmann::ordered_json& to, const std::optional<T>& value) {
    to = *value;
}

template <class T>
bool is_absent(const T& value) {
    if constexpr (requires { value.has_value(); }) {
        return !value.has_value();
    } else if constexpr (requires { value.empty(); }) {
        return value.empty();
    } else {
        return false;
    }
}

}  // namespace

const Names& sampling_names() {
    static const Names kNames = [] {
        Names names = messages::field_names<messages::SamplingParams>();
        std::erase_if(names, [](std::string_view name) { return is_among(kBusAlone, name); });
        return names;
    }();
    return kNames;
}

void read_sampling(FieldReader& fields, messages::SamplingParams& params) {
    params.fields([&](std::string_view name, auto& value, std::string_view) {
        if (!is_among(kBusAlone, name) && !is_among(kOfDialects, name)) read(fields, name, value);
    });
    if (params.temperature >= 0 && params.temperature < kGreedyBelow) params.temperature = 0;
    if (params.top_k == -1) params.top_k.reset();  // the engines' -1 means all
    std::erase(params.stop, "");
    if (fields.has("allowed_token_ids") && params.allowed_token_ids.empty())
        fields.fail("allowed_token_ids", "a list of at least one token id");
}

void refuse_sampling(FieldReader& fields) {
    const auto refuse = [&](std::string_view name) {
        const Json* given = fields.find(name);
        if (given != nullptr && (given->is_boolean() || !asks_for_nothing(*given)))
            fields.refuse(name, "it belongs in sampling_params");
    };
    std::ranges::for_each(sampling_names(), refuse);
    std::ranges::for_each(kAliases, refuse);
}

nlohmann::ordered_json vllm_sampling(messages::SamplingParams params) {
    auto json = nlohmann::ordered_json::object();
    params.fields([&](std::string_view name, auto& value, std::string_view) {
        if (is_among(kBusAlone, name)) return;
        if (is_absent(value) && !is_among(kNeverLeftOut, name)) return;
        const auto* const renamed =
            std::ranges::find(kOfVllm, name, [](const auto& pair) { return pair.first; });
        write(json[std::string(renamed != kOfVllm.end() ? renamed->second : name)], value);
    });
    return json;
}

}  // namespace pitstop::http
