// Chooses the sizes of a model that options leave open: positions, pages of KV, rows of logits.
#pragma once

#include "base/result.h"
#include "tp_worker/model/engine.h"

#include <cstdint>

namespace pitstop::tp_worker {

// Page numbers suffice for kKvTokensMax tokens, with room for scratch pages after them.
inline constexpr std::int64_t kPageSizeMax = 4096;
inline constexpr std::int64_t kKvTokensMax = (std::int64_t{1} << 31) - 1 - kPageSizeMax;

// The facts that determine the default number of tokens of KV.
struct KvFacts {
    std::int64_t host_bytes = 0;   // of the machine or container; 0: unknown
    double share = 0;              // the part of host_bytes for KV
    std::int64_t token_bytes = 0;  // of all ranks together
    // of all requests' recurrent states, which take host memory before KV does
    std::int64_t states_bytes = 0;
    std::int64_t page_size = 0;  // tokens
    std::int64_t num_slots = 0;  // requests that run at once
    std::int64_t context = 0;    // tokens of a request, at most
};

// Returns a whole number of pages, in tokens: as many as fit into the share, but at most as many as
// the requests that run at once can fill. The result is at least kLeastKvBytes and a page, even if
// that exceeds both, and at most kKvTokensMax.
[[nodiscard]] std::int64_t default_kv_tokens(const KvFacts& facts);

// The memory that a request needs, on all ranks together.
struct RequestBytes {
    std::int64_t token = 0;  // of KV
    std::int64_t state = 0;  // of the request's recurrent state
};

// Returns the number of checkpoints of states that are kept if the option leaves it open. `left`:
// the bytes for checkpoints and KV together.
[[nodiscard]] std::int64_t default_num_checkpoints(
    std::int64_t left, std::int64_t state_bytes, std::int64_t num_slots
);

// On a GPU the numbers of pages and of checkpoints may stay open (0) until everything else is
// allocated: Engine::divide_gpu_memory. All ranks of a machine get the same.
// Errors: kInvalidArgument for the options' sizes, whatever the device has; kResourceExhausted if
// the states of the requests that run at once need more than the machine has.
[[nodiscard]] Result<ModelSizes> choose_sizes(
    const EngineOptions& options, const ModelConfig& config, bool is_cuda, const RequestBytes& bytes
);

}  // namespace pitstop::tp_worker
