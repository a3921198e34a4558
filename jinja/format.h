// Python's str.format as chat templates use it: "{}, {0} and {name}".format(value, name=value).
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/value.h"

namespace pitstop::jinja {

// Each field is written like str(). "{{" and "}}" are braces.
// Errors: a field without an argument; a field with an attribute, a conversion or a specification
// ("{x.y}", "{!r}", "{:>5}"). No published chat template is known to use these.
[[nodiscard]] Result<Value> brace_format(const Text& format, const Args& args, Budget& budget);

}  // namespace pitstop::jinja
