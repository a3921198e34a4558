// The drafts of a step whose rows keep a recurrent state. A wrong draft cannot be removed from such
// a state. So the step stores the states before its drafts, and its blocks keep the inputs of their
// recurrences for the drafts (blocks/gated_delta.h). When the step has sampled, a pass over the
// right drafts advances the states. A token's bits do not depend on how tokens are cut into passes
// (P6), so these states have the bits of rows without drafts (P11).
//
// Bounded: by messages::kStateDraftsMax drafts.
#pragma once

#include "base/ids.h"
#include "tp_worker/blocks/step.h"

#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

class DraftReplay {
  public:
    // A row's drafts.
    struct Row {
        std::int32_t place = 0;        // of the row's state
        std::int64_t begin = 0;        // position of the first draft
        std::int64_t num = 0;          // at least 1
        std::int32_t saved_place = 0;  // gets the state after tokens [0, save_at)
        std::int64_t save_at = 0;      // 0: no state after a draft is saved
    };

    void clear();
    // `token_row` is the first draft's index in the step.
    void add(const Row& row, std::int32_t token_row);
    [[nodiscard]] std::span<const Row> rows() const { return rows_; }
    // Returns the drafts of all rows, by their index in the step.
    [[nodiscard]] std::span<const std::int32_t> token_rows() const { return token_rows_; }

    // Returns the pass over the first num_right[i] drafts of each row i; it has no tokens if all
    // are 0. Borrowed until the next call. REQUIRES: 0 <= num_right[i] <= rows()[i].num.
    [[nodiscard]] StepBatch make(std::span<const std::int64_t> num_right);

  private:
    void add_right(const Row& row, std::int32_t first, std::int64_t num);

    std::vector<Row> rows_{};
    std::vector<std::int32_t> token_rows_{};
    // The data of the pass that make() returns.
    std::vector<TokenId> tokens_{};  // only their number counts
    std::vector<std::int32_t> drafted_rows_{};
    std::vector<std::int32_t> positions_{};
    std::vector<std::int32_t> q_starts_{};
    std::vector<std::int32_t> kv_lens_{};
    std::vector<std::int32_t> places_{};
    std::vector<std::int32_t> saved_places_{};
    std::vector<std::int32_t> saved_ends_{};
};

}  // namespace pitstop::tp_worker
