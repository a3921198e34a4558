// Places a push's buckets in the memory that is shared: one after the other, from the front again
// where the end is too near; the oldest goes first.
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

    // Takes a place for `bytes` and returns its offset; nothing as long as older ones are in the
    // way. In an empty ring it is the front, which the cache may hold still. REQUIRES: 0 < bytes <=
    // the ring's.
    [[nodiscard]] std::optional<std::int64_t> reserve(std::int64_t bytes);
    // The oldest is over. REQUIRES: num_taken() > 0.
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
