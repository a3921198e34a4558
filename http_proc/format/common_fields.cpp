#include "http_proc/format/common_fields.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace pitstop::http {
namespace {

using Json = nlohmann::json;

struct Unsupported {
    std::string_view name{};
    std::string_view why{};
};
constexpr std::string_view kTextAlone = "the model accepts text only";
constexpr std::string_view kAdapterIsModel =
    "name the adapter as the model or as lora_path, outside of sampling_params";
constexpr std::string_view kNotKept = "the engine does not keep hidden states";
constexpr std::string_view kLaterForm = "vLLM's structured_outputs has replaced it";
constexpr std::string_view kNoCode = "code is not run";
constexpr std::string_view kNoThinking =
    "/v1/chat/completions separates thinking, with --reasoning-parser";
constexpr std::string_view kOneEngine = "one engine does both prefill and decode";
constexpr std::string_view kLists = "top logprobs are returned as lists";
constexpr std::string_view kNoBeams = "samples are drawn once each";
constexpr std::string_view kNoWatermarks = "outputs have no watermarks";
constexpr std::string_view kNoScores = "the engine only generates; it does not score pairs";
constexpr std::array kUnsupported{
    Unsupported{"guided_json", kLaterForm},
    Unsupported{"guided_regex", kLaterForm},
    Unsupported{"guided_choice", kLaterForm},
    Unsupported{"guided_grammar", kLaterForm},
    Unsupported{"stop_regex", "stop texts are plain text, not patterns"},
    Unsupported{"custom_logit_processor", kNoCode},
    Unsupported{"logits_processors", kNoCode},
    Unsupported{"use_beam_search", kNoBeams},
    Unsupported{
        "trace_decode_token_ids",
        "outputs are sampled; sampling_params of /inference/v1/generate accepts it, and prompt "
        "logprobs of the same tokens have the same bits"},
    Unsupported{"watermark", kNoWatermarks},
    Unsupported{"watermarking", kNoWatermarks},
    Unsupported{"repetition_detection", "outputs end by their length and stops"},
    Unsupported{"require_reasoning", kNoThinking},
    Unsupported{"lora_request", kAdapterIsModel},
    Unsupported{"lora_id", kAdapterIsModel},
    Unsupported{"prompt_embeds", "prompts are text or tokens"},
    Unsupported{"input_embeds", "prompts are text or tokens"},
    Unsupported{"positional_embed_overrides", "prompts are text or tokens"},
    Unsupported{"multi_item_delimiter_indices", kNoScores},
    Unsupported{"token_indices_to_pool", kNoScores},
    Unsupported{"truncate_prompt_tokens", "a prompt is used whole or refused"},
    Unsupported{"kv_transfer_params", kOneEngine},
    Unsupported{"ec_transfer_params", kOneEngine},
    Unsupported{"bootstrap_host", kOneEngine},
    Unsupported{"bootstrap_port", kOneEngine},
    Unsupported{"bootstrap_room", kOneEngine},
    Unsupported{"bootstrap_pair_key", kOneEngine},
    Unsupported{"decode_tp_size", kOneEngine},
    Unsupported{"disagg_prefill_dp_rank", kOneEngine},
    Unsupported{"functions", "tools have replaced them"},
    Unsupported{"function_call", "tool_choice has replaced it"},
    Unsupported{"image_data", kTextAlone},
    Unsupported{"video_data", kTextAlone},
    Unsupported{"audio_data", kTextAlone},
    Unsupported{"audio", kTextAlone},
    Unsupported{"web_search_options", "nothing is searched"},
    Unsupported{"moderation", "nothing is moderated"},
    Unsupported{"background", "an answer is sent as it is generated, and not kept"},
    Unsupported{"return_hidden_states", kNotKept},
    Unsupported{"return_indexer_topk", "there is no indexer"},
    Unsupported{"return_entropy", "entropies are not computed"},
    Unsupported{"return_flat_raw_top_logprobs", kLists},
    Unsupported{"return_flat_raw_top_logprobs_b64", kLists},
    Unsupported{"return_flat_raw_output_top_logprobs", kLists},
    Unsupported{"flat_logprobs", kLists},
    Unsupported{
        "prompt_logprob_token_ids",
        "sampling_params of /inference/v1/generate takes it; /generate takes token_ids_logprob, "
        "one list for all positions"},
    Unsupported{"return_cached_tokens_details", "cached_tokens is one number"},
    Unsupported{"return_spec_tokens_details", "an answer has one count of all its drafts"},
    Unsupported{"return_input_ids_in_sglext", "return_prompt_token_ids shows them"},
    Unsupported{"return_output_ids_in_sglext", "return_token_ids shows them"},
    Unsupported{"sampling_logprobs_mode", "logprobs_mode sets the distribution of logprobs"},
};

// Refuses fields that have one supported value each, if they have another
// value.
void refuse_other_values(FieldReader& fields, std::span<const std::string_view> served) {
    const auto refuse_unless = [&](std::string_view name, std::string_view why, auto is_accepted) {
        if (std::ranges::find(served, name) != served.end()) return;
        const Json* given = fields.find(name);
        if (given != nullptr && !is_accepted(*given)) fields.refuse(name, why);
    };
    refuse_unless("modalities", kTextAlone, [](const Json& value) {
        return asks_for_nothing(value) ||
               (value.is_array() &&
                std::ranges::all_of(value, [](const Json& m) { return m == "text"; }));
    });
    refuse_unless(
        "verbosity",
        "it does not reach the model; accepted is medium",
        [](const Json& value) { return value == "medium"; }
    );
    refuse_unless("beam_width", kNoBeams, [](const Json& value) { return value == 1; });
    refuse_unless(
        "prompt_logprob_start",
        "prompt_logprobs are of all its tokens",
        [](const Json& value) { return value == 0; }
    );
}

}  // namespace

