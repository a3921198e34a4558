// What the blocks of a model share: the residual stream x, fp32 in both modes, where a block's
// output goes, and what everything is computed with. A block reads x with the output of the block
// before still to be added, and leaves its own in delta: its rank's part, which is then summed over
// the ranks.
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
    // A bias of what is summed over the ranks is added once, by the rank that comes first in it.
    bool adds_summed_bias = true;
    View2<float> x{};               // [T, H]
    View2<float> delta{};           // [T, H]
    kernels::ActView normed{};      // [T, H], x as the block's products read it
    kernels::Workspace products{};  // what they may use
    View2<float> low_ranks{};       // [T, kPartsMax * rank], of adapters; no rows without

    void ask(Scratch& scratch, std::int64_t hidden);
    // Adds what x lacks of the block before, and leaves its norm in `normed`, and the marks.
    void norm(const Pass& pass, WeightId w) const;
    // With what the adapters of tokens add.
    void multiply(const Product& product, const Pass& pass) const;

  private:
    void adapt(const Product& product, const Pass& pass) const;
};

}  // namespace pitstop::tp_worker
