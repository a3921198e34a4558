// Tests real sockets in a directory of their own. Each wait is for a condition, with a deadline
// that fails the test.
#include "bus/socket.h"

#include "bus/poller.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>
#include <vector>

namespace pitstop::bus {
namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;

constexpr Duration kDeadline = 20s;
constexpr SocketLimits kSmall{
    .frame_bytes_max = 2000, .message_bytes_max = 1000, .queue_len_max = 4};

class SocketTest : public testing::Test {
  protected:
    void SetUp() override {
        char pattern[] = "/tmp/pitstop-test-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern), nullptr);
        path_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(path_); }

    [[nodiscard]] std::string endpoint(const std::string& name) const {
        return "ipc://" + path_ + "/" + name + ".sock";
    }
    Socket bind(SocketKind kind, const SocketLimits& limits = kSmall) {
        Result<Socket> socket = Socket::bind(context_, kind, endpoint("a"), limits);
        EXPECT_TRUE(socket) << socket.error().message;
        return *std::move(socket);
    }
    Socket connect(SocketKind kind, const SocketLimits& limits = kSmall) {
        Result<Socket> socket = Socket::connect(context_, kind, endpoint("a"), limits);
        EXPECT_TRUE(socket) << socket.error().message;
        return *std::move(socket);
    }
    // Waits for the next message.
    static Received receive(Socket& socket) {
        Poller poller;
        poller.add(socket);
        for (const TimePoint deadline = Clock::now() + kDeadline; Clock::now() < deadline;) {
            if (std::optional<Received> received = socket.receive()) return *std::move(received);
            poller.wait(deadline);
        }
        ADD_FAILURE() << "nothing came";
        return {};
    }
    // Sends raw parts, which need not form a valid Frames.
    static void send_parts(Socket& socket, const std::vector<std::string>& parts) {
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const bool more = i + 1 < parts.size();
            socket.raw_socket().send(
                zmq::buffer(parts[i]), more ? zmq::send_flags::sndmore : zmq::send_flags::none
            );
        }
    }

    std::string path_{};
    zmq::context_t context_{};
};

TEST_F(SocketTest, AMessageArrivesWithItsFramesAndItsSender) {
    Socket router = bind(SocketKind::kRouter);
    Socket one = connect(SocketKind::kDealer);
    Socket two = connect(SocketKind::kDealer);
    ASSERT_EQ(one.send({"hello", "body\0x"s, {"raw", ""}}), Sent::kSent);
    const Received first = receive(router);
    EXPECT_FALSE(first.refused);
    EXPECT_EQ(first.frames.type, "hello");
    EXPECT_EQ(first.frames.body, "body\0x"s);
    EXPECT_EQ(first.frames.raw, (std::vector<std::string>{"raw", ""}));
    ASSERT_EQ(two.send({"hello", "two", {}}), Sent::kSent);
    const Received second = receive(router);
    EXPECT_NE(first.peer, second.peer);

    ASSERT_EQ(router.send({"reply", "to two", {}}, second.peer), Sent::kSent);
    ASSERT_EQ(router.send({"reply", "to one", {}}, first.peer), Sent::kSent);
    EXPECT_EQ(receive(one).frames.body, "to one");
    EXPECT_EQ(receive(two).frames.body, "to two");
}

TEST_F(SocketTest, WithoutAMessageNothingIsReceived) {
    Socket router = bind(SocketKind::kRouter);
    EXPECT_FALSE(router.receive());
}

TEST_F(SocketTest, MessagesOfOneSenderKeepTheirOrder) {
    Socket pull = bind(SocketKind::kPull, kInnerLimits);
    Socket push = connect(SocketKind::kPush, kInnerLimits);
    for (int i = 0; i < 1000; ++i) {
        ASSERT_EQ(push.send({"n", std::to_string(i), {}}), Sent::kSent);
    }
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(receive(pull).frames.body, std::to_string(i));
}

