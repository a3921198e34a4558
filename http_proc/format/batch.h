// Maps each request of a batch to its prompt, so that an error names the prompt.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <vector>

namespace pitstop::http {

// Returns the error; if there are several prompts, its text gets the prompt's number.
[[nodiscard]] Error error_of_prompt(std::size_t prompt, std::size_t num_prompts, Error error);

struct Batch {
    std::size_t num_prompts = 0;
    std::vector<std::size_t> prompts{};  // [request]: the number of its prompt

    // Returns the error of a request; its text gets the prompt's number.
    [[nodiscard]] Error error_of_request(std::size_t request, Error error) const;
};

}  // namespace pitstop::http
