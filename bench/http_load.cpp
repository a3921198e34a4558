#include "bench/http_load.h"

#include "base/time.h"

#include <charconv>
#include <memory>
#include <string_view>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace pitstop::bench {
namespace {

constexpr std::string_view kLastChunk = "\r\n0\r\n\r\n";
constexpr std::string_view kLength = "Content-Length: ";
constexpr std::string_view kTokens = "\"completion_tokens\":";

double ms_between(TimePoint from, TimePoint to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
}

struct Connection {
    HttpSocket socket{};
    TimePoint start{};
    std::string answer{};      // of a stream only the end; any other answer whole
    std::size_t body_end = 0;  // where an answer with Content-Length ends; 0: not known yet
    std::int64_t tokens = 0;
    bool is_chunked = false;
};

std::int64_t number_after(std::string_view text, std::size_t at) {
    std::int64_t value = 0;
    std::from_chars(text.data() + at, text.data() + text.size(), value);
    return value;
}

// Reads the number that follows the last `key`, if any.
void take_last(std::string_view text, std::string_view key, std::int64_t& value) {
    const std::size_t place = text.rfind(key);
    if (place != std::string_view::npos) value = number_after(text, place + key.size());
}

// Returns whether the answer is complete.
bool is_complete(Connection& connection) {
    std::string& answer = connection.answer;
    if (!connection.is_chunked && connection.body_end == 0) {
        const std::size_t head_end = answer.find("\r\n\r\n");
        if (head_end == std::string::npos) return false;
        const std::string_view head = std::string_view(answer).substr(0, head_end);
        const std::size_t length = head.find(kLength);
        connection.is_chunked = length == std::string_view::npos;
        if (!connection.is_chunked) {
            connection.body_end =
                head_end + 4 +
                static_cast<std::size_t>(number_after(head, length + kLength.size()));
        }
    }
    if (!connection.is_chunked) {
        if (answer.size() < connection.body_end) return false;
        take_last(answer, kTokens, connection.tokens);
        return true;
    }
    take_last(answer, kTokens, connection.tokens);
    if (std::string_view(answer).ends_with(kLastChunk)) return true;
    // kept from one read to the next: a number or an end marker may be cut in two
    constexpr std::size_t kTail = 64;
    if (answer.size() > kTail) answer.erase(0, answer.size() - kTail);
    return false;
}

Result<> send_request(Connection& connection, const std::string& request) {
    connection.start = Clock::now();
    connection.answer.clear();
    connection.body_end = 0;
    connection.tokens = 0;
    connection.is_chunked = false;
    return connection.socket.send(request);
}

}  // namespace

Result<HttpLoadResult> run_http_load(const HttpLoad& load) {
    const std::string request = http_request("POST", "/generate", load.body);
    HttpLoadResult result;
    const int poll = ::epoll_create1(EPOLL_CLOEXEC);
    const std::unique_ptr<const int, void (*)(const int*)> closer(&poll, [](const int* fd) {
        ::close(*fd);
    });
    std::vector<std::unique_ptr<Connection>> connections;
    int num_sent = 0;
    const TimePoint begin = Clock::now();
    for (int i = 0; i < load.connections && num_sent < load.requests; ++i, ++num_sent) {
        Connection& connection = *connections.emplace_back(std::make_unique<Connection>());
        ASSIGN_OR_RETURN(connection.socket, HttpSocket::connect(load.server));
        ::epoll_event event{.events = EPOLLIN, .data = {.ptr = &connection}};
        ::epoll_ctl(poll, EPOLL_CTL_ADD, connection.socket.fd(), &event);
        RETURN_IF_ERROR(send_request(connection, request));
    }
    int num_done = 0;
    std::vector<char> buffer(256 << 10);
    std::vector<::epoll_event> events(256);
    while (num_done < load.requests) {
        if (Clock::now() - begin > load.timeout)
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "{} requests have not ended in time",
                load.requests - num_done
            );
        const int num = ::epoll_wait(poll, events.data(), static_cast<int>(events.size()), 1000);
        for (int e = 0; e < num; ++e) {
            Connection& connection =
                *static_cast<Connection*>(events[static_cast<std::size_t>(e)].data.ptr);
            const ssize_t got = ::recv(connection.socket.fd(), buffer.data(), buffer.size(), 0);
            if (got <= 0)
                return make_error(ErrorCode::kUnavailable, "the server closed a connection");
            const bool is_first = connection.answer.empty() && !connection.is_chunked;
            connection.answer.append(buffer.data(), static_cast<std::size_t>(got));
            if (is_first && !connection.answer.starts_with("HTTP/1.1 200"))
                return make_error(
                    ErrorCode::kInternal, "not an answer with status 200: {}", connection.answer
                );
            if (!is_complete(connection)) continue;
            result.latencies_ms.push_back(ms_between(connection.start, Clock::now()));
            result.output_tokens += connection.tokens;
            ++num_done;
            if (num_sent == load.requests) continue;
            ++num_sent;
            RETURN_IF_ERROR(send_request(connection, request));
        }
    }
    result.seconds = ms_between(begin, Clock::now()) / 1000;
    return result;
}

}  // namespace pitstop::bench
