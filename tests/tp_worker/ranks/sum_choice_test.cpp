// Measurements decide how a sum is computed, and all ranks compute it the same way.
#include "tp_worker/ranks/sum_choice.h"

#include "kernels/exchange.h"

#include <gtest/gtest.h>

#include <vector>

namespace pitstop::tp_worker {
namespace {

TEST(SumChoice, NcclTakesTheSizesFromWhichOnItIsFaster) {
    EXPECT_EQ(nccl_bytes_min({}), kNeverBytes);
    std::vector<SumTime> times{{256, 1.0, 9.0}, {512, 2.0, 1.9}, {1024, 4.0, 2.0}};
    EXPECT_EQ(nccl_bytes_min(times), 512);
    times[1].nccl_ms = 2.0;  // not faster: no NCCL
    EXPECT_EQ(nccl_bytes_min(times), 1024);
    times[0].nccl_ms = 0.1;  // a low outlier does not count
    EXPECT_EQ(nccl_bytes_min(times), 1024);
    times[2].nccl_ms = 5.0;
    EXPECT_EQ(nccl_bytes_min(times), kNeverBytes);
    EXPECT_EQ(nccl_bytes_min(std::vector<SumTime>{{256, 2.0, 1.0}}), 256);
}

TEST(SumChoice, SizesDoubleUpToTheLargestSumOfAStep) {
    const std::int64_t least = kernels::kOneShotBytesMax;
    EXPECT_TRUE(sizes_to_measure(0).empty());
    EXPECT_TRUE(sizes_to_measure(least - 1).empty());
    EXPECT_EQ(sizes_to_measure(least), std::vector<std::int64_t>{least});
    EXPECT_EQ(sizes_to_measure(3 * least), (std::vector{least, 2 * least, 3 * least}));
}

TEST(SumChoice, GuessesFallWithTheRanks) {
    std::int64_t before = kNeverBytes;
    for (const int num_ranks : {2, 4, 6, 8}) {
        EXPECT_LT(nccl_bytes_min_guess(num_ranks), before);
        before = nccl_bytes_min_guess(num_ranks);
    }
    EXPECT_EQ(nccl_bytes_min_guess(16), before);
}

TEST(SumChoice, AnUnknownWayIsRefusedWithTheAcceptedOnes) {
    EXPECT_EQ(*parse_sum_path("auto"), SumPath::kAuto);
    EXPECT_EQ(*parse_sum_path("own"), SumPath::kOwn);
    EXPECT_EQ(*parse_sum_path("nccl"), SumPath::kNccl);
    const Result<SumPath> other = parse_sum_path("mpi");
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(other.error().message, "--all-reduce takes auto, own or nccl, not 'mpi'");
}

}  // namespace
}  // namespace pitstop::tp_worker
