// Access to the inside of a value: attributes, items, slices, and the items of a loop.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/value.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::jinja {

// Finds mapping[key]; null if absent.
[[nodiscard]] Result<const Value*> find_item(
    const Mapping& mapping, const Value& key, Budget& budget
);
// An existing key keeps its place and gets the new value.
[[nodiscard]] Result<> set_item(Mapping& mapping, Value key, Value value, Budget& budget);

// Returns value.name: a method, else an item, else undefined. For a loop and a macro
// see renderer.h.
[[nodiscard]] Result<Value> get_attribute(const Value& of, const std::string& name);
// Returns value[key]: an item, else a method.
[[nodiscard]] Result<Value> get_item(const Value& of, const Value& key, Budget& budget);

struct SliceBounds {
    std::optional<std::int64_t> begin{};
    std::optional<std::int64_t> end{};
    std::int64_t step = 1;  // not 0
};
[[nodiscard]] Result<Value> slice(const Value& of, const SliceBounds& bounds, Budget& budget);

// Returns the items that a loop visits. An iterator is exhausted by the call.
[[nodiscard]] Result<std::vector<Value>> items_of(const Value& value, Budget& budget);
[[nodiscard]] bool is_iterable(const Value& value);
// Returns len(); nothing if Python has none. Counting a text's length costs steps.
[[nodiscard]] Result<std::optional<std::size_t>> length_of(const Value& value, Budget& budget);

}  // namespace pitstop::jinja
