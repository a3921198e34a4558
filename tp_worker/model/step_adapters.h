// The adapter of each token of a step: on a CPU as runs of tokens, on a GPU as a table per token
// (StepBatch).
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "kernels/low_rank_rows.h"
#include "messages/steps.h"
#include "tp_worker/blocks/step.h"
#include "tp_worker/model/adapters.h"

#include <vector>

namespace pitstop::tp_worker {

class StepAdapters {
  public:
    // Errors: kFailedPrecondition if a row names a version that is not among `adapters`.
    Result<> find(const messages::StepPlan& plan, const Adapters& adapters, Rank rank);
    // The batch borrows from this.
    void put_into(StepBatch& batch, bool is_on_gpu);

  private:
    std::vector<AdaptedTokens> adapted_{};
    std::vector<const kernels::LowRankPair*> tables_{};
};

}  // namespace pitstop::tp_worker
