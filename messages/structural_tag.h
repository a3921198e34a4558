// The forms of a structural tag, a grammar that says which parts of an output have which form
// (SamplingParams::structural_tag).
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace pitstop::messages {

// Returns a structural tag in its present form. Other engines also accept an earlier form, which
// this function converts: `triggers`, and `structures` of begin, schema and end. Any other value is
// returned as it is.
[[nodiscard]] nlohmann::ordered_json in_present_form(nlohmann::ordered_json tag);

}  // namespace pitstop::messages
