// Ranks on threads that meet over the bus, at a real scheduler's sockets. Ranks of another machine
// connect through the nodes' door.
#include "tp_worker/ranks/bus_communicator.h"

#include "base/digest.h"
#include "bus/run_dir.h"
#include "messages/codec.h"
#include "scheduler_proc/ports.h"
#include "tests/checkpoint/temp_dir.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

namespace pitstop::tp_worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kBuild = "pitstop of this test";

// The scheduler's side, on a thread of its own.
class Meeting {
  public:
    Meeting(int tp, int nodes) : tp_(tp), nodes_(nodes) {
        run_dir_.emplace(*bus::RunDir::open(dir_.path()));
        const std::string keys = dir_.path("keys");
        EXPECT_TRUE(bus::make_key_dir(keys));
        key_file_ = *bus::add_client_key(keys, "node-1", bus::AllowedAt::kNodeDoor);
        stranger_file_ = *bus::add_client_key(keys, "client", bus::AllowedAt::kBothDoors);
        scheduler::Ports::Args args{.ranks = {.tp = tp, .nodes = nodes, .build = kBuild}};
        if (nodes > 1) {
            args.node_door = "127.0.0.1:0";
            args.door_keys = keys;
        }
        Result<scheduler::Ports> ports = scheduler::Ports::open(context_, *run_dir_, args);
        EXPECT_TRUE(ports) << ports.error().message;
        ports_.emplace(*std::move(ports));
        if (nodes > 1) node_endpoint_ = ports_->node_endpoint();
        thread_ = std::thread([this] { run(); });
    }
    ~Meeting() { end({}); }
    // Ends the scheduler's side.
    void end(const messages::Verdict& verdict) {
        if (!thread_.joinable()) return;
        verdict_ = verdict;
        is_over_ = true;
        thread_.join();
        ports_.reset();
    }

    [[nodiscard]] BusCommunicatorArgs args_of(int rank) const {
        BusCommunicatorArgs args{
            .endpoint = run_dir_->workers(ReplicaId{0}),
            .join_limit = seconds(20),
            .peer_limit = seconds(20)};
        args.join.build = kBuild;
        args.join.rank = static_cast<Rank>(rank);
        args.join.tp = tp_;
        args.join.nodes = nodes_;
        args.join.node = rank / (tp_ / nodes_);
        args.join.host = "here";
        if (args.join.node > 0) {
            args.endpoint = node_endpoint_;
            args.key = *bus::read_client_key(key_file_);
        }
        return args;
    }
    [[nodiscard]] std::unique_ptr<BusCommunicator> join(int rank) {
        Result<std::unique_ptr<BusCommunicator>> joined =
            BusCommunicator::join(ranks_context_, args_of(rank));
        EXPECT_TRUE(joined) << joined.error().message;
        return joined ? *std::move(joined) : nullptr;
    }
    // Calls fn on each rank, each on a thread.
    void on_ranks(const std::function<void(BusCommunicator&)>& fn) {
        std::vector<std::thread> threads;
        for (int rank = 0; rank < tp_; ++rank) {
            threads.emplace_back([&, rank] {
                const std::unique_ptr<BusCommunicator> ranks = join(rank);
                ASSERT_NE(ranks, nullptr);
                fn(*ranks);
            });
        }
        for (std::thread& thread : threads) thread.join();
    }
    [[nodiscard]] zmq::context_t& ranks_context() { return ranks_context_; }
    [[nodiscard]] std::string stranger_file() const { return stranger_file_; }
    [[nodiscard]] std::string loss() const { return loss_; }  // known after end()

  private:
    void run() {
        bus::Poller poller;
        ports_->add_to(poller);
        while (!is_over_) {
            static_cast<void>(ports_->receive());
            poller.wait(Clock::now() + milliseconds(2));
        }
        if (ports_->loss()) loss_ = ports_->loss()->message;
        ports_->end(verdict_);
    }

    int tp_;
    int nodes_;
    test::TempDir dir_{};
    zmq::context_t context_{};
    zmq::context_t ranks_context_{};
    std::optional<bus::RunDir> run_dir_{};
    std::optional<scheduler::Ports> ports_{};
    std::string node_endpoint_{};
    std::string key_file_{};
    std::string stranger_file_{};
    std::atomic<bool> is_over_{false};
    messages::Verdict verdict_{};
    std::string loss_{};
    std::thread thread_{};
};

// Values in [-1000, 1000) that use all bits of the mantissa, so that the order of a sum shows.
float value_of(int rank, std::size_t i) {
    const std::uint64_t bits = mix64(i * 64 + static_cast<std::uint64_t>(rank)) >> 40;
    return static_cast<float>(bits) * (2000.f / 0x1p24f) - 1000.f;
}

