// The places of a model's weights on a rank, for tests that need no engine.
#pragma once

#include "tp_worker/blocks/stack.h"
#include "tp_worker/weights/weight_layout.h"

namespace pitstop::tp_worker {

// Errors: as Stack::make().
inline Result<WeightLayout> layout_of(
    const ModelConfig& config,
    Rank rank,
    int tp,
    ExtraTensors extra = ExtraTensors::kRefuse,
    int ep = 1
) {
    const RankOf of{.rank = raw(rank), .tp = tp, .ep = ep};
    ASSIGN_OR_RETURN(const Stack stack, Stack::make(config, of));
    const TensorNames names = config.is_hybrid() ? TensorNames::kOfHybrid : TensorNames::kOwn;
    return WeightLayout::make(stack.slots(), extra, names);
}

}  // namespace pitstop::tp_worker
