// The workers of this replica: which of them have said hello, and the limits that they share.
//
// Thread: the loop thread only.
#pragma once

#include "base/result.h"
#include "messages/status.h"
#include "messages/steps.h"
#include "scheduler_proc/request.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// The most pages that a scheduler manages: a pool of a billion tokens at 16 per page.
inline constexpr std::int64_t kPagesMax = std::int64_t{1} << 26;

class Workers {
  public:
    explicit Workers(int tp) : hellos_(static_cast<std::size_t>(tp)) {}

    [[nodiscard]] int tp() const { return static_cast<int>(hellos_.size()); }
    [[nodiscard]] bool has(Rank rank) const;
    [[nodiscard]] bool is_complete() const;
    // Returns the ranks that have not said hello, in words: "rank 0, rank 2".
    [[nodiscard]] std::string who_is_missing() const;

    // Records a hello. REQUIRES: !has(hello.rank); hello.rank is in [0, tp).
    // Errors: kInvalidArgument, naming the rank and the field in which it differs from the flags or
    // from an earlier rank.
    Result<> handle_hello(messages::WorkerHello hello, std::int64_t page_size);

    // ---- REQUIRES: is_complete() ----
    [[nodiscard]] bool have_weights() const { return first().has_weights; }
    // Returns whether some rank can fit a second copy of the weights only into the memory of its KV
    // (--update-mode lend).
    [[nodiscard]] bool lend() const;
    // Returns the highest rank of adapters that all ranks compute; 0: some rank computes none.
    [[nodiscard]] std::int64_t adapter_rank_max() const;
    [[nodiscard]] const std::string& model_type() const { return first().model_type; }
    [[nodiscard]] ModelLimits limits() const;
    [[nodiscard]] std::int64_t num_pages() const;  // the fewest of any rank, at most kPagesMax
    [[nodiscard]] std::int64_t num_slots() const;  // the fewest of any rank
    // Returns whether a request has recurrent state in addition to its KV.
    [[nodiscard]] bool have_state() const { return first().state_bytes > 0; }
    // Returns how many checkpoints fit on the rank with the least room, at most kPagesMax.
    [[nodiscard]] std::int64_t num_checkpoints() const;
    // Returns the most drafts per row that every rank verifies.
    [[nodiscard]] std::int64_t drafted_max() const;
    // Returns why rank 0 compiles no grammars, or "". Rank 0 draws all restricted tokens.
    [[nodiscard]] std::string no_grammars() const;
    // Returns the digest of the loaded weights; empty if no rank computed its part.
    // Errors: as version_digest().
    [[nodiscard]] Result<std::string> digest() const;

    // Returns the contents of the hellos; `graph_bytes` is left out, because it changes.
    [[nodiscard]] std::vector<messages::WorkerStatus> status() const;

  private:
    [[nodiscard]] const messages::WorkerHello& first() const { return *hellos_.front(); }
    std::vector<std::optional<messages::WorkerHello>> hellos_;  // by rank
};

}  // namespace pitstop::scheduler
