// The data that the blocks of a model share: the residual stream x (fp32 in both modes), delta, and
// the ops. A block adds the previous block's output to x, reads x, and writes its rank's part of
// its own output to delta. The parts are then summed over the ranks.
#pragma once

#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "tp_worker/blocks/product.h"
#include "tp_worker/blocks/scratch.h"
#include "tp_worker/blocks/step.h"

#include <cstdint>

namespace pitstop::tp_worker {

struct Trunk {
    const kernels::Ops* ops = nullptr;
    kernels::Stream stream{};
    float norm_eps = 0;
    float norm_offset = 0;  // added to the norms' weights: 1 if they are stored around zero
    // The bias of an output that is summed over the ranks is added once, by the first
    // rank of the sum.
    bool adds_summed_bias = true;
    // The experts' weights are rounded to bf16 before the sum over a token's experts (router.h).
    bool rounds_expert_weights = false;
    View2<float> x{};               // [T, H]
    View2<float> delta{};           // [T, H]
    kernels::ActView normed{};      // [T, H], x as input of the block's products
    kernels::Workspace products{};  // scratch memory of the products
    View2<float> low_ranks{};       // [T, kPartsMax * rank], for adapters; no rows without adapters

    void ask(Scratch& scratch, std::int64_t hidden);
    // Adds the previous block's output to x if Pass::lacks_delta. Writes the norm of x to `normed`,
    // and Pass::marks.
    void norm(const Pass& pass, WeightId w) const;
    // Runs the product, and adds the terms of the tokens' adapters.
    void multiply(const Product& product, const Pass& pass) const;

  private:
    void adapt(const Product& product, const Pass& pass) const;
    void adapt_rows(const Product& product, const Pass& pass) const;
    [[nodiscard]] std::int64_t adapter_rank_max() const {
        return low_ranks.cols / std::int64_t{kernels::LinearArgs::kPartsMax};
    }
};

}  // namespace pitstop::tp_worker
