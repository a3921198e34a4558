// Decisions that the ranks make together at the start.
#include "tp_worker/model/rank_facts.h"

#include "tests/checkpoint/temp_dir.h"
#include "tp_worker/groups/shm_communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

namespace pitstop::tp_worker {
namespace {

// The second rank's GPU is nearly full.
TEST(RankFacts, ARankWithoutRoomForStatesEndsAllWithTheSameNumbers) {
    const test::TempDir dir;
    const StatesAsked states{.state_bytes = 10, .num_slots = 20, .num_checkpoints = 30};
    std::array<Result<>, 2> checked{Ok{}, Ok{}};
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
            RoomFacts own{
                .device = "a GPU", .free = 1000, .budget = rank == 0 ? 1000 : 600, .others = 100};
            const auto num = add_states(states, &own, **communicator);
            ASSERT_TRUE(num) << num.error().message;
            EXPECT_EQ(*num, 30);
            const auto of_all = facts_of_all(own, **communicator);
            ASSERT_TRUE(of_all) << of_all.error().message;
            checked.at(static_cast<std::size_t>(rank)) = check_states(states, *num, *of_all);
        });
    }
    for (std::thread& thread : threads) thread.join();
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

}  // namespace
}  // namespace pitstop::tp_worker
