// Divides the tensors of a push into buckets, in their order.
//
// Thread: one at a time.
#pragma once

#include "client/pushed_tensors.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace pitstop {

inline constexpr std::int64_t kBucketAlignBytes = 64;  // of a tensor in a bucket

// Returns `bytes` rounded up to the alignment: the room of a tensor in a bucket.
[[nodiscard]] constexpr std::int64_t in_bucket(std::int64_t bytes) {
    return (bytes + kBucketAlignBytes - 1) / kBucketAlignBytes * kBucketAlignBytes;
}

class BucketPlan {
  public:
    // `may_split` says which tensors may come by their rows. REQUIRES: `tensors`, num_tensors
    // of them, outlive this; bucket_bytes is what in_bucket() returned.
    BucketPlan(
        const PushedTensors& tensors,
        std::size_t num_tensors,
        std::int64_t bucket_bytes,
        std::function<bool(std::size_t tensor)> may_split
    );

    // Returns the tensors and rows of the next bucket, at most bucket_bytes, or one larger tensor
    // that may not be split; none: that was all.
    [[nodiscard]] std::vector<Piece> next();

    // Returns the room that they take; more than nothing.
    [[nodiscard]] std::int64_t bytes_of(const std::vector<Piece>& content) const;

  private:
    const PushedTensors& tensors_;
    std::size_t num_tensors_;
    std::int64_t bucket_bytes_;
    std::function<bool(std::size_t tensor)> may_split_;
    Piece next_{};  // where the next bucket begins
};

}  // namespace pitstop
