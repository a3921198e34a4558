// A pusher's sockets: which processes may connect to them.
#include "client/push_sockets.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace pitstop {
namespace {

constexpr ::uid_t kNobody = 65534;

// Returns whether ZeroMQ greets a connection to this abstract socket, instead of closing it.
bool is_greeted(const std::string& endpoint) {
    const std::string name = endpoint.substr(std::strlen("ipc://@"));
    ::sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto size = static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + 1 + name.size());
    if (::connect(fd, reinterpret_cast<const ::sockaddr*>(&address), size) != 0) return false;
    ::pollfd waits{.fd = fd, .events = POLLIN, .revents = 0};
    char byte = 0;
    const bool has_answer = ::poll(&waits, 1, 60'000) == 1 && ::recv(fd, &byte, 1, 0) == 1;
    ::close(fd);
    return has_answer;
}

// The result of is_greeted() in a process of `user`.
bool is_greeted_as(::uid_t user, const std::string& endpoint) {
    const ::pid_t child = ::fork();
    if (child == 0) {
        if (::setuid(user) != 0) ::_exit(2);
        ::_exit(is_greeted(endpoint) ? 1 : 0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 1;
}

TEST(PushSockets, AreOfOneUser) {
    const Result<PushSockets> sockets = PushSockets::bind({"gpu-0"});
    ASSERT_TRUE(sockets) << sockets.error().message;
    const std::string& endpoint = sockets->handles().at("gpu-0");
    EXPECT_TRUE(is_greeted(endpoint));
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    EXPECT_FALSE(is_greeted_as(kNobody, endpoint));
    EXPECT_TRUE(is_greeted_as(0, endpoint));
}

}  // namespace
}  // namespace pitstop
