// Fields that every route which generates takes, whatever its dialect.
//
// `logprobs_mode`: which distribution reported logprobs come from, in our names and in vLLM's. The
// default is that of the dialect's engine: SGLang's is scaled, vLLM's and OpenAI's raw.
#pragma once

#include "http_proc/json_body.h"
#include "messages/generation.h"

#include <string>

namespace pitstop {

// Names an error in `fields` where the value is none.
inline void read_logprobs_mode(FieldReader& fields, LogprobsMode& mode) {
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

// `kv_tolerance` and `kv_max_lag`, pitstop's own, of any route that generates.
inline void read_kv_tolerance(FieldReader& fields, Generate& request) {
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

}  // namespace pitstop
