#include "client/bucket_plan.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace pitstop {

BucketPlan::BucketPlan(
    const PushedTensors& tensors,
    std::size_t num_tensors,
    std::int64_t bucket_bytes,
    std::function<bool(std::size_t tensor)> may_split
)
    : tensors_(tensors),
      num_tensors_(num_tensors),
      bucket_bytes_(bucket_bytes),
      may_split_(std::move(may_split)) {
    CHECK(bucket_bytes_ > 0 && in_bucket(bucket_bytes_) == bucket_bytes_);
}

std::vector<Piece> BucketPlan::next() {
    std::vector<Piece> content;
    std::int64_t left = bucket_bytes_;
    while (next_.tensor < num_tensors_) {
        Piece rows = next_;
        rows.num_rows = tensors_.num_rows_of(next_.tensor) - next_.row_begin;
        const std::int64_t bytes = in_bucket(tensors_.bytes_of(rows));
        if (bytes > left) {
            const std::int64_t row_bytes = tensors_.row_bytes_of(rows);
            const bool is_split = row_bytes <= bucket_bytes_ && may_split_(next_.tensor);
            if (!content.empty() && (!is_split || row_bytes > left)) break;
            if (is_split) {
                rows.num_rows = left / row_bytes;
                next_.row_begin += rows.num_rows;
                content.push_back(rows);
                break;
            }
        }
        content.push_back(rows);
        left -= bytes;
        next_ = {.tensor = next_.tensor + 1};
        if (left <= 0) break;
    }
    return content;
}

std::int64_t BucketPlan::bytes_of(const std::vector<Piece>& content) const {
    std::int64_t bytes = 0;
    for (const Piece& rows : content) bytes += in_bucket(tensors_.bytes_of(rows));
    return std::max(bytes, kBucketAlignBytes);
}

}  // namespace pitstop
