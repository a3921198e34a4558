// Broadcasts over TCP: the client library's side and the workers', joined.
#include "tp_worker/groups/groups.h"

#include "client/host_broadcast.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kNumWorkers = 3;

class HostGroupTest : public testing::Test {
  protected:
    void SetUp() override {
        auto trainer = HostBroadcast::listen({.group = "g", .num_workers = kNumWorkers});
        ASSERT_TRUE(trainer) << trainer.error().message;
        trainer_.emplace(*std::move(trainer));
    }
    messages::GroupSpec spec() const {
        messages::GroupSpec spec;
        spec.group = "g";
        spec.backend = messages::GroupBackend::kHost;
        spec.address = "127.0.0.1";
        spec.port = trainer_->port();
        spec.world_size = kNumWorkers + 1;
        return spec;
    }
    Patience patience() const { return {Clock::now() + seconds(20), never_}; }

    void join_all() {
        std::vector<std::future<Result<>>> joins;
        for (std::int64_t rank = 1; rank <= kNumWorkers; ++rank) {
            joins.push_back(std::async(std::launch::async, [this, rank] {
                return workers_[static_cast<std::size_t>(rank - 1)].init(spec(), rank, patience());
            }));
        }
        const Result<> accepted = trainer_->accept(seconds(20));
        ASSERT_TRUE(accepted) << accepted.error().message;
        for (auto& join : joins) ASSERT_TRUE(join.get());
    }

    std::atomic<bool> never_{false};
    std::optional<HostBroadcast> trainer_{};
    std::array<Groups, kNumWorkers> workers_{};
};

TEST_F(HostGroupTest, EveryWorkerGetsTheSameBytes) {
    join_all();
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{10'000'000}}) {
        std::vector<std::byte> sent(size);
        for (std::size_t i = 0; i < size; ++i) sent[i] = static_cast<std::byte>(i * 7 + size);
        std::vector<std::future<std::vector<std::byte>>> received;
        for (Groups& worker : workers_) {
            received.push_back(std::async(std::launch::async, [&] {
                std::vector<std::byte> bytes(size / 2, std::byte{0xaa});
                const Broadcast broadcast{.num = static_cast<std::int64_t>(size)};
                const Result<Landed> landed = worker.receive("g", broadcast, bytes, patience());
                EXPECT_TRUE(landed) << landed.error().message;
                EXPECT_TRUE(landed && landed->bytes.data() == bytes.data());
                EXPECT_FALSE(landed && landed->is_on_gpu);
                return bytes;
            }));
        }
        const Result<> done = trainer_->broadcast(sent, seconds(20));
        EXPECT_TRUE(done) << done.error().message;
        for (auto& bytes : received) EXPECT_EQ(bytes.get(), sent);
    }
}

TEST_F(HostGroupTest, AWorkerThatGivesUpSaysWhy) {
    join_all();
    workers_[1].refuse("g", "another shape");
    const std::vector<std::byte> bytes(50'000'000);
    const Result<> done = trainer_->broadcast(bytes, seconds(20));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, ErrorCode::kAborted);
    EXPECT_NE(done.error().message.find("rank 2 gave up: another shape"), std::string::npos)
        << done.error().message;
}

TEST_F(HostGroupTest, ATrainerThatIsGoneEndsTheGroup) {
    join_all();
    trainer_.reset();
    std::vector<std::byte> bytes(10);
    const Result<Landed> received = workers_[0].receive("g", {.num = 10}, bytes, patience());
    ASSERT_FALSE(received);
    EXPECT_EQ(received.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(
        workers_[0].receive("g", {.num = 10}, bytes, patience()).error().code, ErrorCode::kNotFound
    );
}

TEST_F(HostGroupTest, ATrainerThatDiedBetweenUpdatesIsInNobodysWay) {
    join_all();
    trainer_.reset();
    SetUp();  // the next trainer, with a group of the same name
    join_all();
    // A second group of that name is refused while its trainer lives.
    EXPECT_EQ(workers_[0].init(spec(), 1, patience()).error().code, ErrorCode::kAlreadyExists);
}

TEST_F(HostGroupTest, ATrainerThatDiedInMidBroadcastIsInNobodysWay) {
    join_all();
    const std::vector<std::byte> unread(10);
    static_cast<void>(trainer_->broadcast(unread, milliseconds(200)));
    trainer_.reset();
    SetUp();
    join_all();
}

TEST_F(HostGroupTest, AWorkerOfAnotherGroupIsToldSo) {
    messages::GroupSpec other = spec();
    other.world_size = 9;
    auto join =
        std::async(std::launch::async, [&] { return workers_[0].init(other, 1, patience()); });
    EXPECT_FALSE(trainer_->accept(milliseconds(500)));
    const Result<> joined = join.get();
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(joined.error().message.find("of 9 ranks"), std::string::npos)
        << joined.error().message;
}

// The refusal is forwarded in messages, whose texts are UTF-8.
TEST_F(HostGroupTest, ARefusalInAnyBytesIsAnErrorInText) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(listener, 1), 0);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    messages::GroupSpec other = spec();
    other.port = ntohs(address.sin_port);
    auto join =
        std::async(std::launch::async, [&] { return workers_[0].init(other, 1, patience()); });
    const int peer = ::accept(listener, nullptr, nullptr);
    const std::string refusal("\x03\0\0\0no\xff", 7);
    EXPECT_EQ(::send(peer, refusal.data(), refusal.size(), MSG_NOSIGNAL), 7);
    const Result<> joined = join.get();
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().message, "the trainer refuses: no\\xff");
    ::close(peer);
    ::close(listener);
}

TEST_F(HostGroupTest, P5_AWaitEndsWhenItIsCalledOff) {
    std::atomic<bool> is_over{false};
    auto join = std::async(std::launch::async, [&] {
        return workers_[0].init(spec(), 1, {Clock::now() + seconds(20), is_over});
    });
    is_over = true;
    const Result<> joined = join.get();
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().code, ErrorCode::kAborted);
}

}  // namespace
}  // namespace pitstop::tp_worker
