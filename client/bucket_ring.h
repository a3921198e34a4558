// Allocates a push's buckets in the shared memory as a ring: one after the other, restarting at the
// front when the space behind the last one is too small. The oldest bucket is freed first.
//
// Thread: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace pitstop {

class BucketRing {
  public:
    explicit BucketRing(std::int64_t bytes) : bytes_(bytes) {}

    // Reserves `bytes` and returns their offset, or nothing if older buckets occupy the space.
    // An empty ring starts at the front, which may still be in the cache. REQUIRES: 0 < bytes <=
    // the ring's size.
    [[nodiscard]] std::optional<std::int64_t> reserve(std::int64_t bytes);
    // Frees the oldest bucket. REQUIRES: num_taken() > 0.
    void release_oldest();
    [[nodiscard]] std::size_t num_taken() const { return taken_.size(); }

  private:
    struct Range {
        std::int64_t begin = 0;
        std::int64_t end = 0;
    };
    std::int64_t bytes_ = 0;
    std::deque<Range> taken_{};  // the oldest first
};

}  // namespace pitstop