TEST_F(SocketTest, AMessageOfTheWrongShapeIsRefusedAndTheNextOneTaken) {
    Socket router = bind(SocketKind::kRouter);
    Socket dealer = connect(SocketKind::kDealer);
    send_parts(dealer, {"alone"});
    const Received alone = receive(router);
    ASSERT_TRUE(alone.refused);
    EXPECT_EQ(alone.refused->code, ErrorCode::kMalformed);
    EXPECT_FALSE(alone.peer.empty()) << "whom to answer";

    send_parts(dealer, {std::string(messages::kTypeBytesMax + 1, 't'), "body"});
    const Received long_type = receive(router);
    ASSERT_TRUE(long_type.refused);
    EXPECT_EQ(long_type.refused->code, ErrorCode::kMalformed);

    send_parts(dealer, std::vector<std::string>(2 + messages::kRawFramesMax + 1, "x"));
    const Received many = receive(router);
    ASSERT_TRUE(many.refused);
    EXPECT_EQ(many.refused->code, ErrorCode::kTooLarge);
    EXPECT_TRUE(many.frames.raw.empty()) << "nothing of it is kept";

    send_parts(dealer, std::vector<std::string>(2 + messages::kRawFramesMax, "x"));
    EXPECT_EQ(receive(router).frames.raw.size(), messages::kRawFramesMax);
    send_parts(dealer, {std::string(messages::kTypeBytesMax, 't'), "body"});
    EXPECT_FALSE(receive(router).refused);
}

TEST_F(SocketTest, AMessageOverItsLimitIsRefusedWithTheLimit) {
    Socket router = bind(SocketKind::kRouter);
    Socket dealer = connect(SocketKind::kDealer);
    send_parts(dealer, {"t", std::string(500, 'b'), std::string(499, 'r')});
    EXPECT_FALSE(receive(router).refused) << "exactly at the limit";
    send_parts(dealer, {"t", std::string(500, 'b'), std::string(500, 'r')});
    const Received over = receive(router);
    ASSERT_TRUE(over.refused);
    EXPECT_EQ(over.refused->code, ErrorCode::kTooLarge);
    EXPECT_NE(over.refused->message.find("1000 bytes"), std::string::npos);
}

TEST_F(SocketTest, AFrameOverItsLimitEndsThatConnectionOnly) {
    Socket router = bind(SocketKind::kRouter);
    Socket bad = connect(SocketKind::kDealer);
    Socket good = connect(SocketKind::kDealer);
    ASSERT_EQ(good.send({"t", "before", {}}), Sent::kSent);
    const std::string good_peer = receive(router).peer;
    send_parts(bad, {"t", std::string(5000, 'b')});
    ASSERT_EQ(good.send({"t", "after", {}}), Sent::kSent);
    const Received received = receive(router);
    EXPECT_EQ(received.frames.body, "after");
    EXPECT_EQ(received.peer, good_peer);
    EXPECT_FALSE(router.receive());
}

TEST_F(SocketTest, SendingToAPeerThatWentAwaySaysSo) {
    Socket router = bind(SocketKind::kRouter);
    EXPECT_EQ(router.send({"t", "b", {}}, "nobody"), Sent::kGone);
    std::string peer;
    {
        Socket dealer = connect(SocketKind::kDealer);
        ASSERT_EQ(dealer.send({"t", "b", {}}), Sent::kSent);
        peer = receive(router).peer;
    }
    Poller poller;
    poller.add(router);
    Sent sent = Sent::kSent;
    for (const TimePoint end = Clock::now() + kDeadline;
         Clock::now() < end && sent != Sent::kGone;) {
        sent = router.send({"t", "b", {}}, peer);
        poller.wait(Clock::now() + 5ms);
    }
    EXPECT_EQ(sent, Sent::kGone);
}

