// Python's comparisons: equality, order and membership.
#pragma once

#include "base/result.h"
#include "jinja/ast.h"
#include "jinja/budget.h"
#include "jinja/value.h"

#include <compare>

namespace pitstop::jinja {

[[nodiscard]] Result<bool> equals(const Value& a, const Value& b, Budget& budget);
// Fails if the two values have no order.
[[nodiscard]] Result<std::partial_ordering> order(const Value& a, const Value& b, Budget& budget);
[[nodiscard]] Result<bool> contains(const Value& container, const Value& item, Budget& budget);
[[nodiscard]] Result<bool> compare(
    CompareOp op, const Value& left, const Value& right, Budget& budget
);

}  // namespace pitstop::jinja
