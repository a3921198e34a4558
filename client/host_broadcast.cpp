#include "client/host_broadcast.h"

#include "base/time.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace pitstop {
namespace {

constexpr std::string_view kMagic = "PITSTOPB";
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kTextMax = 16 << 10;
constexpr auto kGreetingMax = std::chrono::seconds(5);  // for one worker to greet

int ms_until(TimePoint deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

bool wait_for(int fd, short events, TimePoint deadline) {
    pollfd item{fd, events, 0};
    int num_ready = -1;
    do {
        num_ready = ::poll(&item, 1, ms_until(deadline));
    } while (num_ready < 0 && errno == EINTR);
    return num_ready == 1;
}

bool read_all(int fd, void* to, std::size_t size, TimePoint deadline) {
    auto* out = static_cast<char*>(to);
    while (size > 0) {
        const ssize_t num = ::recv(fd, out, size, MSG_DONTWAIT);
        if (num > 0) {
            out += num;
            size -= static_cast<std::size_t>(num);
        } else {
            const bool is_broken = num == 0 || (errno != EAGAIN && errno != EINTR);
            if (is_broken || !wait_for(fd, POLLIN, deadline)) return false;
        }
    }
    return true;
}

// Writes short texts, which fit the socket's buffer.
bool write_text(int fd, std::string_view text) {
    const auto length = static_cast<std::uint32_t>(text.size());
    std::string message(reinterpret_cast<const char*>(&length), sizeof length);
    message += text;
    return ::send(fd, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(message.size());
}

}  // namespace

Result<HostBroadcast> HostBroadcast::listen(const HostBroadcastOptions& options) {
    HostBroadcast group(options);
    group.listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    ::setsockopt(group.listener_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(options.port));
    address.sin_addr.s_addr = htonl(options.is_local ? INADDR_LOOPBACK : INADDR_ANY);
    socklen_t size = sizeof address;
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    if (group.listener_ < 0 || ::bind(group.listener_, raw, size) != 0 ||
        ::listen(group.listener_, 128) != 0 || ::getsockname(group.listener_, raw, &size) != 0) {
        return make_error(
            ErrorCode::kUnavailable,
            "cannot listen on port {}: {}",
            options.port,
            std::strerror(errno)
        );
    }
    group.port_ = ntohs(address.sin_port);
    return group;
}

HostBroadcast::HostBroadcast(HostBroadcast&& other) noexcept { *this = std::move(other); }
HostBroadcast& HostBroadcast::operator=(HostBroadcast&& other) noexcept {
    std::swap(options_, other.options_);
    std::swap(listener_, other.listener_);
    std::swap(port_, other.port_);
    std::swap(next_, other.next_);
    std::swap(peers_, other.peers_);
    return *this;
}
HostBroadcast::~HostBroadcast() { close(); }

void HostBroadcast::close() {
    for (const Peer& peer : peers_) ::close(peer.fd);
    peers_.clear();
    if (listener_ >= 0) ::close(std::exchange(listener_, -1));
}

Result<> HostBroadcast::accept(std::chrono::milliseconds timeout) {
    const TimePoint deadline = Clock::now() + timeout;
    while (static_cast<std::int64_t>(peers_.size()) < options_.num_workers) {
        if (!wait_for(listener_, POLLIN, deadline)) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "only {} of {} workers joined group '{}' in time",
                peers_.size(),
                options_.num_workers,
                options_.group
            );
        }
        const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) greet(fd, timeout);
    }
    // Answers the workers only now that all have joined.
    for (const Peer& peer : peers_) {
        if (!write_text(peer.fd, "")) return gone(peer);
    }
    return Ok{};
}

