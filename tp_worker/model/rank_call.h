// The ranks' joint work for one call of the sampler (sampler.h), if each has a part of the
// vocabulary. Each rank draws from its part, sums it, and reports 20 bytes per row
// (kernels/rank_records.h). From these every rank computes the same result. If the rank of an id in
// the vocabulary is wanted, 4 more bytes follow: how many logits of the part precede the id's.
//
// A row is *whole* if its draw or its report needs all logits in one place: it truncates, has
// penalties or biases, or reports the top or given ids. Rank 0 gathers such rows, and all rows
// between the first and the last of them. Rank 0 draws for all ranks, whose records of the row are
// empty. The softmax sums of a whole row are merged from the parts, as for any other row, except
// the sums over edited or truncated logits. So a number that a row reports does not depend on the
// row's other requests, and scoring has the bits of sampling (P6).
//
// Owns: the host's arrays, which the transfers fill.
#pragma once

#include "kernels/ops.h"
#include "tp_worker/model/logit_view.h"
#include "tp_worker/model/sampler.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

class Sampler::RankCall {
  public:
    // `rows` outlive this object. The positions of their draws are relative to `first_position`.
    RankCall(
        Sampler& sampler,
        const RowLogits& logits,
        std::span<const SampledRow> rows,
        std::uint32_t first_position
    );
    RankCall(const RankCall&) = delete;
    RankCall& operator=(const RankCall&) = delete;

    // Returns the bytes of a rank's counts: a multiple of 16 (exchange.h).
    [[nodiscard]] static std::int64_t count_bytes(std::int64_t num_rows);

    // The rows that are gathered to rank 0.
    [[nodiscard]] std::size_t whole_begin() const { return whole_begin_; }
    [[nodiscard]] std::size_t num_whole() const { return num_whole_; }

    // Places the call's standing arrays. On rank 0, drawn[i].choice is the address of rank 0's draw
    // of row i, if that row is whole.
    void place_inputs(std::span<const kernels::DrawnRow> drawn);
    // Places the arrays that are downloaded.
    void place_outputs();

    // Enqueues the draws and the sums of this rank's part, and the gathering of whole rows to rank
    // 0. Errors: the communicator's.
    Result<> start();
    // Enqueues the merge of the ranks' parts of each row: `ids` by row, as note_draws writes them.
    // REQUIRES: rank 0's draws of whole rows are enqueued. Errors: the communicator's.
    Result<> merge(TokenId* ids);

    // The values of row i, once all is done.
    [[nodiscard]] const kernels::SoftmaxStats& stats(std::size_t i) const { return stats_[i]; }
    // Writes the numbers of a row that is not whole.
    void finish(std::size_t i, messages::StepResult* result) const;

  private:
    Result<> gather_whole_rows();
    Result<> count_ranks();
    [[nodiscard]] std::int64_t num_rows() const { return part_.rows; }
    [[nodiscard]] bool has_ids() const { return part_.cols > 0; }

    Sampler& sampler_;
    RowLogits logits_;
    View2<float> part_{};  // [R, V_rank], without padding
    std::span<const SampledRow> rows_;
    std::uint32_t first_position_;
    std::size_t whole_begin_ = 0;
    std::size_t num_whole_ = 0;
    bool has_draws_ = false;                           // some row is drawn by parts
    bool has_ranks_ = false;                           // some row that is not whole wants a rank
    std::vector<kernels::SampleRow> draws_of_rows_{};  // [R], as the next member
    std::vector<kernels::SoftmaxRow> softmax_{};
    std::vector<kernels::RankRow> rank_rows_{};
    std::vector<kernels::SoftmaxStats> stats_{};
    std::vector<float> picked_{};             // logits of the drawn or given ids
    std::vector<std::int32_t> num_before_{};  // per rank: count_bytes() counts
    const kernels::SampleRow* device_draws_ = nullptr;
    const kernels::SoftmaxRow* device_softmax_ = nullptr;
    const kernels::RankRow* device_rank_rows_ = nullptr;
    kernels::SoftmaxStats* device_stats_ = nullptr;
    float* device_picked_ = nullptr;
    std::int32_t* device_num_before_ = nullptr;
};

}  // namespace pitstop::tp_worker
