// Python's two ways to format: "%s: %d" % (name, count), and "{}: {:>5}".format(name, count).
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/value.h"

#include <string>
#include <string_view>

namespace pitstop::jinja {

// `args`: a tuple, a mapping (for "%(name)s"), or the one value.
[[nodiscard]] Result<Value> percent_format(const Text& format, const Value& args, Budget& budget);

[[nodiscard]] Result<Value> brace_format(const Text& format, const Args& args, Budget& budget);

}  // namespace pitstop::jinja
