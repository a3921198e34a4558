// From the parts that ranks report to the digests of tensors and of the version.
#pragma once

#include "base/digest.h"
#include "base/result.h"
#include "messages/weights.h"

#include <span>
#include <string>
#include <vector>

namespace pitstop {

struct VersionDigest {
    Digest digest{};
    std::vector<TensorInfo> tensors{};  // in name order, each with its digest; dtype as resident
};

// The parts of one rank, and which rank that is.
struct RankParts {
    Rank rank{};
    std::span<const PartDigest> parts{};
};

// Adds up the parts of all ranks of one replica. Ranks that hold the same part of a tensor must
// agree on its digest.
// Errors: kDataLoss, naming the tensor and the ranks: copies differ, a part is missing, shapes or
// numbers of parts differ.
Result<VersionDigest> version_digest(std::span<const RankParts> ranks);

// The version's digest from its tensors, as base/digest.h defines it.
// REQUIRES: every tensor has a digest.
[[nodiscard]] Digest version_digest_of(std::vector<TensorInfo> tensors);

}  // namespace pitstop
