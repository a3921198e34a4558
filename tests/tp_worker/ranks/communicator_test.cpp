#include "base/digest.h"
#include "tests/checkpoint/temp_dir.h"
#include "tp_worker/ranks/shm_communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <numeric>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

using std::chrono::milliseconds;

ShmCommunicatorArgs args_of(
    const test::TempDir& dir, int rank, int size, milliseconds peer_timeout
) {
    return {
        .path = dir.path("ranks-0"),
        .rank = static_cast<Rank>(rank),
        .size = size,
        .attach_timeout = std::chrono::seconds(20),
        .peer_timeout = peer_timeout,
    };
}

// Attaches `size` ranks, each on a thread, and calls fn with its communicator.
void on_ranks(int size, const std::function<void(Communicator&)>& fn) {
    test::TempDir dir;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
            auto communicator =
                attach_shm_communicator(args_of(dir, rank, size, std::chrono::seconds(20)));
            ASSERT_TRUE(communicator.has_value()) << communicator.error().message;
            fn(**communicator);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

// Values in [-1000, 1000) that use all bits of the mantissa, so that the order of a sum shows.
float value_of(int rank, std::size_t i) {
    const std::uint64_t bits = mix64(i * 64 + static_cast<std::uint64_t>(rank)) >> 40;
    return static_cast<float>(bits) * (2000.f / 0x1p24f) - 1000.f;
}

TEST(ShmCommunicator, SumsInRankOrderOnEveryRank) {
    for (const int size : {2, 3, 4}) {
        // Sizes: one, an odd number, a vector plus or minus one, more than a chunk.
        for (const std::size_t n : {1u, 15u, 17u, 1000u, 600'001u}) {
            SCOPED_TRACE(testing::Message() << size << " ranks, " << n << " floats");
            std::vector<float> expected(n);
            for (std::size_t i = 0; i < n; ++i) {
                expected[i] = value_of(0, i);
                for (int rank = 1; rank < size; ++rank) expected[i] += value_of(rank, i);
            }
            on_ranks(size, [&](Communicator& communicator) {
                std::vector<float> data(n);
                for (std::size_t i = 0; i < n; ++i) data[i] = value_of(raw(communicator.rank()), i);
                ASSERT_TRUE(communicator.all_reduce_sum(data).has_value());
                EXPECT_EQ(data, expected);  // the same bits: fp32, rank 0 first
            });
        }
    }
}

TEST(ShmCommunicator, ManyOperationsInARowDoNotMixUp) {
    on_ranks(3, [](Communicator& communicator) {
        for (int i = 0; i < 2000; ++i) {
            float sum = static_cast<float>(raw(communicator.rank()) + i);
            ASSERT_TRUE(communicator.all_reduce_sum({&sum, 1}).has_value());
            ASSERT_EQ(sum, static_cast<float>(3 + 3 * i));
            int said = raw(communicator.rank()) == 0 ? i : -1;
            ASSERT_TRUE(
                communicator.broadcast(std::as_writable_bytes(std::span(&said, 1))).has_value()
            );
            ASSERT_EQ(said, i);
        }
        ASSERT_TRUE(communicator.barrier().has_value());
    });
}

// V is no multiple of the number of ranks: the last rank has less than a whole part, or nothing.
TEST(ShmCommunicator, GathersColumnsAsFarAsTheyGo) {
    for (const std::int64_t V : {5, 8, 1001, 152'001}) {
        const int size = 4;
        const std::int64_t C = (V + size - 1) / size;
        const std::int64_t n = 3;
        on_ranks(size, [&](Communicator& communicator) {
            const int rank = raw(communicator.rank());
            std::vector<float> part(static_cast<std::size_t>(n * C), -1.f);
            for (std::int64_t i = 0; i < n; ++i) {
                for (std::int64_t c = 0; c < C; ++c) {
                    part[static_cast<std::size_t>(i * C + c)] =
                        static_cast<float>(i * V + rank * C + c);
                }
            }
            std::vector<float> whole(static_cast<std::size_t>(rank == 0 ? n * V : 0), -2.f);
            ASSERT_TRUE(communicator
                            .gather_columns(
                                view2(std::as_const(part).data(), n, C), view2(whole.data(), n, V)
                            )
                            .has_value());
            for (std::size_t i = 0; i < whole.size(); ++i) {
                ASSERT_EQ(whole[i], static_cast<float>(i));
            }
        });
    }
}

// Sizes: one byte, an odd number, more than a chunk.
TEST(ShmCommunicator, EveryRankHasTheBytesOfAllInRankOrder) {
    constexpr int kSize = 3;
    for (const std::size_t n : {std::size_t{1}, std::size_t{77}, std::size_t{1'500'001}}) {
        std::vector<std::byte> expected;
        for (int rank = 0; rank < kSize; ++rank)
            expected.insert(expected.end(), n, static_cast<std::byte>(rank + 1));
        on_ranks(kSize, [&](Communicator& communicator) {
            const std::vector<std::byte> mine(
                n, static_cast<std::byte>(raw(communicator.rank()) + 1)
            );
            std::vector<std::byte> all(n * kSize);
            ASSERT_TRUE(communicator.all_gather(mine, all).has_value());
            EXPECT_EQ(all, expected);
        });
    }
}

TEST(ShmCommunicator, LeavesNothingBehind) {
    test::TempDir dir;
    std::thread other([&] {
        auto communicator = attach_shm_communicator(args_of(dir, 1, 2, milliseconds(20'000)));
        ASSERT_TRUE(communicator.has_value());
        EXPECT_TRUE((*communicator)->barrier().has_value());
        EXPECT_TRUE((*communicator)->barrier().has_value());
    });
    auto communicator = attach_shm_communicator(args_of(dir, 0, 2, milliseconds(20'000)));
    ASSERT_TRUE(communicator.has_value());
    ASSERT_TRUE((*communicator)->barrier().has_value());
    EXPECT_TRUE(std::filesystem::is_empty(dir.path()));  // while both ranks are attached
    ASSERT_TRUE((*communicator)->barrier().has_value());
    other.join();
}

TEST(ShmCommunicator, AFileOfADeadTreeIsReplaced) {
    test::TempDir dir;
    dir.write("ranks-0", "/proc/4194303/fd/5");
    std::thread other([&] {
        auto communicator = attach_shm_communicator(args_of(dir, 1, 2, milliseconds(20'000)));
        EXPECT_TRUE(communicator.has_value());
    });
    auto communicator = attach_shm_communicator(args_of(dir, 0, 2, milliseconds(20'000)));
    EXPECT_TRUE(communicator.has_value());
    other.join();
}

TEST(ShmCommunicator, ARankThatNeverStartsIsNamed) {
    test::TempDir dir;
    ShmCommunicatorArgs args = args_of(dir, 0, 3, milliseconds(100));
    args.attach_timeout = milliseconds(50);
    const auto communicator = attach_shm_communicator(args);
    ASSERT_FALSE(communicator.has_value());
    EXPECT_EQ(communicator.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(communicator.error().message.find("1, 2"), std::string::npos);
    EXPECT_TRUE(std::filesystem::is_empty(dir.path()));

    args.rank = Rank{1};
    const auto no_root = attach_shm_communicator(args);
    ASSERT_FALSE(no_root.has_value());
    EXPECT_NE(no_root.error().message.find("rank 0"), std::string::npos);
}

TEST(ShmCommunicator, RanksOutOfStepAreAnErrorNotAWrongSum) {
    on_ranks(2, [](Communicator& communicator) {
        float one = 1.f;
        std::byte byte{};
        const Result<> result = raw(communicator.rank()) == 0
                                    ? communicator.all_reduce_sum({&one, 1})
                                    : communicator.broadcast({&byte, 1});
        ASSERT_FALSE(result.has_value());
        EXPECT_EQ(result.error().code, ErrorCode::kInternal);
        EXPECT_NE(result.error().message.find("out of step"), std::string::npos);
    });
}

TEST(ShmCommunicator, ARankThatLeftIsNamed) {
    on_ranks(2, [](Communicator& communicator) {
        if (raw(communicator.rank()) == 1) return;  // its communicator ends with the thread
        const Result<> result = communicator.barrier();
        ASSERT_FALSE(result.has_value());
        EXPECT_EQ(result.error().code, ErrorCode::kUnavailable);
        EXPECT_NE(result.error().message.find("rank 1"), std::string::npos);
    });
}

// Rank 1 in a process of its own, which does barriers until the test disturbs it.
class PeerProcess : public testing::Test {
  protected:
    void start() {
        pid_ = ::fork();
        ASSERT_GE(pid_, 0);
        if (pid_ == 0) {
            auto communicator = attach_shm_communicator(args_of(dir_, 1, 2, milliseconds(20'000)));
            if (!communicator) ::_exit(1);
            while ((*communicator)->barrier()) {
            }
            ::_exit(0);
        }
    }
    void TearDown() override {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
    }
    test::TempDir dir_{};
    pid_t pid_ = -1;
};

TEST_F(PeerProcess, P5_AKilledRankIsAnErrorThatNamesItAtOnce) {
    start();
    auto communicator = attach_shm_communicator(args_of(dir_, 0, 2, milliseconds(60'000)));
    ASSERT_TRUE(communicator.has_value()) << communicator.error().message;
    for (int i = 0; i < 100; ++i) ASSERT_TRUE((*communicator)->barrier().has_value());
    ::kill(pid_, SIGKILL);
    const TimePoint begin = Clock::now();
    Result<> result = Ok{};
    while (result) result = (*communicator)->barrier();
    EXPECT_EQ(result.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(result.error().message.find(fmt::format("rank 1 (pid {})", pid_)), std::string::npos)
        << result.error().message;
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));  // not the deadline of a minute
    EXPECT_FALSE((*communicator)->barrier().has_value());      // and stays broken
}

TEST_F(PeerProcess, P5_AStoppedRankIsAnErrorAtTheDeadline) {
    start();
    auto communicator = attach_shm_communicator(args_of(dir_, 0, 2, milliseconds(200)));
    ASSERT_TRUE(communicator.has_value()) << communicator.error().message;
    ASSERT_TRUE((*communicator)->barrier().has_value());
    ::kill(pid_, SIGSTOP);
    Result<> result = Ok{};
    while (result) result = (*communicator)->barrier();
    EXPECT_EQ(result.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(result.error().message.find("rank 1"), std::string::npos);
    EXPECT_NE(result.error().message.find("200 ms"), std::string::npos);
}

TEST(SoloCommunicator, HasNothingToWaitFor) {
    const auto communicator = make_solo_communicator();
    std::vector<float> part{1.f, 2.f, 3.f, 4.f};
    std::vector<float> whole(4, 0.f);
    EXPECT_TRUE(communicator->all_reduce_sum(part).has_value());
    EXPECT_TRUE(
        communicator
            ->gather_columns(view2(std::as_const(part).data(), 2, 2), view2(whole.data(), 2, 2))
            .has_value()
    );
    EXPECT_EQ(whole, (std::vector<float>{1.f, 2.f, 3.f, 4.f}));
}

}  // namespace
}  // namespace pitstop::tp_worker
