// Makes vLLM's pause, which its sleep begins with.
#pragma once

#include "base/result.h"
#include "http_proc/server/exchange.h"
#include "http_proc/server/task.h"
#include "messages/control.h"

#include <string_view>

namespace pitstop::http {

// Errors: kInvalidArgument, no such mode.
[[nodiscard]] Result<messages::PauseMode> vllm_pause_mode(std::string_view mode, bool clears_cache);

// Comes back when everything stands still and the cache is cleared.
[[nodiscard]] Task<Result<>> vllm_pause(
    Exchange& exchange, messages::PauseMode mode, bool clears_cache
);

}  // namespace pitstop::http
