// Sorts a row of logits on the host, for requests that want more of the top than the op finds
// (kernels/logprobs.h), up to the whole vocabulary.
#pragma once

#include "base/ids.h"

#include <span>

namespace pitstop::tp_worker {

// Writes the ids.size() largest of a row like top_logits: descending, of equals the lower id first.
// REQUIRES: no NaN; ids.size() == values.size() <= logits.size().
void sort_top(std::span<const float> logits, std::span<TokenId> ids, std::span<float> values);

}  // namespace pitstop::tp_worker
