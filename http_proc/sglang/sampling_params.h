// Parses the sampling_params of SGLang's /generate, an object.
//
// Only parses, without coroutines: the fuzz target runs it.
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

// Errors: kInvalidArgument, also for parameters that SGLang does not have.
[[nodiscard]] Result<SglangSampling> parse_sglang_sampling(const nlohmann::json& object);

}  // namespace pitstop::http
