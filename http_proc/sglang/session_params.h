// Parses the session_params of SGLang's /generate, an object: {id, rid, offset, replace,
// drop_previous_output}.
//
// Only parses, without coroutines: the fuzz target runs it.
#pragma once

#include "base/result.h"
#include "messages/generation.h"

#include <nlohmann/json_fwd.hpp>

namespace pitstop::http {

// Without an id the prompt is no turn. Errors: kInvalidArgument, also for other members.
[[nodiscard]] Result<> read_session_params(const nlohmann::json& value, messages::Generate& prompt);

}  // namespace pitstop::http
