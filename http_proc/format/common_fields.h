// Reads the fields common to all generating routes, in every dialect.
#pragma once

#include "http_proc/format/json_body.h"
#include "messages/generation.h"

#include <string_view>

namespace pitstop::http {

// All of them report problems in `fields`.

// Reads `logprobs_mode`: the distribution of reported logprobs, by our names and vLLM's. The
// default is that of the dialect's engine: SGLang's is scaled, vLLM's and OpenAI's raw.
void read_logprobs_mode(FieldReader& fields, messages::LogprobsMode& mode);

// Reads pitstop's own `kv_tolerance` and `kv_max_lag`.
void read_kv_tolerance(FieldReader& fields, messages::Generate& request);

// Reads pitstop's own `draft_key`, and `draft_ids` where one prompt has them.
void read_draft_ids(FieldReader& fields, messages::Generate& request);
void read_draft_key(FieldReader& fields, messages::Generate& request);

// Reads the fields that decide when, where and with which cached KV a request runs: `priority`
// (larger first), the replica (`routed_dp_rank`, `data_parallel_rank`), `kv_tolerance` and
// `kv_max_lag`.
void read_placement(FieldReader& fields, messages::Generate& request);

// Returns whether a member's value requests nothing: null, false, "", or a container of only such
// values.
[[nodiscard]] bool asks_for_nothing(const nlohmann::json& value);

// Refuses by name any feature that the engine lacks, in any dialect and anywhere in a body: such a
// field is never ignored silently. Null, false, "" and containers of only such values request
// nothing. `served`: one of these fields, which the caller reads.
void refuse_unsupported(FieldReader& fields, std::string_view served = {});
// Refuses the name of an adapter (`lora_path`) where no route reads it.
void refuse_adapter(FieldReader& fields);
// Refuses `session_params` on routes whose requests are no turns of a session.
void refuse_session(FieldReader& fields);
// Refuses `return_sampling_mask` on routes whose answers have none.
void refuse_sampling_mask(FieldReader& fields);
// Refuses `return_routed_experts`, and the fields that go with it, on routes without routes.
void refuse_routed_experts(FieldReader& fields, std::string_view why);

}  // namespace pitstop::http
