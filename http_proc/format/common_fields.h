// Reads the fields common to all generating routes, in every dialect.
#pragma once

#include "http_proc/format/json_body.h"
#include "messages/generation.h"

#include <span>
#include <string_view>

namespace pitstop::http {

// All of these functions add errors to `fields`.

// Reads `logprobs_mode`, the distribution of reported logprobs, by our names and by vLLM's. The
// default is that of the dialect's engine: scaled for SGLang, raw for vLLM and OpenAI.
void read_logprobs_mode(FieldReader& fields, messages::LogprobsMode& mode);

// Reads pitstop's own `kv_tolerance` and `kv_max_lag`.
void read_kv_tolerance(FieldReader& fields, messages::Generate& request);

// Reads pitstop's own `draft_key`, and `draft_ids` on routes whose body has one prompt.
void read_draft_ids(FieldReader& fields, messages::Generate& request);
void read_draft_key(FieldReader& fields, messages::Generate& request);

// Reads the fields that decide when, where and with which cached KV a request runs: `priority`
// (larger first), the replica (`routed_dp_rank`, `data_parallel_rank`), `kv_tolerance` and
// `kv_max_lag`.
void read_placement(FieldReader& fields, messages::Generate& request);

// Returns whether a value requests nothing: null, false, "", or a container of only such
// values.
[[nodiscard]] bool asks_for_nothing(const nlohmann::json& value);

// Refuses each field that asks for a feature the engine lacks, in any dialect and anywhere in a
// body, so that none is ignored silently. Accepts values that request nothing. `served`: fields on
// this list that the caller reads itself.
void refuse_unsupported(FieldReader& fields, std::span<const std::string_view> served = {});
// Refuses an adapter's name (`lora_path`) in places where no route reads it.
void refuse_adapter(FieldReader& fields);
// Refuses `session_params` on routes whose requests cannot be turns of a session.
void refuse_session(FieldReader& fields);
// Refuses `return_sampling_mask` on routes that cannot return a mask.
void refuse_sampling_mask(FieldReader& fields);
// Refuses `return_routed_experts` and related fields on routes that return no routed experts.
void refuse_routed_experts(FieldReader& fields, std::string_view why);

}  // namespace pitstop::http
