#include "tp_worker/sources/reply_socket.h"

#include <gtest/gtest.h>
#include <zmq.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <dirent.h>
#include <pthread.h>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

std::string endpoint_of(const char* name) {
    return "ipc://@pitstop-reply-socket-test-" + std::to_string(::getpid()) + "-" + name;
}

// While this exists, the process can open no further file.
class NoFiles {
  public:
    NoFiles() {
        ::getrlimit(RLIMIT_NOFILE, &before_);
        const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
        ::setrlimit(RLIMIT_NOFILE, &none);
    }
    ~NoFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
    NoFiles(const NoFiles&) = delete;
    NoFiles& operator=(const NoFiles&) = delete;

  private:
    rlimit before_{};
};

TEST(ReplySocket, WithoutDescriptorsIsAnErrorAndNoException) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "UBSan opens a pipe to look at an object";
#endif
    const NoFiles none;
    const Result<ReplySocket> socket = ReplySocket::connect(endpoint_of("none"));
    ASSERT_FALSE(socket);
    EXPECT_EQ(socket.error().code, ErrorCode::kResourceExhausted);
}

TEST(ReplySocket, SignalsDoNotEndAWait) {
    struct sigaction action {};
    action.sa_handler = [](int) {};  // no SA_RESTART: system calls end with EINTR
    struct sigaction before {};
    ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
    zmq::context_t context;
    zmq::socket_t sender(context, zmq::socket_type::req);
    sender.bind(endpoint_of("signals"));
    Result<ReplySocket> socket = ReplySocket::connect(endpoint_of("signals"));
    ASSERT_TRUE(socket);
    const std::atomic<bool> never{false};
    std::atomic<bool> is_done{false};
    const pthread_t receiver = ::pthread_self();
    std::thread disturber([&] {
        for (int i = 0; i < 200; ++i) {
            ::pthread_kill(receiver, SIGUSR1);
            std::this_thread::yield();
        }
        sender.send(zmq::str_buffer("one"), zmq::send_flags::sndmore);
        sender.send(zmq::str_buffer("two"), zmq::send_flags::none);
        while (!is_done) {
            ::pthread_kill(receiver, SIGUSR1);
            std::this_thread::yield();
        }
    });
    const auto frames = socket->receive(Clock::now() + std::chrono::seconds(20), never);
    is_done = true;
    disturber.join();
    ::sigaction(SIGUSR1, &before, nullptr);
    ASSERT_TRUE(frames) << frames.error().message;
    EXPECT_EQ(*frames, (std::vector<std::string>{"one", "two"}));
}

}  // namespace
}  // namespace pitstop::tp_worker
