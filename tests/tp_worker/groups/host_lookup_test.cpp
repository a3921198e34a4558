// Looks up names with a name server that never answers. A thread has a mount namespace of its own,
// in which resolv.conf names a socket of the test.
#include "tp_worker/groups/host_lookup.h"

#include "tp_worker/groups/tcp_stream.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

using namespace std::chrono_literals;

const std::atomic<bool> kNever{false};

TEST(HostLookup, ANumberIsItsOwnAddress) {
    const auto v4 = look_up_host("127.0.0.1", 80, {.is_called_off = kNever});
    ASSERT_TRUE(v4.has_value());
    ASSERT_EQ(v4->size(), 1u);
    ::sockaddr_in address{};
    std::memcpy(&address, &v4->front().address, sizeof address);
    EXPECT_EQ(v4->front().family, AF_INET);
    EXPECT_EQ(ntohs(address.sin_port), 80);
    EXPECT_EQ(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK);
    const auto v6 = look_up_host("::1", 80, {.is_called_off = kNever});
    ASSERT_TRUE(v6.has_value());
    EXPECT_EQ(v6->front().family, AF_INET6);
}

TEST(HostLookup, ANameOfTheHostsFileIsFound) {
    const auto found = look_up_host("localhost", 80, {.is_called_off = kNever});
    ASSERT_TRUE(found.has_value()) << found.error().message;
    EXPECT_FALSE(found->empty());
}

class SilentNameServer : public testing::Test {
  protected:
    void SetUp() override {
        // An address of its own, so that tests that run at the same time do not bind the same one.
        const auto pid = static_cast<unsigned>(::getpid());
        address_ = fmt::format("127.{}.{}.53", 1 + (pid >> 8) % 250, 1 + pid % 250);
        socket_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        ::sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_port = htons(53);
        ASSERT_EQ(::inet_pton(AF_INET, address_.c_str(), &at.sin_addr), 1);
        if (::bind(socket_, reinterpret_cast<::sockaddr*>(&at), sizeof at) != 0)
            GTEST_SKIP() << "port 53 cannot be bound here";
        std::string name = "/tmp/pitstop_test.XXXXXX";
        dir_ = ::mkdtemp(name.data());
        std::ofstream(dir_ + "/resolv.conf")
            << "nameserver " << address_ << "\noptions timeout:30 attempts:5\n";
    }
    void TearDown() override {
        ::close(socket_);
        if (!dir_.empty()) std::filesystem::remove_all(dir_);
    }

    // Runs `body` on a thread that uses the silent name server, as do the threads that it starts.
    void run(const std::function<void()>& body) {
        bool is_isolated = false;
        std::thread([&] {
            const std::string file = dir_ + "/resolv.conf";
            is_isolated = ::unshare(CLONE_NEWNS) == 0 &&
                          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                          ::mount(file.c_str(), "/etc/resolv.conf", nullptr, MS_BIND, nullptr) == 0;
            if (is_isolated) body();
        }).join();
        if (!is_isolated) GTEST_SKIP() << "mounting is not allowed here";
    }
    [[nodiscard]] bool was_asked() const {
        ::pollfd item{socket_, POLLIN, 0};
        return ::poll(&item, 1, 20'000) == 1;
    }

    int socket_ = -1;
    std::string address_{};
    std::string dir_{};
};

TEST_F(SilentNameServer, AConnectionEndsAtItsDeadline) {
    run([&] {
        const auto stream = TcpStream::connect(
            "trainer.example", 80, {.deadline = Clock::now() + 300ms, .is_called_off = kNever}
        );
        ASSERT_FALSE(stream.has_value());
        EXPECT_EQ(stream.error().code, ErrorCode::kDeadlineExceeded) << stream.error().message;
        EXPECT_NE(stream.error().message.find("trainer.example"), std::string::npos);
        EXPECT_TRUE(was_asked());
    });
}

TEST_F(SilentNameServer, AConnectionIsCalledOff) {
    std::atomic<bool> is_called_off{false};
    run([&] {
        std::thread caller([&] {
            EXPECT_TRUE(was_asked());  // the look-up is under way
            is_called_off = true;
        });
        const auto stream = TcpStream::connect(
            "trainer.example",
            80,
            {.deadline = Clock::now() + std::chrono::hours(1), .is_called_off = is_called_off}
        );
        EXPECT_EQ(stream.error().code, ErrorCode::kAborted) << stream.error().message;
        caller.join();
    });
}

// Must be the last test: its look-ups still wait when it ends.
TEST_F(SilentNameServer, LookUpsThatWereLeftBehindAreBounded) {
    run([&] {
        ErrorCode code = ErrorCode::kDeadlineExceeded;
        int num_left = 0;
        for (; num_left <= kLookupsMax && code == ErrorCode::kDeadlineExceeded; ++num_left) {
            code =
                look_up_host(
                    "trainer.example", 80, {.deadline = Clock::now() + 1ms, .is_called_off = kNever}
                )
                    .error()
                    .code;
        }
        EXPECT_EQ(code, ErrorCode::kResourceExhausted);
        EXPECT_LE(num_left, kLookupsMax + 1);
        // Numbers need no look-up.
        EXPECT_TRUE(look_up_host("127.0.0.1", 80, {.is_called_off = kNever}).has_value());
    });
}

}  // namespace
}  // namespace pitstop::tp_worker
