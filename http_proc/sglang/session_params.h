// Parses the object session_params of SGLang's /generate: {id, rid, offset, replace,
// drop_previous_output}.
//
// Has no coroutines, so that a fuzz target can run it.
#pragma once

#include "base/result.h"
#include "messages/generation.h"

#include <nlohmann/json_fwd.hpp>

namespace pitstop::http {

// Without an id, the prompt is no turn. Errors: kInvalidArgument, also for other members.
[[nodiscard]] Result<> read_session_params(const nlohmann::json& value, messages::Generate& prompt);

}  // namespace pitstop::http
