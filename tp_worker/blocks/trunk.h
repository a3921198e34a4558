// What the blocks of a model share: the residual stream x (fp32 in both modes), the place of a
// block's output, and the ops. A block reads x, to which the previous block's output is still to be
// added, and leaves its own output in delta: its rank's part, which is then summed over the ranks.
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
    // The bias of an output that is summed over the ranks is added once, by the first rank of the
    // sum.
    bool adds_summed_bias = true;
    // To bf16, before the sum over a token's experts (router.h).
    bool rounds_expert_weights = false;
    View2<float> x{};               // [T, H]
    View2<float> delta{};           // [T, H]
    kernels::ActView normed{};      // [T, H], x as the block's products read it
    kernels::Workspace products{};  // what they may use
    View2<float> low_ranks{};       // [T, kPartsMax * rank], of adapters; no rows without

    void ask(Scratch& scratch, std::int64_t hidden);
    // Adds the previous block's output to x if it is lacking, and writes its norm to `normed`, and
    // the marks.
    void norm(const Pass& pass, WeightId w) const;
    // With what the adapters of tokens add.
    void multiply(const Product& product, const Pass& pass) const;

  private:
    void adapt(const Product& product, const Pass& pass) const;
};

}  // namespace pitstop::tp_worker
