// Recognizes prefixes that a wrapper of a trainer's model puts before the names of tensors.
#pragma once

#include "tp_worker/weights/weight_layout.h"

#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

// Returns the prefix of a name of this model: "module." for "module.model.norm.weight"; empty if
// the name is the model's own, or unknown.
[[nodiscard]] std::string_view wrapper_of(const WeightLayout& layout, std::string_view name);

[[nodiscard]] inline bool is_ignored_or_wrapped(const WeightLayout& layout, std::string_view name) {
    return layout.is_ignored(name) || !wrapper_of(layout, name).empty();
}

// Reports a wrapper once, for all tensors in `named` (which have a `name`).
template <class Named>
[[nodiscard]] std::vector<std::string> wrapped_problems(
    const WeightLayout& layout, const Named& named
) {
    std::map<std::string_view, std::size_t> counts;
    for (const auto& each : named) {
        if (const std::string_view wrapper = wrapper_of(layout, each.name); !wrapper.empty())
            ++counts[wrapper];
    }
    std::vector<std::string> problems;
    for (const auto& [wrapper, count] : counts) {
        problems.push_back(fmt::format(
            "{} names begin with '{}'; without it they are this model's: remove it before "
            "sending",
            count,
            wrapper
        ));
    }
    return problems;
}

}  // namespace pitstop::tp_worker
