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
    // `may_split` tells which tensors may be split by rows. REQUIRES: the num_tensors `tensors`
    // outlive this object; bucket_bytes is a result of in_bucket().
    BucketPlan(
        const PushedTensors& tensors,
        std::size_t num_tensors,
        std::int64_t bucket_bytes,
        std::function<bool(std::size_t tensor)> may_split
    );

    // Returns the tensors and rows of the next bucket: at most bucket_bytes, or one larger tensor
    // that may not be split. Empty: all tensors were returned.
    [[nodiscard]] std::vector<Piece> next();

    // Returns the room that these pieces need; more than 0.
    [[nodiscard]] std::int64_t bytes_of(const std::vector<Piece>& content) const;

  private:
    const PushedTensors& tensors_;
    std::size_t num_tensors_;
    std::int64_t bucket_bytes_;
    std::function<bool(std::size_t tensor)> may_split_;
    Piece next_{};  // where the next bucket begins
};

}  // namespace pitstop
