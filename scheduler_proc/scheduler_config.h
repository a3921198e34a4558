// The settings of a replica's scheduler.
#pragma once

#include "base/fair_queue.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "messages/adapters.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::scheduler {

struct SchedulerConfig {
    ReplicaId replica{};
    int tp = 1;                              // ranks
    int nodes = 1;                           // machines of the ranks, with equally many on each
    std::int64_t page_size = 16;             // tokens per page; the workers use the same
    std::int64_t tokens_per_step_max = 512;  // --chunked-prefill-size
    std::int64_t running_max = 256;          // requests that hold pages; at most one per slot
    std::int64_t queue_len_max = 16384;      // requests that wait; at least 1
    Fairness fairness = Fairness::kFair;     // --scheduling
    // With recurrent state: a decode saves its state after trail_tokens, and a long prefill after
    // spare_tokens (--state-checkpoint-tokens); see KvPool::Size.
    std::int64_t trail_tokens = 16;
    std::int64_t spare_tokens = 1024;
    std::int64_t drafts_max = 0;                         // per row (--speculate); 0: off
    bool has_draft_budget = false;                       // --speculate auto
    std::int64_t draft_memory = std::int64_t{64} << 20;  // bytes (--draft-memory)
    // The share of the KV pool that conversations hold between their turns (--session-memory).
    double session_memory = 0.5;
    std::int64_t adapters_max = 16;   // loaded at once (--max-adapters)
    std::int64_t adapter_memory = 0;  // of resident adapters per rank (--adapter-memory); 0: any
    // adapters that were loaded before the tree was started again (--lost-adapters)
    std::vector<messages::LostAdapter> lost_adapters{};
    // a pass that takes longer is assumed never to end
    Duration step_timeout = std::chrono::seconds(300);
    // The epoch of the weights that the workers load; above 1 in a tree that was started again.
    Epoch epoch{1};
    std::string label{};
    std::string digest{};  // required digest of these weights; empty: any
};

// Sets what --speculate decides. Errors: `text` is neither off, auto, nor a number of drafts.
[[nodiscard]] Result<> set_speculation(std::string_view text, SchedulerConfig& config);

// Returns what is wrong with the settings, or nothing.
[[nodiscard]] std::optional<Error> problem_of(const SchedulerConfig& config);

}  // namespace pitstop::scheduler
