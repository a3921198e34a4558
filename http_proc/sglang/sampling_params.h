// Parses the object sampling_params of SGLang's /generate.
//
// Has no coroutines, so that a fuzz target can run it.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/sampling.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <vector>

namespace pitstop::http {

struct SglangSampling {
    messages::SamplingParams params{};
    std::int64_t n = 1;
    std::int64_t stream_interval = 1;
    std::vector<TokenId> unused_stop_ids{};  // stop_token_ids that have no effect
};

// Errors: kInvalidArgument, also for parameters that SGLang lacks.
[[nodiscard]] Result<SglangSampling> parse_sglang_sampling(const nlohmann::json& object);

}  // namespace pitstop::http
