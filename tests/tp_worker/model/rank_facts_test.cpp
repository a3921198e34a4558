// Decisions that the ranks make together at the start.
#include "tp_worker/model/rank_facts.h"

#include "tests/checkpoint/temp_dir.h"
#include "tp_worker/ranks/shm_communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace pitstop::tp_worker {
namespace {

// Calls `decide` with a communicator on each of two ranks.
void on_both(const std::function<void(std::size_t rank, Communicator&)>& decide) {
    const test::TempDir dir;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
            auto communicator = attach_shm_communicator(
                {.path = dir.path("ranks"),
                 .rank = static_cast<Rank>(rank),
                 .size = 2,
                 .attach_timeout = std::chrono::seconds(20),
                 .peer_timeout = std::chrono::seconds(20)}
            );
            ASSERT_TRUE(communicator.has_value()) << communicator.error().message;
            decide(static_cast<std::size_t>(rank), **communicator);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

// The second rank's GPU is nearly full.
TEST(RankFacts, ARankWithoutRoomForStatesEndsAllWithTheSameNumbers) {
    const StatesAsked states{.state_bytes = 10, .num_slots = 20, .num_checkpoints = 30};
    std::array<Result<>, 2> checked{Ok{}, Ok{}};
    on_both([&](std::size_t rank, Communicator& communicator) {
        RoomFacts own{
            .device = "a GPU", .free = 1000, .budget = rank == 0 ? 1000 : 600, .others = 100};
        const auto num = add_states(states, &own, communicator);
        ASSERT_TRUE(num) << num.error().message;
        EXPECT_EQ(*num, 30);
        const auto of_all = facts_of_all(own, communicator);
        ASSERT_TRUE(of_all) << of_all.error().message;
        checked.at(rank) = check_states(states, *num, *of_all);
    });
    for (const Result<>& each : checked) {
        ASSERT_FALSE(each);
        EXPECT_EQ(each.error().code, ErrorCode::kResourceExhausted);
        EXPECT_EQ(
            each.error().message,
            "no room for KV on a GPU: the recurrent states of 20 requests and 30 checkpoints take "
            "500 bytes of 600, and 600 may be used; lower --max-running-requests or "
            "--state-checkpoints"
        );
    }
}

// The first rank's part of an adapter is the larger one.
TEST(RankFacts, AdaptersAreThoseOfTheRankThatNeedsMost) {
    std::array<std::string, 2> why;
    on_both([&](std::size_t rank, Communicator& communicator) {
        const std::int64_t adapters = rank == 0 ? 300 : 200;
        const auto of_all = facts_of_all(
            {.device = "a GPU",
             .free = 1000,
             .budget = 900,
             .others = 600 + adapters,
             .adapters = adapters,
             .page = 10},
            communicator
        );
        ASSERT_TRUE(of_all) << of_all.error().message;
        EXPECT_EQ(of_all->others, 900);
        EXPECT_EQ(of_all->adapters, 300);
        why.at(rank) = no_room_for_kv(0.9, *of_all).message;
    });
    EXPECT_EQ(why[0], why[1]);
}

}  // namespace
}  // namespace pitstop::tp_worker
