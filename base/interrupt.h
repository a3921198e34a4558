// Stops work on another thread: the working thread checks regularly whether to stop.
#pragma once

#include "base/result.h"

#include <functional>
#include <optional>

namespace pitstop {

// Returns the reason to stop now, or nothing. An empty function never interrupts. The function must
// be cheap: it is called about once per 100 us of work, on any thread.
using Interrupt = std::function<std::optional<Error>()>;

}  // namespace pitstop
