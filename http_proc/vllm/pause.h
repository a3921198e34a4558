// vLLM's pause, which is also the first part of its sleep.
#pragma once

#include "base/result.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/task.h"
#include "messages/control.h"

#include <string_view>

namespace pitstop::http {

// Errors: kInvalidArgument: there is no such mode.
[[nodiscard]] Result<messages::PauseMode> vllm_pause_mode(std::string_view mode, bool clears_cache);

// Returns when all requests have stopped and, if requested, the cache is cleared.
[[nodiscard]] Task<Result<>> vllm_pause(
    Exchange& exchange, messages::PauseMode mode, bool clears_cache
);

}  // namespace pitstop::http
