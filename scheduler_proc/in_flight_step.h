// Holds a step that was sent to the workers and is not answered by all of them.
#pragma once

#include "base/ids.h"
#include "base/time.h"
#include "messages/steps.h"
#include "scheduler_proc/epoch_range.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// Names a weight version, as spans and status do.
struct Version {
    Epoch epoch{1};
    std::string label{};
    std::string digest{};
    std::uint64_t serial = 1;  // another one for every commit and every new label
};

// Holds what must be remembered of a row to read its part of the result, even if its request is
// gone.
struct StepRow {
    RequestKey key{};
    std::int64_t run = 0;  // the request's, when planned
    std::int64_t begin = 0;
    std::int64_t end = 0;  // positions [0, end) have KV once the step is done
    std::int64_t num_scored = 0;
    std::int64_t num_routed = 0;
    bool samples = false;
    std::int64_t output_index = 0;  // if it samples
    std::size_t num_top = 0;        // per position, of top_ids and top_logprobs
    std::size_t num_ids = 0;        // per position, of ids_logprobs
    EpochRange kv{};                // the epochs that computed all KV its last position attends to
    // Where its tokens were known, so that the prefix cache may have them since: the pages that it
    // writes to, and the number of the first in its request.
    std::vector<PageId> pages{};
    std::int64_t first_page = 0;
    // Of the first row of a run: the prefix cache's pages that it begins on. Another request's step
    // may have been computing them.
    std::vector<PageId> borrowed{};
};

struct InFlightStep {
    StepId step{};
    Version version{};  // it runs under
    TimePoint sent_at{};
    messages::RouteShape routes{};   // of rows that report them
    std::vector<StepRow> rows{};     // in the plan's order
    std::vector<bool> is_done{};     // by rank
    messages::StepResult numbers{};  // rank 0's

    [[nodiscard]] bool is_complete() const;
    // Returns the ranks that have not answered, in words: "rank 0, rank 2".
    // On several machines also where: "rank 1 on node 1". REQUIRES: nodes divides the ranks.
    [[nodiscard]] std::string who_is_missing(int nodes) const;
    // Returns how rank 0's numbers disagree with the plan, or nothing.
    [[nodiscard]] std::optional<std::string> mismatch(const messages::StepResult& result) const;
    [[nodiscard]] std::optional<std::string> mismatch_of_routes(std::span<const std::uint8_t> given
    ) const;
};

// Holds one row's part of a result.
struct SampledToken {
    TokenId token{};
    float logprob = 0;
    std::int32_t rank = 0;  // 0: not asked for
    std::span<const TokenId> top_ids{};
    std::span<const float> top_logprobs{};
    std::span<const float> ids_logprobs{};
};
struct RowScores {
    std::span<const float> logprobs{};      // [num_scored]
    std::span<const std::int32_t> ranks{};  // [num_scored]
    std::span<const TokenId> top_ids{};     // [num_scored * num_top]
    std::span<const float> top_logprobs{};  // [num_scored * num_top]
    std::span<const float> ids_logprobs{};  // [num_scored * num_ids]
};

// Deals a result out, row by row in the plan's order.
// REQUIRES: !step.mismatch(step.numbers); the step outlives it.
class ResultReader {
  public:
    explicit ResultReader(const InFlightStep& step)
        : result_(step.numbers), route_bytes_(step.routes.row_bytes()) {}
    // REQUIRES: row.samples.
    SampledToken sampled(const StepRow& row);
    RowScores scores(const StepRow& row);
    std::span<const std::uint8_t> routes(const StepRow& row);  // [num_routed, row_bytes]
    // Returns what is not finite of the row that is read next, or null; is called once for each.
    const messages::NotFiniteRow* not_finite();

  private:
    const messages::StepResult& result_;
    std::int64_t route_bytes_;
    std::size_t routes_ = 0;
    std::size_t sampled_ = 0;
    std::size_t top_ = 0;
    std::size_t ids_ = 0;
    std::size_t scored_ = 0;
    std::size_t scored_top_ = 0;
    std::size_t scored_ids_ = 0;
    std::int64_t row_ = 0;
    std::size_t not_finite_ = 0;
};

}  // namespace pitstop::scheduler
