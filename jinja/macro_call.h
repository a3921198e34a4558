// Gives the arguments of a call to the parameters of a macro. Source: Jinja 3.1, runtime.py,
// Macro.__call__.
//
// Pure: functions of their arguments.
#pragma once

#include "base/result.h"
#include "jinja/ast.h"
#include "jinja/budget.h"
#include "jinja/builtins.h"
#include "jinja/scope.h"
#include "jinja/value.h"

#include <functional>

namespace pitstop::jinja {

// Returns the value of a parameter's default, which sees the parameters before it.
using EvalDefault = std::function<Result<Value>(const Expr&, const Scope&)>;

// Sets each parameter in `scope`, the macro's own; and `kwargs` and `varargs`, if its body uses
// them. Errors: the macro does not take an argument.
Result<> bind_arguments(
    const MacroDefinition& definition,
    Args args,
    Scope& scope,
    Budget& budget,
    const EvalDefault& eval_default
);

}  // namespace pitstop::jinja
