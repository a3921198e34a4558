// The prompt that each request of a batch continues, so that an error names the prompt.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <vector>

namespace pitstop::http {

// Returns the error, with its prompt's number if there are several prompts.
[[nodiscard]] Error error_of_prompt(std::size_t prompt, std::size_t num_prompts, Error error);

struct Batch {
    std::size_t num_prompts = 0;
    std::vector<std::size_t> prompts{};  // by request

    // Returns the error of a request, with the number of its prompt.
    [[nodiscard]] Error error_of_request(std::size_t request, Error error) const;
};

}  // namespace pitstop::http
