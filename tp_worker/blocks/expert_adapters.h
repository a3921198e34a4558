// The adapters' terms of the products of a pass's experts. Of each row r of expert e (the rows are
// those of kernels/expert_rows.h), with the pair that the adapter of the row's token has for e:
//
//   y[r] += s B_e (A_e x[r])
//
// A rank adds the terms of its own experts. Bits: those of kernels/low_rank.h, and on a GPU of
// low_rank_rows.h; a row's do not depend on the other rows (P6).
#pragma once

#include "kernels/low_rank_rows.h"
#include "kernels/tensor.h"
#include "tp_worker/blocks/scratch.h"
#include "tp_worker/blocks/trunk.h"
#include "tp_worker/weights/slot.h"

#include <cstdint>
#include <span>

namespace pitstop::tp_worker {

class ExpertAdapters {
  public:
    // From the id of an expert's weight to that of the next expert's: gate, up and down.
    static constexpr std::int32_t kWeightsPerExpert = 3;
    static constexpr std::int64_t kPartsMax = 2;

    // The rows of a pass, in the ops' memory.
    struct Rows {
        std::span<const std::int32_t> begins{};    // [experts of the rank + 1]
        std::span<const std::int32_t> token_of{};  // [R]
    };
    // One product: the weight of the rank's first expert, and the rows that it writes.
    struct Part {
        WeightId w{};
        kernels::ActView y{};  // [R, N]
    };

    void ask(Scratch& scratch, std::int64_t rows_max);
    // Finds the adapters of the pass's rows; add() follows, for each product. Does nothing on a
    // CPU, or if no token has an adapter.
    void find(const Trunk& trunk, const Pass& pass, const Rows& sorted) const;
    // Adds to y. x has R rows. Does nothing if no token has an adapter.
    void add(
        const Trunk& trunk,
        const Pass& pass,
        const Rows& sorted,
        const kernels::ConstActView& x,
        std::span<const Part> parts
    ) const;

  private:
    void add_segments(
        const Pass& pass,
        const Rows& sorted,
        std::span<const Part> parts,
        std::vector<kernels::LowRankSegment>& segments
    ) const;
    [[nodiscard]] std::int64_t rank_max() const { return low_ranks_.cols / kPartsMax; }

    View2<float> low_ranks_{};                         // [rows_max, kPartsMax * rank]
    std::span<const kernels::LowRankPair*> tables_{};  // [rows_max], on a GPU
};

}  // namespace pitstop::tp_worker
