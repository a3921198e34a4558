#include "client/bucket_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace pitstop {
namespace {

TensorToPush tensor(std::int64_t rows, std::int64_t cols) {
    return {.name = "t", .dtype = "BF16", .shape = {rows, cols}};
}

// All buckets, in order.
std::vector<std::vector<Piece>> buckets_of(
    const std::vector<TensorToPush>& tensors, std::int64_t bucket_bytes, bool may_split
) {
    const PushOptions options;
    const PushedTensors pushed(options, tensors);
    BucketPlan plan(pushed, tensors.size(), bucket_bytes, [=](std::size_t) { return may_split; });
    std::vector<std::vector<Piece>> buckets;
    while (buckets.size() < 10'000) {
        std::vector<Piece> bucket = plan.next();
        if (bucket.empty()) break;
        EXPECT_GE(plan.bytes_of(bucket), 1);
        buckets.push_back(std::move(bucket));
    }
    return buckets;
}

TEST(BucketPlan, ATensorThatDoesNotFitBeginsTheNextBucket) {
    const auto buckets = buckets_of({tensor(1, 32), tensor(2, 32), tensor(9, 32)}, 128, false);
    ASSERT_EQ(buckets.size(), 3u);
    EXPECT_EQ(buckets[0].size(), 1u);
    EXPECT_EQ(buckets[2][0].num_rows, 9) << "larger than a bucket, and whole";
}

TEST(BucketPlan, RowsFillTheRestOfABucket) {
    const auto buckets = buckets_of({tensor(1, 32), tensor(4, 32), tensor(1, 32)}, 128, true);
    ASSERT_EQ(buckets.size(), 3u);
    ASSERT_EQ(buckets[0].size(), 2u);
    EXPECT_EQ(buckets[0][1].num_rows, 1);
    ASSERT_EQ(buckets[1].size(), 1u);
    EXPECT_EQ(buckets[1][0].row_begin, 1);
    EXPECT_EQ(buckets[1][0].num_rows, 2);
    ASSERT_EQ(buckets[2].size(), 2u);
    EXPECT_EQ(buckets[2][0].row_begin, 3);
}

TEST(BucketPlan, EveryRowIsInOneBucketWhateverTheSizes) {
    std::mt19937 random(7);
    const auto draw = [&](std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution(low, high)(random);
    };
    for (int round = 0; round < 300; ++round) {
        SCOPED_TRACE(round);
        std::vector<TensorToPush> tensors;
        for (std::int64_t i = draw(1, 9); i > 0; --i)
            tensors.push_back(tensor(draw(0, 20), draw(1, 90)));
        const std::int64_t bucket_bytes = in_bucket(draw(1, 400));
        const PushOptions options;
        const PushedTensors pushed(options, tensors);
        Piece next{};
        for (const std::vector<Piece>& bucket : buckets_of(tensors, bucket_bytes, true)) {
            std::int64_t bytes = 0;
            for (const Piece& rows : bucket) {
                ASSERT_EQ(rows.tensor, next.tensor);
                ASSERT_EQ(rows.row_begin, next.row_begin);
                next.row_begin += rows.num_rows;
                if (next.row_begin == pushed.num_rows_of(rows.tensor))
                    next = {.tensor = rows.tensor + 1};
                bytes += in_bucket(pushed.bytes_of(rows));
            }
            const bool is_too_long = pushed.row_bytes_of(bucket[0].tensor) > bucket_bytes;
            EXPECT_TRUE(bytes <= bucket_bytes || (is_too_long && bucket.size() == 1)) << bytes;
        }
        EXPECT_EQ(next.tensor, tensors.size());
    }
}

}  // namespace
}  // namespace pitstop
