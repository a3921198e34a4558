// If any allocation of the server fails, the process continues and answers: only the connection
// concerned may end.
//
// A separate program, because it replaces the allocator. In each run other allocations of the
// server's thread fail, from the first to the last that the requests need.
#include "base/log.h"
#include "http_proc/generation/event_stream.h"
#include "http_proc/server/server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <netinet/in.h>
#include <new>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <sys/time.h>
#include <thread>
#include <unistd.h>

namespace {

thread_local bool is_server_thread = false;
std::atomic<long> num_allocated{0};
std::atomic<long> first_failing{0};  // 0: none fails
std::atomic<long> last_failing{0};

void* allocate(std::size_t size) {
    if (is_server_thread && first_failing != 0) {
        const long number = ++num_allocated;
        if (number >= first_failing && number <= last_failing) throw std::bad_alloc();
    }
    void* memory = std::malloc(size == 0 ? 1 : size);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

}  // namespace

// NOLINTBEGIN(misc-new-delete-overloads): the aligned ones are not used here
void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
// NOLINTEND(misc-new-delete-overloads)

namespace pitstop::http {
namespace {

constexpr std::chrono::milliseconds kPatience{300};  // how long the server waits for a client
constexpr int kDeadlineS = 60;                       // how long the test waits for the server
constexpr std::size_t kEventBytes = 1 << 20;         // more than a socket accepts at once
constexpr std::size_t kBodyBytes = 20'000;
constexpr long kAllocationsMax = 20'000;

Task<Response> ping(Exchange&) { co_return Response::empty(200); }

Task<Response> echo(Exchange& exchange) { co_return Response::text(200, exchange.request().body); }

Task<Response> events(Exchange& exchange) {
    EventStream stream(exchange);
    for (int i = 0; i < 2; ++i) {
        stream.begin_event().string(std::string(kEventBytes, 'x'));
        stream.end_event();
        const bool is_sent = co_await stream.send(/*more_is_ready=*/false);
        if (!is_sent) co_return Response::streamed();
    }
    co_await stream.end();
    co_return Response::streamed();
}

Router routes() {
    Router router;
    Route route{
        .methods = "GET",
        .path = "/ping",
        .dialect = Dialect::kPitstop,
        .access = Access::kOpen,
        .handler = ping,
        .needs_tree = false};
    router.add(route);
    route.path = "/events";
    route.handler = events;
    router.add(route);
    route.methods = "POST";
    route.path = "/echo";
    route.access = Access::kData;
    route.handler = echo;
    router.add(route);
    return router;
}

ServerOptions patient_options() {
    ServerOptions options;
    options.port = 0;
    options.limits.idle_timeout = options.limits.header_timeout = kPatience;
    options.limits.body_timeout = options.limits.write_timeout = kPatience;
    options.limits.stop_grace = kPatience;
    return options;
}

// Everything a client can do: whole bodies and chunked ones, errors, streams, and noise at the end.
std::string requests() {
    const std::string host = " HTTP/1.1\r\nHost: localhost\r\n";
    std::string text = "GET /ping" + host + "\r\n";
    text += fmt::format(
        "POST /echo{}Content-Length: {}\r\n\r\n{}", host, kBodyBytes, std::string(kBodyBytes, 'b')
    );
    text += "POST /echo" + host + "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
    text += "POST /echo" + host + "Origin: http://evil.example\r\nContent-Length: 0\r\n\r\n";
    text += "GET /nothing" + host + "\r\nDELETE /ping" + host + "\r\nOPTIONS /ping" + host + "\r\n";
    text += "POST /generate" + host + "Content-Length: 0\r\n\r\n";
    text += "GET /events" + host + "\r\n";
    return text + "noise\r\n\r\nmore of it";
}

class OutOfMemoryTest : public ::testing::Test {
  protected:
    OutOfMemoryTest() {
        spdlog::set_level(spdlog::level::off);
        EXPECT_TRUE(server_.listen());
        const std::string url = server_.url();
        port_ = static_cast<std::uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
        loop_ = std::thread([this] {
            is_server_thread = true;
            server_.run();
        });
    }
    ~OutOfMemoryTest() override {
        server_.post([this] { server_.stop(); });
        loop_.join();
    }

    // Returns the server's answer to `text`, up to its end of the connection. Fails without that
    // end.
    std::string answers_to(std::string_view text) const {
        const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
        const ::timeval patience{.tv_sec = kDeadlineS, .tv_usec = 0};
        ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        ::sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port_);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(::connect(fd, reinterpret_cast<::sockaddr*>(&address), sizeof address), 0);
        ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);  // the server may close it earlier
        std::string answers(kEventBytes, '\0');
        std::size_t num_bytes = 0;
        ssize_t received = 0;
        while ((received = ::recv(fd, answers.data() + num_bytes, answers.size() - num_bytes, 0)) >
               0) {
            num_bytes += static_cast<std::size_t>(received);
            if (num_bytes == answers.size()) answers.resize(2 * num_bytes);
        }
        EXPECT_TRUE(received == 0 || errno == ECONNRESET) << "it neither answers nor closes";
        ::close(fd);
        answers.resize(num_bytes);
        return answers;
    }

    ServerContext context_{patient_options()};
    Router router_ = routes();
    Server server_{context_, router_};
    std::uint16_t port_ = 0;
    std::thread loop_{};
};

TEST_F(OutOfMemoryTest, ARequestCostsItsConnectionAlone) {
    const std::string ping = "GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    const std::string whole = answers_to(requests());
    ASSERT_GT(whole.size(), 2 * kEventBytes + kBodyBytes);
    for (const long in_a_row : {1, 2, 5}) {
        long first = 1;
        for (; first < kAllocationsMax; ++first) {
            num_allocated = 0;
            last_failing = first + in_a_row - 1;
            first_failing = first;
            answers_to(requests());
            first_failing = 0;
            const bool is_past_the_last = num_allocated < first;
            ASSERT_TRUE(answers_to(ping).starts_with("HTTP/1.1 200 "))
                << in_a_row << " from allocation " << first << " on";
            if (is_past_the_last) break;
        }
        EXPECT_GT(first, 30) << "the requests need memory";
        EXPECT_LT(first, kAllocationsMax);
    }
    EXPECT_EQ(answers_to(requests()).size(), whole.size());
}

}  // namespace
}  // namespace pitstop::http