class BusRanks : public testing::TestWithParam<int> {};  // the number of machines

TEST_P(BusRanks, SumInRankOrderOnEveryRank) {
    const int size = 4;
    Meeting meeting(size, GetParam());
    meeting.on_ranks([&](BusCommunicator& ranks) {
        EXPECT_EQ(ranks.num_on_machine(), size / GetParam());
        for (const std::size_t n : {1u, 17u, 300'001u}) {  // the last one exceeds a part
            std::vector<float> expected(n);
            std::vector<float> data(n);
            for (std::size_t i = 0; i < n; ++i) {
                expected[i] = value_of(0, i);
                for (int rank = 1; rank < size; ++rank) expected[i] += value_of(rank, i);
                data[i] = value_of(raw(ranks.rank()), i);
            }
            const Result<> summed = ranks.all_reduce_sum(data);
            ASSERT_TRUE(summed) << summed.error().message;
            EXPECT_EQ(data, expected);
        }
    });
}

TEST_P(BusRanks, GatherAndBroadcastBytesOfAllSizes) {
    const int size = 2;
    Meeting meeting(size, GetParam());
    meeting.on_ranks([&](BusCommunicator& ranks) {
        const int rank = raw(ranks.rank());
        for (const std::size_t n : {std::size_t{1}, std::size_t{77}, std::size_t{1'500'001}}) {
            const std::vector<std::byte> mine(n, static_cast<std::byte>(rank + 1));
            std::vector<std::byte> all(n * 2, std::byte{0xee});
            ASSERT_TRUE(ranks.all_gather(mine, all));
            for (std::size_t i = 0; i < all.size(); ++i)
                ASSERT_EQ(all[i], static_cast<std::byte>(i / n + 1));
            std::vector<std::byte> said(n, static_cast<std::byte>(rank == 0 ? 9 : 0));
            ASSERT_TRUE(ranks.broadcast(said));
            ASSERT_EQ(said, std::vector<std::byte>(n, std::byte{9}));
        }
        ASSERT_TRUE(ranks.barrier());
    });
}

// V is no multiple of the number of ranks, or the last rank has nothing.
TEST_P(BusRanks, GatherColumnsAsFarAsTheyGo) {
    const int size = 4;
    Meeting meeting(size, GetParam());
    meeting.on_ranks([&](BusCommunicator& ranks) {
        const int rank = raw(ranks.rank());
        for (const std::int64_t V : {5, 8, 1001, 400'001}) {
            const std::int64_t C = (V + size - 1) / size;
            const std::int64_t n = 3;
            std::vector<float> part(static_cast<std::size_t>(n * C), -1.f);
            for (std::int64_t i = 0; i < n * C; ++i) {
                part[static_cast<std::size_t>(i)] =
                    static_cast<float>(i / C * V + rank * C + i % C);
            }
            std::vector<float> whole(static_cast<std::size_t>(rank == 0 ? n * V : 0), -2.f);
            ASSERT_TRUE(ranks.gather_columns(
                view2(std::as_const(part).data(), n, C), view2(whole.data(), n, V)
            ));
            for (std::size_t i = 0; i < whole.size(); ++i)
                ASSERT_EQ(whole[i], static_cast<float>(i));
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Machines, BusRanks, testing::Values(1, 2), [](const auto& of) {
    return of.param == 1 ? "One" : "Two";
});

TEST(BusCommunicator, P5_ARankThatDoesNotComeIsNamed) {
    Meeting meeting(2, 2);
    const auto first = meeting.join(0);
    const auto second = meeting.join(1);
    ASSERT_TRUE(first != nullptr && second != nullptr);
    const Result<> met = first->barrier_within(milliseconds(50));
    ASSERT_FALSE(met);
    EXPECT_EQ(met.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(met.error().message.find("rank 1 on node 1 (here)"), std::string::npos)
        << met.error().message;
    EXPECT_FALSE(first->barrier()) << "they would be out of step";
}

// Lets both ranks meet. After that the replica needs both.
void meet_once(BusCommunicator& first, BusCommunicator& second) {
    std::thread other([&] { EXPECT_TRUE(second.barrier()); });
    EXPECT_TRUE(first.barrier());
    other.join();
}

TEST(BusCommunicator, ARankThatLeavesBeforeAllHaveMetMayComeAgain) {
    Meeting meeting(2, 2);
    ASSERT_NE(meeting.join(1), nullptr);  // joins and leaves at once
    const auto first = meeting.join(0);
    std::unique_ptr<BusCommunicator> second;
    const TimePoint deadline = Clock::now() + seconds(20);
    while (second == nullptr && Clock::now() < deadline) {  // until the scheduler noticed the leave
        Result<std::unique_ptr<BusCommunicator>> joined =
            BusCommunicator::join(meeting.ranks_context(), meeting.args_of(1));
        if (joined) {
            second = *std::move(joined);
        } else {
            ASSERT_EQ(joined.error().code, ErrorCode::kAlreadyExists);
        }
    }
    ASSERT_TRUE(first != nullptr && second != nullptr);
    meet_once(*first, *second);
    meeting.end({});
    EXPECT_EQ(meeting.loss(), "");
}

TEST(BusCommunicator, P5_ARankWhoseConnectionEndsIsNamedAndTheReplicaWithIt) {
    Meeting meeting(2, 2);
    const auto first = meeting.join(0);
    auto second = meeting.join(1);
    ASSERT_TRUE(first != nullptr && second != nullptr);
    meet_once(*first, *second);
    second.reset();
    const Result<> met = first->barrier();
    ASSERT_FALSE(met);
    EXPECT_EQ(met.error().code, ErrorCode::kUnavailable);
    const std::string gone = "rank 1 on node 1 (here) is gone: its connection ended";
    EXPECT_NE(met.error().message.find(gone), std::string::npos) << met.error().message;
    meeting.end({});
    EXPECT_EQ(meeting.loss(), gone);
}

TEST(BusCommunicator, P5_ARanksLastWordsAreWhatTheOthersHear) {
    Meeting meeting(2, 2);
    const auto first = meeting.join(0);
    auto second = meeting.join(1);
    ASSERT_TRUE(first != nullptr && second != nullptr);
    meet_once(*first, *second);
    second->say_why({ErrorCode::kResourceExhausted, "no room for KV"});
    second.reset();
    const Result<> met = first->barrier();
    ASSERT_FALSE(met);
    EXPECT_NE(
        met.error().message.find("rank 1 on node 1 (here) is gone: no room for KV"),
        std::string::npos
    ) << met.error().message;
}

// Waits until the scheduler's message has arrived.
Result<bool> wait_for_end(BusCommunicator& ranks) {
    bus::Poller poller;
    ranks.add_to(poller);
    for (const TimePoint deadline = Clock::now() + seconds(20); Clock::now() < deadline;) {
        Result<bool> ended = ranks.has_ended();
        if (!ended || *ended) return ended;
        poller.wait(deadline);
    }
    return false;
}

TEST(BusCommunicator, AnotherMachineHearsOfTheHeadsEndAndWhy) {
    {
        Meeting meeting(2, 2);
        const auto second = meeting.join(1);
        ASSERT_NE(second, nullptr);
        EXPECT_FALSE(*second->has_ended());
        meeting.end({});
        const Result<bool> ended = wait_for_end(*second);
        ASSERT_TRUE(ended) << ended.error().message;
        EXPECT_TRUE(*ended) << "it was asked to end";
    }
    {
        Meeting meeting(2, 2);
        const auto second = meeting.join(1);
        ASSERT_NE(second, nullptr);
        meeting.end(Error{ErrorCode::kDeadlineExceeded, "step 7 never ended"});
        const Result<bool> ended = wait_for_end(*second);
        ASSERT_FALSE(ended);
        EXPECT_EQ(ended.error(), (Error{ErrorCode::kDeadlineExceeded, "step 7 never ended"}));
    }
}

TEST(BusCommunicator, AKeyThatIsNotANodesIsToldSo) {
    Meeting meeting(2, 2);
    BusCommunicatorArgs args = meeting.args_of(1);
    args.key = *bus::read_client_key(meeting.stranger_file());
    const auto joined = BusCommunicator::join(meeting.ranks_context(), std::move(args));
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().code, ErrorCode::kPermissionDenied) << joined.error().message;
}

TEST(BusCommunicator, ARankThatTrustsAnotherHeadGetsNoAnswerAndSaysSo) {
    Meeting meeting(2, 2);
    BusCommunicatorArgs args = meeting.args_of(1);
    args.key->server_key = bus::make_key_pair()->public_key;
    args.join_limit = milliseconds(300);
    const auto joined = BusCommunicator::join(meeting.ranks_context(), std::move(args));
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(joined.error().message.find("its key is not the one"), std::string::npos)
        << joined.error().message;
}

TEST(BusCommunicator, TheSecondOfTwoMachinesWithOneRankIsRefused) {
    Meeting meeting(2, 2);
    const auto second = meeting.join(1);
    ASSERT_NE(second, nullptr);
    const auto again = BusCommunicator::join(meeting.ranks_context(), meeting.args_of(1));
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists) << again.error().message;
}

}  // namespace
}  // namespace pitstop::tp_worker
