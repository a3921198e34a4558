// The workers of this replica: which have said hello, and what they agree on.
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

    // REQUIRES: !has(hello.rank), which is in [0, tp).
    // Errors: kInvalidArgument, naming the rank and the field in which it differs from the flags or
    // from an earlier rank.
    Result<> handle_hello(messages::WorkerHello hello, std::int64_t page_size);

    // ---- REQUIRES: is_complete() ----
    [[nodiscard]] bool have_weights() const { return first().has_weights; }
    // Whether a rank has no room for two copies of the weights except in the memory of its KV
    // (--update-mode lend).
    [[nodiscard]] bool lend() const;
    // The highest rank of adapters that all ranks compute; 0: some rank computes none.
    [[nodiscard]] std::int64_t adapter_rank_max() const;
    [[nodiscard]] const std::string& model_type() const { return first().model_type; }
    [[nodiscard]] ModelLimits limits() const;
    [[nodiscard]] std::int64_t num_pages() const;  // the fewest of any rank, at most kPagesMax
    [[nodiscard]] std::int64_t num_slots() const;  // the fewest of any rank
    // Whether a request has recurrent state besides its KV.
    [[nodiscard]] bool have_state() const { return first().state_bytes > 0; }
    // How many copies of such states fit: on the rank with the fewest, at most kPagesMax.
    [[nodiscard]] std::int64_t num_checkpoints() const;
    // Returns the most drafts of a row that every rank verifies.
    [[nodiscard]] std::int64_t drafted_max() const;
    // Returns why rank 0, which draws what grammars restrict, compiles none; empty: it does.
    [[nodiscard]] std::string no_grammars() const;
    // Returns the digest of the loaded weights; empty if no rank computed its part.
    // Errors: as version_digest().
    [[nodiscard]] Result<std::string> digest() const;

    // Returns the contents of the hellos, without `graph_bytes`, which change.
    [[nodiscard]] std::vector<messages::WorkerStatus> status() const;

  private:
    [[nodiscard]] const messages::WorkerHello& first() const { return *hellos_.front(); }
    std::vector<std::optional<messages::WorkerHello>> hellos_;  // by rank
};

}  // namespace pitstop::scheduler
