#include "http_proc/format/batch.h"

#include <fmt/format.h>

#include <utility>

namespace pitstop::http {

Error error_of_prompt(std::size_t prompt, std::size_t num_prompts, Error error) {
    if (num_prompts < 2) return error;
    error.message =
        fmt::format("prompt {} of {} (the first is 0): {}", prompt, num_prompts, error.message);
    return error;
}

Error Batch::error_of_request(std::size_t request, Error error) const {
    return error_of_prompt(prompts[request], num_prompts, std::move(error));
}

}  // namespace pitstop::http
