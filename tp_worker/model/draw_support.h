// Finds the support of a draw: the ids from which it was drawn (messages/supports.h).
#pragma once

#include "base/ids.h"
#include "base/view.h"
#include "kernels/ops.h"
#include "messages/supports.h"
#include "tp_worker/model/logit_view.h"

#include <span>
#include <vector>

namespace pitstop::tp_worker {

struct Drawn {
    kernels::SampleRow row{};
    TokenId id{};
    float kept_min = 0;  // as note_draws writes it (kernels/draws.h)
};

// How to sum a row (kernels/logprobs.h).
struct StatsOp {
    const kernels::Ops* ops = nullptr;
    kernels::Workspace workspace{};
    kernels::Stream stream{};
};

// `logits`: [1, V] on the CPU, as used for the draw. The logprob has the same bits as in
// truncated mode (messages/sampling.h). The support of a greedy draw is the drawn id alone.
[[nodiscard]] messages::DrawSupport support_of(
    View2<const float> logits, const Drawn& drawn, const StatsOp& op
);

// Draws that are done: in each array an element per row of the call.
struct DoneDraws {
    std::span<const SampledRow> rows{};
    std::span<const TokenId> ids{};
    std::span<const float> kept_mins{};
};

// Finds the supports of the view's draws, if any are wanted, and writes them by row of the call.
// Only a CPU reports supports; there, a draw is done as soon as it is enqueued.
void find_supports(
    const LogitView& view,
    const DoneDraws& draws,
    const StatsOp& op,
    std::vector<messages::DrawSupport>& supports
);

}  // namespace pitstop::tp_worker
