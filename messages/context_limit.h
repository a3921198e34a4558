// The refusal of a request that does not fit into the model's context. Agents shorten the prompt
// when they get this error. Each front end words the error as its clients expect, and needs the
// numbers for that.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <optional>

namespace pitstop::messages {

struct ContextLimit {
    std::int64_t prompt_len = 0;
    std::int64_t output_len = 0;  // the requested number of tokens; 1 if none was given
    std::int64_t context_len = 0;

    [[nodiscard]] bool fits() const {
        return prompt_len <= context_len && output_len <= context_len - prompt_len;
    }

    friend bool operator==(const ContextLimit&, const ContextLimit&) = default;
};

[[nodiscard]] Error beyond_context(const ContextLimit& limit);
// Returns the numbers in an error that beyond_context() made; nothing for any other error.
[[nodiscard]] std::optional<ContextLimit> context_limit_of(const Error& error);

}  // namespace pitstop::messages
