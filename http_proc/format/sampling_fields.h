// Reads and writes sampling parameters, whose names and meanings are in messages/sampling.h.
#pragma once

#include "http_proc/format/json_body.h"
#include "messages/sampling.h"

#include <nlohmann/json_fwd.hpp>

#include <string_view>
#include <vector>

namespace pitstop::http {

// Returns the names of the sampling parameters that bodies may have, without those that exist on
// the bus only.
[[nodiscard]] const std::vector<std::string_view>& sampling_names();

// Reads the sampling parameters that have one name in every dialect: all except the seed and the
// limits of the output's length. `fields` gets the errors.
void read_sampling(FieldReader& fields, messages::SamplingParams& params);

// Refuses sampling parameters outside of their object, where they would be ignored silently.
void refuse_sampling(FieldReader& fields);

// Returns the parameters under the names of vLLM's SamplingParams. Leaves out absent values, and
// lists that restrict nothing.
[[nodiscard]] nlohmann::ordered_json vllm_sampling(messages::SamplingParams params);

}  // namespace pitstop::http
