#include "client/bucket_ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace pitstop {
namespace {

TEST(BucketRing, PlacesFollowEachOtherAndBeginAgainInFront) {
    BucketRing ring(100);
    EXPECT_EQ(ring.reserve(40), 0);
    EXPECT_EQ(ring.reserve(40), 40);
    EXPECT_EQ(ring.reserve(40), std::nullopt);  // free: 20 bytes at the end, none at the beginning
    ring.release_oldest();
    EXPECT_EQ(ring.reserve(40), 0);
    EXPECT_EQ(
        ring.reserve(1), std::nullopt
    );  // the newest reservation ends where the oldest begins
    ring.release_oldest();
    EXPECT_EQ(ring.reserve(60), 40);
    EXPECT_EQ(ring.num_taken(), 2u);
}

TEST(BucketRing, ABucketThatFitsBehindGoesThereWhileTheFrontIsFree) {
    BucketRing ring(100);
    EXPECT_EQ(ring.reserve(30), 0);
    EXPECT_EQ(ring.reserve(30), 30);
    ring.release_oldest();
    EXPECT_EQ(ring.reserve(40), 60);
    EXPECT_EQ(ring.reserve(31), std::nullopt);
    EXPECT_EQ(ring.reserve(30), 0);
}

TEST(BucketRing, AnEmptyRingBeginsInFrontAndHoldsAllItHas) {
    BucketRing ring(100);
    for (const std::int64_t bytes : {10, 100, 1, 100}) {
        EXPECT_EQ(ring.reserve(bytes), 0) << bytes;
        ring.release_oldest();
    }
}

TEST(BucketRing, NoPlaceOverlapsAnother) {
    constexpr std::int64_t kBytes = 1000;
    struct Place {
        std::int64_t begin = 0;
        std::int64_t end = 0;
    };
    std::mt19937 random(7);
    BucketRing ring(kBytes);
    std::deque<Place> taken;
    for (int step = 0; step < 100'000; ++step) {
        const std::int64_t bytes = 1 + static_cast<std::int64_t>(random() % kBytes);
        if (const auto begin = ring.reserve(bytes)) {
            const Place place{*begin, *begin + bytes};
            ASSERT_TRUE(place.begin >= 0 && place.end <= kBytes);
            for (const Place& other : taken)
                ASSERT_TRUE(place.end <= other.begin || other.end <= place.begin);
            taken.push_back(place);
        } else {
            ASSERT_FALSE(taken.empty()) << "an empty ring has room for " << bytes;
            taken.pop_front();
            ring.release_oldest();
        }
        ASSERT_EQ(ring.num_taken(), taken.size());
    }
}

}  // namespace
}  // namespace pitstop
