// Makes more real connections than a listener accepts. Each wait is for a condition, with a
// deadline.
#include "bus/listener.h"

#include "base/time.h"
#include "bus/poller.h"
#include "bus/socket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <poll.h>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pitstop::bus {
namespace {

using namespace std::chrono_literals;

constexpr Duration kDeadline = 60s;

// Owns a descriptor and closes it.
class Fd {
  public:
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Fd() {
        if (fd_ >= 0) ::close(fd_);
    }
    [[nodiscard]] int get() const { return fd_; }

  private:
    int fd_;
};

bool connect_to(const std::string& path, int fd) {
    ::sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    return ::connect(fd, reinterpret_cast<const ::sockaddr*>(&address), sizeof address) == 0;
}

Fd raw_socket() { return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

// Returns whether the other end has closed the connection. First reads ZeroMQ's greeting.
bool is_closed(const Fd& fd) {
    char bytes[256];
    for (int i = 0; i < 100; ++i) {
        const ssize_t num = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
        if (num == 0) return true;
        if (num < 0) return errno == ECONNRESET;
    }
    return false;
}

bool comes_true(const std::function<bool()>& condition) {
    for (const TimePoint deadline = Clock::now() + kDeadline; Clock::now() < deadline;) {
        if (condition()) return true;
        ::poll(nullptr, 0, 1);
    }
    return false;
}

class ListenerTest : public testing::Test {
  protected:
    void SetUp() override {
        char pattern[] = "/tmp/pitstop-test-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern), nullptr);
        path_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(path_); }

    [[nodiscard]] std::string file() const { return path_ + "/a.sock"; }
    Socket bind(int connections_max) {
        SocketLimits limits = kDoorLimits;
        limits.connections_max = connections_max;
        Result<Socket> socket =
            Socket::bind(context_, SocketKind::kRouter, "ipc://" + file(), limits);
        EXPECT_TRUE(socket) << socket.error().message;
        return *std::move(socket);
    }
    Socket connect() {
        Result<Socket> socket =
            Socket::connect(context_, SocketKind::kDealer, "ipc://" + file(), kDoorLimits);
        EXPECT_TRUE(socket) << socket.error().message;
        return *std::move(socket);
    }
    static bool arrives(Socket& to) {
        Poller poller;
        poller.add(to);
        for (const TimePoint deadline = Clock::now() + kDeadline; Clock::now() < deadline;) {
            if (to.receive()) return true;
            poller.wait(deadline);
        }
        return false;
    }
    std::vector<Fd> open_raw(int num) {
        std::vector<Fd> all;
        for (int i = 0; i < num; ++i) {
            all.push_back(raw_socket());
            EXPECT_TRUE(connect_to(file(), all.back().get()));
        }
        return all;
    }

    std::string path_{};
    zmq::context_t context_{};
};

TEST_F(ListenerTest, TakesAsManyConnectionsAsItMayAndClosesTheNext) {
    Socket door = bind(4);
    const Listener& listener = *door.listeners().front();
    EXPECT_EQ(listener.connections_max(), 4);
    Socket honest = connect();
    ASSERT_EQ(honest.send({"hello", "", {}}), Sent::kSent);
    ASSERT_TRUE(arrives(door));

    std::vector<Fd> raw = open_raw(20);
    ASSERT_TRUE(comes_true([&] { return listener.counts().refused_total == 17; }));
    EXPECT_EQ(listener.counts().open, 4);
    EXPECT_EQ(listener.counts().accepted_total, 4);
    const auto num_closed = [&] { return std::ranges::count_if(raw, is_closed); };
    EXPECT_TRUE(comes_true([&] { return num_closed() == 17; })) << num_closed();

    // Existing connections stay. After the surplus ones have closed, a new client is accepted.
    ASSERT_EQ(honest.send({"hello", "", {}}), Sent::kSent);
    EXPECT_TRUE(arrives(door));
    raw.clear();
    Socket late = connect();
    ASSERT_EQ(late.send({"hello", "", {}}), Sent::kSent);
    EXPECT_TRUE(arrives(door));
    EXPECT_LE(listener.counts().open, 4);
}

TEST_F(ListenerTest, AnEndedConnectionIsNotCountedAgainstTheNext) {
    Socket door = bind(1);
    const Listener& listener = *door.listeners().front();
    for (int i = 0; i < 50; ++i) {
        Socket client = connect();  // retries until the previous client's place is free
        ASSERT_EQ(client.send({"hello", "", {}}), Sent::kSent);
        ASSERT_TRUE(arrives(door)) << i;
    }
    EXPECT_EQ(listener.counts().accepted_total, 50);
}

TEST_F(ListenerTest, WithoutADescriptorNoClientIsTakenAndTheProcessGoesOn) {
    Socket door = bind(1000);
    Socket honest = connect();
    ASSERT_EQ(honest.send({"hello", "", {}}), Sent::kSent);
    ASSERT_TRUE(arrives(door));
    std::vector<Fd> raw;
    for (int i = 0; i < 20; ++i) raw.push_back(raw_socket());

    ::rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    ::rlimit few = before;
    few.rlim_cur = 256;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<Fd> all;
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) all.emplace_back(fd);
    EXPECT_EQ(errno, EMFILE);
    for (const Fd& fd : raw) EXPECT_TRUE(connect_to(file(), fd.get()));
    EXPECT_TRUE(comes_true([&] { return std::ranges::all_of(raw, is_closed); }));
    EXPECT_GE(door.listeners().front()->counts().refused_total, 20);
    EXPECT_EQ(honest.send({"hello", "", {}}), Sent::kSent);
    EXPECT_TRUE(arrives(door));

    all.clear();
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    Socket late = connect();
    ASSERT_EQ(late.send({"hello", "", {}}), Sent::kSent);
    EXPECT_TRUE(arrives(door));
}

TEST_F(ListenerTest, ASilentConnectionLosesItsPlace) {
    SocketLimits limits = kDoorLimits;
    limits.connections_max = 2;
    limits.handshake_ms = 50;
    Result<Socket> door = Socket::bind(context_, SocketKind::kRouter, "ipc://" + file(), limits);
    ASSERT_TRUE(door);
    const std::vector<Fd> raw = open_raw(2);
    EXPECT_TRUE(comes_true([&] { return std::ranges::all_of(raw, is_closed); }));
    EXPECT_TRUE(comes_true([&] { return (*door).listeners().front()->counts().open == 0; }));
}

TEST_F(ListenerTest, SaysWhatIsWrongWithAnEndpoint) {
    for (const char* endpoint :
         {"tcp://localhost:1",
          "tcp://127.0.0.1",
          "tcp://127.0.0.1:",
          "tcp://127.0.0.1:65536",
          "tcp://127.0.0.1:12x",
          "tcp://[::1:12",
          "ipc://",
          "udp://1.2.3.4:5",
          ""}) {
        const auto listener = Listener::open(endpoint, 1);
        ASSERT_FALSE(listener.has_value()) << endpoint;
        EXPECT_EQ(listener.error().code, ErrorCode::kInvalidArgument);
        EXPECT_NE(listener.error().message.find("accepted are ipc:///path"), std::string::npos);
    }
    const auto first = Listener::open("tcp://127.0.0.1:0", 1);
    ASSERT_TRUE(first) << first.error().message;
    const auto second = Listener::open((*first)->endpoint(), 1);
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(second.error().message.find("in use"), std::string::npos) << second.error().message;
    EXPECT_TRUE(Listener::open("tcp://[::1]:0", 1));
}

}  // namespace
}  // namespace pitstop::bus
