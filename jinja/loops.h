// The value `loop` of a running loop. Source: Jinja 3.1, runtime.py, LoopContext.
//
// Pure: functions of their arguments.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/scope.h"
#include "jinja/value.h"

#include <functional>
#include <optional>
#include <string_view>

namespace pitstop::jinja {

// Returns the item of the next turn, or nothing. The template's condition selects the items, so
// this renders expressions.
using PullItem = std::function<Result<std::optional<Value>>(Loop&)>;

// Returns `loop.name`. Looks one item ahead for `last` and `nextitem`, and through all items for
// the number of turns, if a condition selects the items.
Result<Value> loop_attribute(Loop& loop, std::string_view name, const PullItem& pull);

// Calls loop.cycle() or loop.changed().
Result<Value> call_loop(const LoopMethod& method, Args args, Budget& budget);

}  // namespace pitstop::jinja
