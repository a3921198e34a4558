// Recognizes the names that a wrapper of a trainer's model leaves in front of its tensors' own.
#pragma once

#include "tp_worker/weights/weight_layout.h"

#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

// Returns what stands before a name of this model: "module." of "module.model.norm.weight"; empty:
// the name is the model's, or nobody's.
[[nodiscard]] std::string_view wrapper_of(const WeightLayout& layout, std::string_view name);

[[nodiscard]] inline bool is_ignored_or_wrapped(const WeightLayout& layout, std::string_view name) {
    return layout.is_ignored(name) || !wrapper_of(layout, name).empty();
}

// Says it once per wrapper, for all tensors in `named` (they have a `name`).
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
            "{} names begin with '{}'; without it they are this model's: take it off before "
            "sending",
            count,
            wrapper
        ));
    }
    return problems;
}

}  // namespace pitstop::tp_worker
