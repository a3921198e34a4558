#include "tp_worker/groups/tcp_stream.h"

#include "tp_worker/groups/host_lookup.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr auto kRetryMin = std::chrono::milliseconds(20);
constexpr auto kRetryMax = std::chrono::milliseconds(1000);

Result<> check_patience(const Patience& patience, const std::string& peer) {
    if (patience.is_called_off.load(std::memory_order_relaxed))
        return make_error(ErrorCode::kAborted, "cancelled while waiting for {}", peer);
    if (Clock::now() >= patience.deadline)
        return make_error(ErrorCode::kDeadlineExceeded, "{} did not answer in time", peer);
    return Ok{};
}

// Waits for the socket like poll(). Returns false if the caller should check its patience.
bool poll_once(int fd, short events, TimePoint deadline) {
    const Duration left = std::min<Duration>(kCallOffLook, deadline - Clock::now());
    pollfd item{fd, events, 0};
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(std::max(left, Duration{}));
    return ::poll(&item, 1, static_cast<int>(ms.count())) == 1;
}

}  // namespace

Result<TcpStream> TcpStream::connect(
    const std::string& address, std::int64_t port, const Patience& patience
) {
    const std::string peer = fmt::format("{}:{}", address, port);
    Duration pause = kRetryMin;
    while (true) {
        RETURN_IF_ERROR(check_patience(patience, peer));
        // Looked up each time: a trainer that starts later may have another address.
        ASSIGN_OR_RETURN(
            const std::vector<HostAddress> found, look_up_host(address, port, patience)
        );
        for (const HostAddress& each : found) {
            const int fd = ::socket(each.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            if (fd < 0) continue;
            TcpStream stream(fd, peer);
            const int one = 1;
            ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            const auto* to = reinterpret_cast<const ::sockaddr*>(&each.address);
            if (::connect(fd, to, each.size) != 0 && errno != EINPROGRESS) continue;
            if (Result<> ready = stream.wait(POLLOUT, patience); !ready) return ready.error();
            int error = 0;
            socklen_t size = sizeof error;
            ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
            if (error == 0) return stream;
        }
        std::this_thread::sleep_for(std::min<Duration>(
            pause, std::max<Duration>(patience.deadline - Clock::now(), Duration{})
        ));
        pause = std::min<Duration>(pause * 2, kRetryMax);
    }
}

TcpStream::TcpStream(TcpStream&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), peer_(std::move(other.peer_)) {}
TcpStream& TcpStream::operator=(TcpStream&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(peer_, other.peer_);
    return *this;
}
TcpStream::~TcpStream() {
    if (fd_ >= 0) ::close(fd_);
}

Result<> TcpStream::wait(short events, const Patience& patience) const {
    while (!poll_once(fd_, events, patience.deadline))
        RETURN_IF_ERROR(check_patience(patience, peer_));
    return Ok{};
}

Result<> TcpStream::read(std::span<std::byte> out, const Patience& patience) {
    std::size_t done = 0;
    while (done < out.size()) {
        const ssize_t num = ::recv(fd_, out.data() + done, out.size() - done, 0);
        if (num > 0) {
            done += static_cast<std::size_t>(num);
            if (patience.is_called_off.load(std::memory_order_relaxed))
                return check_patience(patience, peer_);
        } else if (num < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            RETURN_IF_ERROR(wait(POLLIN, patience));
        } else if (num == 0 || errno != EINTR) {
            return make_error(
                ErrorCode::kUnavailable,
                "{} is gone, {} of {} bytes into a message",
                peer_,
                done,
                out.size()
            );
        }
    }
    return Ok{};
}

Result<> TcpStream::write(std::span<const std::byte> bytes, const Patience& patience) {
    std::size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t num = ::send(fd_, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
        if (num > 0) {
            done += static_cast<std::size_t>(num);
        } else if (num < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            RETURN_IF_ERROR(wait(POLLOUT, patience));
        } else if (errno != EINTR) {
            return make_error(ErrorCode::kUnavailable, "{} is gone", peer_);
        }
    }
    return Ok{};
}

bool TcpStream::is_closed() const {
    pollfd item{.fd = fd_, .events = POLLRDHUP, .revents = 0};
    return ::poll(&item, 1, 0) > 0;  // POLLHUP and POLLERR are always reported
}

}  // namespace pitstop::tp_worker
