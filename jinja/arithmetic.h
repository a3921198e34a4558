// Python's unary and binary operators.
#pragma once

#include "base/result.h"
#include "jinja/ast.h"
#include "jinja/budget.h"
#include "jinja/value.h"

namespace pitstop::jinja {

// REQUIRES: not kAnd, kOr.
[[nodiscard]] Result<Value> binary(
    BinaryOp op, const Value& left, const Value& right, Budget& budget
);
[[nodiscard]] Result<Value> unary(UnaryOp op, const Value& of);

}  // namespace pitstop::jinja
