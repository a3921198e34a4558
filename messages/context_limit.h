// Refuses a request that does not fit into the model's context. Agents act on this refusal, by
// shortening what they send, so front ends have words of their own for it: they need its numbers.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <optional>

namespace pitstop::messages {

struct ContextLimit {
    std::int64_t prompt_len = 0;
    std::int64_t output_len = 0;  // as many as are asked for; without a number 1
    std::int64_t context_len = 0;

    [[nodiscard]] bool fits() const {
        return prompt_len <= context_len && output_len <= context_len - prompt_len;
    }

    friend bool operator==(const ContextLimit&, const ContextLimit&) = default;
};

[[nodiscard]] Error beyond_context(const ContextLimit& limit);
// Reads the numbers of an error that beyond_context() made; nothing: it is another error.
[[nodiscard]] std::optional<ContextLimit> context_limit_of(const Error& error);

}  // namespace pitstop::messages
