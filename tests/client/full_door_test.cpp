// A door that takes no more connections: each is closed at once.
#include "base/time.h"
#include "client/client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace pitstop {
namespace {

using namespace std::chrono_literals;

// Listens at a path, closes each connection and counts it.
class FullDoor {
  public:
    explicit FullDoor(const std::string& path)
        : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
        ::sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
        EXPECT_EQ(::bind(fd_, reinterpret_cast<const ::sockaddr*>(&address), sizeof address), 0);
        EXPECT_EQ(::listen(fd_, 128), 0);
        thread_ = std::thread([this] {
            while (!is_over_) {
                ::pollfd poll{fd_, POLLIN, 0};
                ::poll(&poll, 1, 10);
                for (int fd = ::accept(fd_, nullptr, nullptr); fd >= 0;
                     fd = ::accept(fd_, nullptr, nullptr)) {
                    ++num_taken_;
                    ::close(fd);
                }
            }
        });
    }
    ~FullDoor() {
        is_over_ = true;
        thread_.join();
        ::close(fd_);
    }
    FullDoor(const FullDoor&) = delete;
    FullDoor& operator=(const FullDoor&) = delete;
    [[nodiscard]] int num_taken() const { return num_taken_; }

  private:
    int fd_;
    std::atomic<bool> is_over_{false};
    std::atomic<int> num_taken_{0};
    std::thread thread_;
};

TEST(FullDoor, AClientKnocksNowAndThenAndSaysThatNobodyIsReady) {
    char pattern[] = "/tmp/pitstop-test-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    const std::string path = std::string(pattern) + "/data.sock";
    {
        const FullDoor door(path);
        const TimePoint begin = Clock::now();
        const auto client =
            Client::connect({.data_endpoint = "ipc://" + path, .connect_timeout = 1s});
        ASSERT_FALSE(client.has_value());
        EXPECT_EQ(client.error().code, ErrorCode::kUnavailable);
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        EXPECT_GT(door.num_taken(), 1);
        // At most one connection per 20 ms; without a pause there would be tens of thousands.
        EXPECT_LT(door.num_taken(), 20 + 100 * seconds) << seconds;
    }
    std::filesystem::remove_all(pattern);
}

}  // namespace
}  // namespace pitstop
