// How long work on another thread is told to stop: asked now and then by whoever works.
#pragma once

#include "base/result.h"

#include <functional>
#include <optional>

namespace pitstop {

// Why to stop now, or nothing. Empty: nothing ever interrupts. It must be cheap (it is asked about
// once in 100 us of work) and may be called on any thread.
using Interrupt = std::function<std::optional<Error>()>;

}  // namespace pitstop
