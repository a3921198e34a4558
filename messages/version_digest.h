// Computes the digests of tensors and of their version from the parts that ranks report.
#pragma once

#include "base/digest.h"
#include "base/ids.h"
#include "base/result.h"
#include "messages/fields.h"
#include "messages/weight_source.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pitstop::messages {

// The digest of one rank's part of one tensor.
struct PartDigest {
    std::string name{};
    std::vector<std::int64_t> shape{};
    std::int64_t part = 0;
    std::int64_t parts = 1;
    std::uint64_t lane0 = 0;
    std::uint64_t lane1 = 0;
    std::string dtype{};

    template <class F>
    void fields(F&& f) {
        f("name", name, "checkpoint name");
        f("shape", shape, "of the whole tensor");
        f("part",
          part,
          "the number of the part that this rank has; ranks with the same part "
          "have copies");
        f("parts", parts, "the tensor's digest is the sum over this many parts");
        f("lane0", lane0, "the part's lane 0");
        f("lane1", lane1, "the part's lane 1");
        f("dtype", dtype, "dtype of the resident tensor; absent: BF16");
    }
    friend bool operator==(const PartDigest&, const PartDigest&) = default;
};

struct VersionDigest {
    Digest digest{};
    std::vector<TensorInfo> tensors{};  // in name order; with digests, and with resident dtypes
};

// The parts that one rank reports.
struct RankParts {
    Rank rank{};
    std::span<const PartDigest> parts{};
};

// Adds up the parts of all ranks of one replica. Ranks that have the same part of a tensor must
// agree on its digest.
// Errors: kDataLoss, naming the tensor and the ranks: copies differ, a part is missing, or shapes
// or counts of parts differ.
Result<VersionDigest> version_digest(std::span<const RankParts> ranks);

// Returns the version's digest from its tensors, as base/digest.h defines it. REQUIRES: every
// tensor has a digest.
[[nodiscard]] Digest version_digest_of(std::vector<TensorInfo> tensors);

}  // namespace pitstop::messages
