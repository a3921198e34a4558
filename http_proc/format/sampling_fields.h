// Reads and writes sampling parameters, whose names and meanings are in messages/sampling.h.
#pragma once

#include "http_proc/format/json_body.h"
#include "messages/sampling.h"

#include <nlohmann/json_fwd.hpp>

#include <string_view>
#include <vector>

namespace pitstop::http {

// Returns the names of the sampling parameters that bodies may have. Parameters that exist only on
// the bus are not included.
[[nodiscard]] const std::vector<std::string_view>& sampling_names();

// Reads the sampling parameters that have one name in every dialect: all except the limits of the
// output's length and the seed. Reports problems in `fields`.
void read_sampling(FieldReader& fields, messages::SamplingParams& params);

// Refuses sampling parameters by name outside their object, where they would be ignored silently.
void refuse_sampling(FieldReader& fields);

// Returns the parameters as vLLM's SamplingParams names them. Lists that restrict nothing and
// absent values are left out.
[[nodiscard]] nlohmann::ordered_json vllm_sampling(messages::SamplingParams params);

}  // namespace pitstop::http
