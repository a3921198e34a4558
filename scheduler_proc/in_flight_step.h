// A step that was sent to the workers and that at least one of them has not answered.
#pragma once

#include "base/ids.h"
#include "base/time.h"
#include "messages/adapters.h"
#include "messages/steps.h"
#include "scheduler_proc/epoch_range.h"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::scheduler {

// A weight version, as spans and the status report it.
struct Version {
    Epoch epoch{1};
    std::string label{};
    std::string digest{};
    std::uint64_t serial = 1;  // new for every commit and every new label
};

// The part of a planned row that is needed to read its result, even if its request has ended.
struct StepRow {
    RequestKey key{};
    std::int64_t run = 0;  // the request's `run` when the row was planned
    std::int64_t begin = 0;
    std::int64_t end = 0;  // after the step, positions [0, end) have KV
    std::int64_t num_scored = 0;
    std::int64_t num_routed = 0;
    bool samples = false;
    std::int64_t output_index = 0;  // of the row's first sampled token, if it samples
    std::size_t num_top = 0;        // top_ids and top_logprobs per position
    std::size_t num_ids = 0;        // ids_logprobs per position
    bool has_supports = false;      // the result has the supports of sampled tokens
    EpochRange kv{};                // epochs of all KV that its last position attends to
    std::optional<messages::AdapterId> adapter{};
    Epoch kv_min_adapter{};         // with an adapter: its oldest version that computed this KV
    std::vector<TokenId> drafts{};  // the row's last tokens, if they are guesses
    // Pages that this row writes to and that the prefix cache may have. Set if the row's tokens
    // were known when it was planned. first_page: the index of the first one within its request.
    std::vector<PageId> pages{};
    std::int64_t first_page = 0;
    // For the first row of a run: the prefix cache's pages that the run begins with. Another
    // request's step in flight may have been computing these pages.
    std::vector<PageId> borrowed{};

    [[nodiscard]] std::size_t num_sampled() const { return samples ? 1 + drafts.size() : 0; }
};

struct InFlightStep {
    StepId step{};
    Version version{};  // the version that the step runs under
    TimePoint sent_at{};
    bool is_alone = false;          // planned while no other step ran
    messages::RouteShape routes{};  // the shape of the routes that rows report
    std::map<messages::AdapterId, messages::AdapterVersion> adapters{};  // of its rows' adapters
    std::vector<StepRow> rows{};                                         // in the plan's order
    std::vector<bool> is_done{};                                         // by rank
    messages::StepResult numbers{};                                      // rank 0's numbers

    [[nodiscard]] bool is_complete() const;
    // Returns the tokens of all rows, drafts included.
    [[nodiscard]] std::int64_t num_tokens() const;
    [[nodiscard]] std::int64_t num_drafts() const;
    // Returns the ranks that have not answered, in words: "rank 0, rank 2". On several machines
    // each has its node: "rank 1 on node 1". REQUIRES: `nodes` divides the number of ranks.
    [[nodiscard]] std::string who_is_missing(int nodes) const;
    // Returns how rank 0's numbers disagree with the plan, or nothing.
    [[nodiscard]] std::optional<std::string> mismatch(const messages::StepResult& result) const;
    [[nodiscard]] std::optional<std::string> mismatch_of_routes(std::span<const std::uint8_t> given
    ) const;
    [[nodiscard]] std::optional<std::string> mismatch_of_supports(
        std::span<const messages::DrawSupport> given
    ) const;
    [[nodiscard]] std::optional<std::string> mismatch_of_load(std::span<const std::int64_t> given
    ) const;
};

// One row's part of a result.
struct SampledToken {
    std::optional<TokenId> token{};  // absent: every token is banned, or a value is not finite
    float logprob = 0;
    std::int32_t rank = 0;  // 0: not requested
    std::span<const TokenId> top_ids{};
    std::span<const float> top_logprobs{};
    std::span<const float> ids_logprobs{};
    const messages::DrawSupport* support = nullptr;  // null: not requested
};
struct RowScores {
    std::span<const float> logprobs{};      // [num_scored]
    std::span<const std::int32_t> ranks{};  // [num_scored]
    std::span<const TokenId> top_ids{};     // [num_scored * num_top]
    std::span<const float> top_logprobs{};  // [num_scored * num_top]
    std::span<const float> ids_logprobs{};  // [num_scored * num_ids]
};

// Reads a result row by row, in the plan's order.
// REQUIRES: !step.mismatch(step.numbers); the step outlives the reader.
class ResultReader {
  public:
    explicit ResultReader(const InFlightStep& step)
        : result_(step.numbers), route_bytes_(step.routes.row_bytes()) {}
    // Returns the tokens that the row samples: one, and one more for each draft that is right.
    // Empty if the row does not sample. Valid until the next call.
    std::span<const SampledToken> sampled(const StepRow& row);
    RowScores scores(const StepRow& row);
    std::span<const std::uint8_t> routes(const StepRow& row);  // [num_routed, row_bytes]
    // Returns the next row's entry if the row has values that are not finite, or null. Call once
    // per row.
    const messages::NotFiniteRow* not_finite();

  private:
    SampledToken take_sampled(const StepRow& row);

    const messages::StepResult& result_;
    std::vector<SampledToken> row_tokens_{};
    std::int64_t route_bytes_;
    std::size_t routes_ = 0;
    std::size_t sampled_ = 0;
    std::size_t undrawn_ = 0;
    std::size_t top_ = 0;
    std::size_t ids_ = 0;
    std::size_t supports_ = 0;
    std::size_t scored_ = 0;
    std::size_t scored_top_ = 0;
    std::size_t scored_ids_ = 0;
    std::int64_t row_ = 0;
    std::size_t not_finite_ = 0;
};

}  // namespace pitstop::scheduler
