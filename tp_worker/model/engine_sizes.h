// Chooses what options leave open of a model's sizes: positions, pages of KV, rows of logits.
#pragma once

#include "base/result.h"
#include "tp_worker/model/engine.h"

#include <cstdint>

namespace pitstop::tp_worker {

// Pages can number so many tokens of KV, with room for scratch pages behind them.
inline constexpr std::int64_t kPageSizeMax = 4096;
inline constexpr std::int64_t kKvTokensMax = (std::int64_t{1} << 31) - 1 - kPageSizeMax;

// Holds what the default number of tokens of KV is made of.
struct KvFacts {
    std::int64_t host_bytes = 0;   // what the machine or container has; 0: not known
    double share = 0;              // the part of them that KV may have
    std::int64_t token_bytes = 0;  // all ranks' together
    std::int64_t page_size = 0;    // tokens
    std::int64_t num_slots = 0;    // requests that run at once
    std::int64_t context = 0;      // tokens of a request, at most
};

// Returns a whole number of pages, in tokens: what the share holds, but not more than as many
// requests can fill as run at once, and at least kLeastKvBytes and a page. At most kKvTokensMax.
[[nodiscard]] std::int64_t default_kv_tokens(const KvFacts& facts);

// On a GPU the number of pages may stay open (0) until what else takes memory is there:
// Engine::divide_gpu_memory. All ranks of a machine find the same.
// Errors: kInvalidArgument, what the options say of sizes, whatever the device has.
[[nodiscard]] Result<ModelSizes> choose_sizes(
    const EngineOptions& options,
    const ModelConfig& config,
    bool is_cuda,
    std::int64_t token_bytes_all_ranks
);

}  // namespace pitstop::tp_worker
