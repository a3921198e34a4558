// Reads what is inside a value: its attributes, items and slices, and what a loop goes through.
#pragma once

#include "base/result.h"
#include "jinja/budget.h"
#include "jinja/value.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::jinja {

// Finds mapping[key]; null where there is none.
[[nodiscard]] Result<const Value*> find_item(
    const Mapping& mapping, const Value& key, Budget& budget
);
// A key that is there already keeps its place and gets the new value.
[[nodiscard]] Result<> set_item(Mapping& mapping, Value key, Value value, Budget& budget);

// Gets value.name: a method, else an item; undefined where there is neither. For a loop and a macro
// see render.h.
[[nodiscard]] Result<Value> get_attribute(const Value& of, const std::string& name);
// Gets value[key]: an item, else a method.
[[nodiscard]] Result<Value> get_item(const Value& of, const Value& key, Budget& budget);

struct SliceBounds {
    std::optional<std::int64_t> begin{};
    std::optional<std::int64_t> end{};
    std::int64_t step = 1;  // not 0
};
[[nodiscard]] Result<Value> slice(const Value& of, const SliceBounds& bounds, Budget& budget);

// Returns what a loop goes through. An iterator is used up.
[[nodiscard]] Result<std::vector<Value>> items_of(const Value& value, Budget& budget);
[[nodiscard]] bool is_iterable(const Value& value);
// Returns len(); nothing where Python has none. A text's is counted.
[[nodiscard]] Result<std::optional<std::size_t>> length_of(const Value& value, Budget& budget);

}  // namespace pitstop::jinja
