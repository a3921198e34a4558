// Tells work on another thread to stop: the working thread asks regularly.
#pragma once

#include "base/result.h"

#include <functional>
#include <optional>

namespace pitstop {

// Returns the reason to stop now, or nothing. An empty function never interrupts. It must be cheap
// (it is called about once per 100 us of work) and may be called on any thread.
using Interrupt = std::function<std::optional<Error>()>;

}  // namespace pitstop
