#include "grammar/compile_room.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <vector>

namespace pitstop::grammar {
namespace {

constexpr auto kLong = std::chrono::seconds(20);
constexpr auto kShort = std::chrono::milliseconds(50);

TEST(CompileRoom, SharesFitIntoTheRoomTogether) {
    CompileRoom room(100);
    std::atomic<int> num_bytes = 0;
    std::atomic<int> most = 0;
    std::vector<std::thread> threads;
    threads.reserve(8);
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&, size = 20 + 10 * i] {
            for (int turn = 0; turn < 200; ++turn) {
                const CompileRoom::Share share(room, size);
                const int now = num_bytes += size;
                int seen = most;
                while (seen < now && !most.compare_exchange_weak(seen, now)) {
                }
                num_bytes -= size;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(most, 20);
    EXPECT_LE(most, 100);
}

TEST(CompileRoom, OneThatNeedsMoreThanAllRunsAlone) {
    CompileRoom room(100);
    std::optional<CompileRoom::Share> small(std::in_place, room, 1);
    auto large = std::async(std::launch::async, [&] {
        const CompileRoom::Share share(room, 1000);
        return share.is_held();
    });
    EXPECT_EQ(large.wait_for(kShort), std::future_status::timeout);
    small.reset();
    ASSERT_EQ(large.wait_for(kLong), std::future_status::ready);
    EXPECT_TRUE(large.get());
}

TEST(CompileRoom, ALargeOneIsNotPassedBySmallOnes) {
    CompileRoom room(100);
    std::optional<CompileRoom::Share> first(std::in_place, room, 1);
    auto large =
        std::async(std::launch::async, [&] { return CompileRoom::Share(room, 100).is_held(); });
    EXPECT_EQ(large.wait_for(kShort), std::future_status::timeout);
    auto small =
        std::async(std::launch::async, [&] { return CompileRoom::Share(room, 1).is_held(); });
    EXPECT_EQ(small.wait_for(kShort), std::future_status::timeout) << "it fits beside the first";
    first.reset();
    EXPECT_TRUE(large.get());
    EXPECT_TRUE(small.get());
}

TEST(CompileRoom, ClosingLetsThoseThatWaitGo) {
    CompileRoom room(100);
    const CompileRoom::Share all(room, 100);
    auto waiting =
        std::async(std::launch::async, [&] { return CompileRoom::Share(room, 1).is_held(); });
    EXPECT_EQ(waiting.wait_for(kShort), std::future_status::timeout);
    room.close();
    ASSERT_EQ(waiting.wait_for(kLong), std::future_status::ready);
    EXPECT_FALSE(waiting.get());
    EXPECT_FALSE(CompileRoom::Share(room, 0).is_held());
}

}  // namespace
}  // namespace pitstop::grammar
