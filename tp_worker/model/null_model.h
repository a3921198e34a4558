// A model that computes nothing. Every distribution is uniform over the vocabulary. The token drawn
// at a position is that position, modulo the vocabulary, or the next id that does not end the
// request. With it (--load-format null), measurements show only the tree's own cost.
#pragma once

#include "messages/steps.h"
#include "tp_worker/model/step_batch.h"

#include <cstdint>
#include <span>

namespace pitstop::tp_worker {

void run_null_model(
    std::span<const LogitRow> rows,
    const RequestSlots& slots,
    std::int64_t vocab_len,
    messages::StepResult* result
);

}  // namespace pitstop::tp_worker
