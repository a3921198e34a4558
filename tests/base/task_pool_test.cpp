#include "base/task_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

namespace pitstop {
namespace {

TEST(TaskPool, EveryItemIsRunOnceInEveryRun) {
    for (const int num_threads : {1, 2, 5}) {
        TaskPool pool(num_threads);
        for (const std::size_t num : {0u, 1u, 2u, 3u, 1000u, 1u}) {
            std::vector<std::atomic<int>> times(num);
            ASSERT_TRUE(pool.run(num, [&](std::size_t item) {
                ++times[item];
                return Result<>(Ok{});
            }));
            for (std::size_t i = 0; i < num; ++i) ASSERT_EQ(times[i], 1) << i << " of " << num;
        }
    }
}

// Each range waits for all others: with one thread fewer this would never end.
TEST(TaskPool, AsManyItemsAsThreadsRunAtOnce) {
    constexpr int kThreads = 3;
    TaskPool pool(kThreads);
    for (int run = 0; run < 50; ++run) {
        std::latch all(kThreads);
        ASSERT_TRUE(pool.run(kThreads, [&](std::size_t) {
            all.arrive_and_wait();
            return Result<>(Ok{});
        }));
    }
}

TEST(TaskPool, TheFirstErrorEndsARunAndNoneIsLeftForTheNext) {
    TaskPool pool(2);
    std::atomic<int> num_run{0};
    const Result<> result = pool.run(1'000'000, [&](std::size_t item) -> Result<> {
        ++num_run;
        if (item == 5) return make_error(ErrorCode::kDataLoss, "item {}", item);
        return Ok{};
    });
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, "item 5");
    EXPECT_GE(num_run, 6);
    EXPECT_TRUE(pool.run(3, [](std::size_t) { return Result<>(Ok{}); }));
}

}  // namespace
}  // namespace pitstop
