// An answer's token counts, for the usage in every dialect.
#pragma once

#include "messages/generation.h"

#include <cstdint>
#include <optional>

namespace pitstop::http {

struct Usage {
    std::int64_t prompt_tokens = 0;
    std::int64_t completion_tokens = 0;
    std::int64_t cached_tokens = 0;  // prompt tokens that were not computed
    // prompt tokens that were cached without a recurrent state after them and were computed again
    std::int64_t replayed_tokens = 0;
    // thinking tokens of the output, markers included; null: thinking is not separated
    std::optional<std::int64_t> thinking_tokens{};

    void add(const messages::OutputChunk& chunk) {
        completion_tokens += static_cast<std::int64_t>(chunk.tokens.size());
        if (!chunk.counts) return;
        prompt_tokens = chunk.counts->prompt_tokens;
        cached_tokens = chunk.counts->cached_tokens;
        replayed_tokens = chunk.counts->replayed_tokens;
    }
};

}  // namespace pitstop::http
