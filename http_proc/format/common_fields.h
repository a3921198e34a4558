// Reads the fields that every route which generates takes, whatever its dialect.
#pragma once

#include "http_proc/format/json_body.h"
#include "messages/generation.h"

#include <string_view>

namespace pitstop::http {

// Says why what asks for a grammar is refused, and what to do instead.
inline constexpr std::string_view kNoGrammars =
    "there are no grammars; ask for the form in the prompt and check what comes, or have a "
    "function "
    "called: tools with tool_choice begin the call";

// All of them leave problems in `fields`.

// Reads `logprobs_mode`: which distribution reported logprobs come from, in our names and in
// vLLM's. The default is that of the dialect's engine: SGLang's is scaled, vLLM's and OpenAI's raw.
void read_logprobs_mode(FieldReader& fields, messages::LogprobsMode& mode);

// Reads `kv_tolerance` and `kv_max_lag`, pitstop's own.
void read_kv_tolerance(FieldReader& fields, messages::Generate& request);

// Reads the sampling parameters that have one name in every dialect.
void read_sampling(FieldReader& fields, messages::SamplingParams& params);

// Refuses by name what read_sampling() takes where it is not read: beside the object of sampling
// parameters. There it would be dropped in silence.
void refuse_sampling(FieldReader& fields);

// Reads what decides when, where and on what a request runs: `priority` (larger first), the replica
// (`routed_dp_rank`, `data_parallel_rank`), `kv_tolerance` and `kv_max_lag`.
void read_placement(FieldReader& fields, messages::Generate& request);

// Tells whether a member's value asks for nothing: null, false, "" and what holds nothing else.
[[nodiscard]] bool asks_for_nothing(const nlohmann::json& value);

// Refuses by name what the engine has not, in whichever dialect and wherever in a body it is asked
// for: it is never dropped in silence. Null, false, "" and what holds nothing else ask for nothing.
void refuse_unsupported(FieldReader& fields);
// Refuses routes (`return_routed_experts`) where they are not answered.
void refuse_routed_experts(FieldReader& fields);

}  // namespace pitstop::http
