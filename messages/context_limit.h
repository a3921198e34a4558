// The refusal of a request that does not fit into the model's context. Agents react to this error
// by shortening the prompt. Each front end words the error as its clients expect, and needs its
// numbers for that.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <optional>

namespace pitstop::messages {

struct ContextLimit {
    std::int64_t prompt_len = 0;
    std::int64_t output_len = 0;  // the requested number of tokens; if none was given, 1
    std::int64_t context_len = 0;

    [[nodiscard]] bool fits() const {
        return prompt_len <= context_len && output_len <= context_len - prompt_len;
    }

    friend bool operator==(const ContextLimit&, const ContextLimit&) = default;
};

[[nodiscard]] Error beyond_context(const ContextLimit& limit);
// Returns the numbers of an error that beyond_context() made; nothing for another error.
[[nodiscard]] std::optional<ContextLimit> context_limit_of(const Error& error);

}  // namespace pitstop::messages