// Accepts one worker, or answers with the reason for refusing it.
void HostBroadcast::greet(int fd, std::chrono::milliseconds timeout) {
    const TimePoint deadline = Clock::now() + std::min<Duration>(timeout, kGreetingMax);
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    std::array<char, 8> magic{};
    std::array<std::uint32_t, 4> numbers{};  // version, rank, world size, length of the name
    std::string name;
    const bool is_read = read_all(fd, magic.data(), magic.size(), deadline) &&
                         read_all(fd, numbers.data(), sizeof numbers, deadline);
    if (is_read && numbers[3] <= kTextMax) {
        name.resize(numbers[3]);
        if (!read_all(fd, name.data(), name.size(), deadline)) name.clear();
    }
    const std::int64_t rank = numbers[1];
    std::string why;
    if (!is_read || std::string_view(magic.data(), magic.size()) != kMagic) {
        why = "the message is not a worker's hello";
    } else if (numbers[0] != kVersion) {
        why = fmt::format("version {}; this trainer speaks {}", numbers[0], kVersion);
    } else if (name != options_.group || numbers[2] != options_.num_workers + 1) {
        why = fmt::format(
            "group '{}' of {} ranks; this trainer's is '{}' of {}",
            name,
            numbers[2],
            options_.group,
            options_.num_workers + 1
        );
    } else if (rank < 1 || rank > options_.num_workers || std::ranges::any_of(peers_, [&](const Peer& peer) {
                   return peer.rank == rank;
               })) {
        why = fmt::format("rank {} is the trainer's, joined already, or out of range", rank);
    }
    if (why.empty()) {
        peers_.push_back({fd, rank});
    } else {
        static_cast<void>(write_text(fd, why));
        ::close(fd);
    }
}

// Returns the error for a worker that hung up, with the reason if the worker sent one.
Error HostBroadcast::gone(const Peer& peer) const {
    constexpr auto kWordsMax = std::chrono::milliseconds(200);
    const TimePoint deadline = Clock::now() + kWordsMax;
    std::uint32_t length = 0;
    if (read_all(peer.fd, &length, sizeof length, deadline) && length > 0 && length <= kTextMax) {
        std::string why(length, '\0');
        if (read_all(peer.fd, why.data(), why.size(), deadline)) {
            return make_error(ErrorCode::kAborted, "rank {} gave up: {}", peer.rank, why);
        }
    }
    return make_error(ErrorCode::kUnavailable, "rank {} is gone", peer.rank);
}

Result<> HostBroadcast::broadcast(
    std::span<const std::byte> bytes, std::chrono::milliseconds timeout
) {
    const TimePoint deadline = Clock::now() + timeout;
    std::array<std::byte, 20> header{};
    const auto size = static_cast<std::uint64_t>(bytes.size());
    std::memcpy(header.data(), "BCST", 4);
    std::memcpy(header.data() + 4, &next_, 8);
    std::memcpy(header.data() + 12, &size, 8);
    ++next_;
    const std::size_t total = header.size() + bytes.size();
    std::vector<std::size_t> done(peers_.size(), 0);
    while (true) {
        std::vector<pollfd> items;
        std::vector<std::size_t> who;
        for (std::size_t i = 0; i < peers_.size(); ++i) {
            if (done[i] == total) continue;
            items.push_back({peers_[i].fd, static_cast<short>(POLLOUT | POLLIN), 0});
            who.push_back(i);
        }
        if (items.empty()) return Ok{};
        if (::poll(items.data(), items.size(), ms_until(deadline)) == 0) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "rank {} did not read the broadcast in time",
                peers_[who.front()].rank
            );
        }
        for (std::size_t k = 0; k < items.size(); ++k) {
            const std::size_t i = who[k];
            // A worker sends data only when it gives up.
            if ((items[k].revents & (POLLIN | POLLERR | POLLHUP)) != 0) return gone(peers_[i]);
            if ((items[k].revents & POLLOUT) == 0) continue;
            const bool in_header = done[i] < header.size();
            const std::byte* from =
                in_header ? header.data() + done[i] : bytes.data() + (done[i] - header.size());
            const std::size_t left = (in_header ? header.size() : total) - done[i];
            const ssize_t num = ::send(peers_[i].fd, from, left, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (num > 0) done[i] += static_cast<std::size_t>(num);
            if (num < 0 && errno != EAGAIN && errno != EINTR) return gone(peers_[i]);
        }
    }
}

}  // namespace pitstop