TEST_F(SocketTest, APeerThatDoesNotReadFillsItsOwnQueueOnly) {
    Socket router = bind(SocketKind::kRouter);
    Socket slow = connect(SocketKind::kDealer);
    Socket quick = connect(SocketKind::kDealer);
    ASSERT_EQ(slow.send({"t", "slow", {}}), Sent::kSent);
    const std::string slow_peer = receive(router).peer;
    ASSERT_EQ(quick.send({"t", "quick", {}}), Sent::kSent);
    const std::string quick_peer = receive(router).peer;

    // The queues at both ends (4 each) and the kernel's buffers in between hold this much at most.
    constexpr int kSendsMax = 100'000;
    int num_sent = 0;
    while (num_sent < kSendsMax &&
           router.send({"t", std::string(900, 'x'), {}}, slow_peer) == Sent::kSent)
        ++num_sent;
    EXPECT_LT(num_sent, kSendsMax);
    EXPECT_EQ(router.send({"t", "b", {}}, slow_peer), Sent::kFull);
    EXPECT_EQ(router.send({"t", "you", {}}, quick_peer), Sent::kSent);
    EXPECT_EQ(receive(quick).frames.body, "you");

    // Each sent message arrives whole, and no other message arrives.
    for (int i = 0; i < num_sent; ++i) ASSERT_EQ(receive(slow).frames.body.size(), 900U);
    EXPECT_FALSE(slow.receive());
}

TEST_F(SocketTest, AQueueIsFullWhenItsLimitIsReached) {
    Socket push = connect(SocketKind::kPush);  // nobody listens
    for (int i = 0; i < kSmall.queue_len_max; ++i) {
        ASSERT_EQ(push.send({"t", "b", {"r", "s"}}), Sent::kSent);
    }
    EXPECT_EQ(push.send({"t", "b", {"r", "s"}}), Sent::kFull);
    // A peer that connects late gets the messages queued for it, and no others.
    Socket pull = bind(SocketKind::kPull);
    for (int i = 0; i < kSmall.queue_len_max; ++i) {
        EXPECT_EQ(receive(pull).frames.raw.size(), 2U);
    }
    EXPECT_FALSE(pull.receive());
}

TEST_F(SocketTest, AnImpossibleEndpointIsAnError) {
    const auto code_of = [&](const std::string& bad) {
        const Result<Socket> socket = Socket::bind(context_, SocketKind::kPull, bad, kSmall);
        return socket ? std::optional<ErrorCode>() : socket.error().code;
    };
    EXPECT_EQ(code_of("ipc:///no/such/dir/a.sock"), ErrorCode::kUnavailable);
    EXPECT_EQ(code_of("carrier-pigeon://x"), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of(""), ErrorCode::kInvalidArgument);
}

TEST_F(SocketTest, ThePollerWakesForFilesAndHoldsItsDeadline) {
    int fds[2];
    ASSERT_EQ(::pipe(fds), 0);
    Socket pull = bind(SocketKind::kPull);
    Poller poller;
    const std::size_t socket_index = poller.add(pull);
    const std::size_t fd_index = poller.add_fd(fds[0]);
    const TimePoint begin = Clock::now();
    poller.wait(begin + 30ms);
    EXPECT_GE(Clock::now() - begin, 30ms);
    EXPECT_FALSE(poller.is_ready(socket_index));
    EXPECT_FALSE(poller.is_ready(fd_index));
    ASSERT_EQ(::write(fds[1], "x", 1), 1);
    poller.wait(Clock::now() + kDeadline);
    EXPECT_TRUE(poller.is_ready(fd_index));
    EXPECT_FALSE(poller.is_ready(socket_index));
    poller.wait(begin - 1s);  // a deadline in the past: polls once and returns
    EXPECT_TRUE(poller.is_ready(fd_index));
    ::close(fds[0]);
    ::close(fds[1]);
}

}  // namespace
}  // namespace pitstop::bus
