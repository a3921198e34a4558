// Does what the ranks do together of one call of the sampler (sampler.h), where each has a part of
// the vocabulary: it draws among its part and sums it, and every rank makes the same of what all
// say of a row, 20 bytes each (kernels/rank_records.h). Where a rank among all is wanted, 4 more
// follow: how many logits of the part stand before the one that was drawn or given.
//
// A row is *whole* if its draw or its report needs logits in one place: it truncates, has penalties
// or biases, or wants the top or given ids. Those come to rank 0, which draws for all: its record
// of the row is the row's, the other ranks' are empty. With them come the rows between the first
// and the last of them. The softmax sums of a whole row are merged of the parts like any other's,
// unless they are of edited logits, or of what was kept: so what a row reports does not depend on
// what else is asked of it, and scoring has the bits of sampling (P6).
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
    // `rows` outlive it; their draws' positions count from the first.
    RankCall(
        Sampler& sampler,
        const RowLogits& logits,
        std::span<const SampledRow> rows,
        std::uint32_t first_position
    );
    RankCall(const RankCall&) = delete;
    RankCall& operator=(const RankCall&) = delete;

    // Returns those of a rank's counts: a multiple of 16 (exchange.h).
    [[nodiscard]] static std::int64_t count_bytes(std::int64_t num_rows);

    // These are the rows that come to rank 0.
    [[nodiscard]] std::size_t whole_begin() const { return whole_begin_; }
    [[nodiscard]] std::size_t num_whole() const { return num_whole_; }

    // These place its arrays: those that stand, and those that come back. On rank 0 drawn[i].choice
    // is where its draw of a whole row will be.
    void place_inputs(std::span<const kernels::DrawnRow> drawn);
    void place_outputs();

    // Enqueues the draws and the sums of this rank's part, and what brings the whole rows to
    // rank 0. Errors: the communicator's.
    Result<> start();
    // Enqueues what makes the row's of the ranks' parts: `ids` by row, as note_draws has them.
    // REQUIRES: rank 0's draws of whole rows are enqueued. Errors: the communicator's.
    Result<> merge(TokenId* ids);

    // They are of row i, once all is done.
    [[nodiscard]] const kernels::SoftmaxStats& stats(std::size_t i) const { return stats_[i]; }
    // Writes the numbers of the row, which is not whole.
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
    bool has_draws_ = false;  // a row is drawn by parts
    bool has_ranks_ = false;  // the rank of a row that is not whole is wanted
    std::vector<kernels::SampleRow> draws_of_rows_{};  // [R], and so the next
    std::vector<kernels::SoftmaxRow> softmax_{};
    std::vector<kernels::RankRow> rank_rows_{};
    std::vector<kernels::SoftmaxStats> stats_{};
    std::vector<float> picked_{};             // logits of what was drawn or given
    std::vector<std::int32_t> num_before_{};  // per rank, count_bytes() of them
    const kernels::SampleRow* draws_there_ = nullptr;
    const kernels::SoftmaxRow* softmax_there_ = nullptr;
    const kernels::RankRow* rank_rows_there_ = nullptr;
    kernels::SoftmaxStats* stats_there_ = nullptr;
    float* picked_there_ = nullptr;
    std::int32_t* num_before_there_ = nullptr;
};

}  // namespace pitstop::tp_worker
