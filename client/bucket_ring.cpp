#include "client/bucket_ring.h"

#include "base/check.h"

namespace pitstop {

std::optional<std::int64_t> BucketRing::reserve(std::int64_t bytes) {
    CHECK(bytes > 0 && bytes <= bytes_);
    std::int64_t begin = 0;
    if (!taken_.empty()) {
        const std::int64_t oldest = taken_.front().begin;
        begin = taken_.back().end;
        const bool is_wrapped = begin <= oldest;
        if (!is_wrapped && begin + bytes > bytes_) begin = 0;
        if (begin <= oldest && begin + bytes > oldest) return std::nullopt;
    }
    taken_.push_back({begin, begin + bytes});
    return begin;
}

void BucketRing::release_oldest() {
    CHECK(!taken_.empty());
    taken_.pop_front();
}

}  // namespace pitstop
