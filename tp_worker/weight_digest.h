// The digest of the weights that are resident, by this rank's parts (base/digest.h defines it,
// messages/version_digest.h adds the parts of all ranks up).
#pragma once

#include "base/result.h"
#include "kernels/ops.h"
#include "messages/weights.h"
#include "tp_worker/weight_layout.h"

#include <cstddef>
#include <vector>

namespace pitstop {

// One entry per part that this rank holds, in name order. A tensor that every rank holds whole has
// one part; a split one a part per rank; a replicated KV projection a part per KV head.
// kUnsupported, naming the tensor, where tp cuts a row between the digest's 8-byte words: no shard
// can be digested alone then.
Result<std::vector<PartDigest>> digest_weights(
    const WeightLayout& layout, const std::byte* arena, const Ops& ops, Stream stream
);

}  // namespace pitstop
