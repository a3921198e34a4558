// Tells work on another thread to stop: whoever works asks now and then.
#pragma once

#include "base/result.h"

#include <functional>
#include <optional>

namespace pitstop {

// Returns why to stop now, or nothing. An empty function never interrupts. It must be cheap (it is
// asked about once in 100 us of work) and may be called on any thread.
using Interrupt = std::function<std::optional<Error>()>;

}  // namespace pitstop