bool asks_for_nothing(const Json& value) {
    return value.is_null() || value == false || value == "" ||
           (value.is_array() && std::ranges::all_of(value, asks_for_nothing)) ||
           (value.is_object() && value.empty());
}

void read_placement(FieldReader& fields, messages::Generate& request) {
    fields.read("priority", request.priority);
    fields.read("data_parallel_rank", request.replica);
    fields.read("routed_dp_rank", request.replica);
    read_kv_tolerance(fields, request);
}

void read_logprobs_mode(FieldReader& fields, messages::LogprobsMode& mode) {
    std::string name;
    fields.read("logprobs_mode", name);
    if (name.empty()) return;
    if (name == "raw" || name == "raw_logprobs") {
        mode = messages::LogprobsMode::kRaw;
    } else if (name == "scaled") {
        mode = messages::LogprobsMode::kScaled;
    } else if (name == "truncated" || name == "processed_logprobs") {
        mode = messages::LogprobsMode::kTruncated;
    } else {
        fields.fail("logprobs_mode", "raw, scaled, truncated, raw_logprobs or processed_logprobs");
    }
}

void read_kv_tolerance(FieldReader& fields, messages::Generate& request) {
    std::string name;
    fields.read("kv_tolerance", name);
    fields.read("kv_max_lag", request.kv_max_lag);
    if (name.empty()) return;
    if (name == "never") {
        request.kv_tolerance = messages::KvTolerance::kNever;
    } else if (name == "max_lag") {
        request.kv_tolerance = messages::KvTolerance::kMaxLag;
    } else if (name == "keep") {
        request.kv_tolerance = messages::KvTolerance::kKeep;
    } else {
        fields.fail("kv_tolerance", "never, max_lag or keep");
    }
}

void read_draft_ids(FieldReader& fields, messages::Generate& request) {
    if (!fields.has("draft_ids")) return;
    fields.read("draft_ids", request.draft_ids.emplace());
}

void read_draft_key(FieldReader& fields, messages::Generate& request) {
    fields.read("draft_key", request.draft_key);
}

void refuse_routed_experts(FieldReader& fields, std::string_view why) {
    for (const std::string_view name :
         {"return_routed_experts",
          "routed_experts_start_len",
          "routed_experts_prompt_start",
          "stream_routed_experts",
          "routed_experts"}) {
        const Json* given = fields.find(name);
        if (given != nullptr && !asks_for_nothing(*given)) fields.refuse(name, why);
    }
}

void refuse_adapter(FieldReader& fields) {
    const Json* given = fields.find("lora_path");
    if (given != nullptr && !asks_for_nothing(*given)) fields.refuse("lora_path", kAdapterIsModel);
}

void refuse_session(FieldReader& fields) {
    const Json* given = fields.find("session_params");
    if (given != nullptr && !asks_for_nothing(*given))
        fields.refuse("session_params", "the turns of a session are requests of /generate");
}

void refuse_sampling_mask(FieldReader& fields) {
    const Json* given = fields.find("return_sampling_mask");
    if (given != nullptr && !asks_for_nothing(*given))
        fields.refuse("return_sampling_mask", "/generate and /inference/v1/generate return it");
}

void refuse_unsupported(FieldReader& fields, std::span<const std::string_view> served) {
    for (const Unsupported& entry : kUnsupported) {
        if (std::ranges::find(served, entry.name) != served.end()) continue;
        const Json* given = fields.find(entry.name);
        if (given != nullptr && !asks_for_nothing(*given)) fields.refuse(entry.name, entry.why);
    }
    refuse_other_values(fields, served);
}

}  // namespace pitstop::http
