#include "bus/listener.h"

#include "base/mutex.h"
#include "base/time.h"

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pitstop::bus {

class Listener::Gate {
  public:
    Gate(int fd, int connections_max)
        : fd_(fd), connections_max_(static_cast<std::size_t>(connections_max)) {}

    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] int connections_max() const { return static_cast<int>(connections_max_); }

    // Registers the connection and returns true if it may stay; otherwise counts it as refused.
    bool admit(int fd) {
        const MutexLock lock(mutex_);
        if (connections_.size() >= connections_max_) sweep_at_times();
        struct stat info {};
        if (connections_.size() >= connections_max_ || ::fstat(fd, &info) != 0) {
            ++counts_.refused_total;
            return false;
        }
        connections_.push_back({fd, info.st_ino});
        ++counts_.accepted_total;
        return true;
    }
    void mark_spoken(int fd) {
        const MutexLock lock(mutex_);
        // Finds the latest listener with that descriptor; earlier ones have ended.
        const auto place =
            std::ranges::find(connections_.rbegin(), connections_.rend(), fd, &Connection::fd);
        if (place != connections_.rend()) place->has_spoken = true;
    }
    void count_refused() {
        const MutexLock lock(mutex_);
        ++counts_.refused_total;
    }
    ListenerCounts counts() {
        const MutexLock lock(mutex_);
        sweep();
        counts_.open = static_cast<std::int64_t>(connections_.size());
        return counts_;
    }

  private:
    struct Connection {
        int fd = -1;
        ::ino_t inode = 0;  // distinguishes this socket from a later one with the same descriptor
        bool has_spoken = false;
    };
    void sweep_at_times() REQUIRES(mutex_) {
        const TimePoint now = Clock::now();
        if (now < sweep_time_) return;
        sweep();
        sweep_time_ = now + kSweepEvery;
    }
    void sweep() REQUIRES(mutex_) {
        std::int64_t num_silent = 0;
        std::erase_if(connections_, [&num_silent](const Connection& connection) {
            struct stat info {};
            const bool has_ended = ::fstat(connection.fd, &info) != 0 || !S_ISSOCK(info.st_mode) ||
                                   info.st_ino != connection.inode;
            if (has_ended && !connection.has_spoken) ++num_silent;
            return has_ended;
        });
        counts_.silent_total += num_silent;
    }

    const int fd_;
    const std::size_t connections_max_;
    Mutex mutex_;
    std::vector<Connection> connections_ GUARDED_BY(mutex_){};
    TimePoint sweep_time_ GUARDED_BY(mutex_){};
    ListenerCounts counts_ GUARDED_BY(mutex_){};
};

namespace {

// All Listeners of the program. Global, because accept4() has no other way to find them.
class Gates {
  public:
    static Gates& all() {
        // Never destroyed: ZeroMQ's threads may outlive main().
        static Gates& gates = *new Gates;
        return gates;
    }
    void add(const std::shared_ptr<Listener::Gate>& gate) {
        const MutexLock lock(mutex_);
        by_fd_[gate->fd()] = gate;
        if (spare_fd_ < 0) take_spare();
    }
    void remove(const std::shared_ptr<Listener::Gate>& gate) {
        const MutexLock lock(mutex_);
        const auto place = by_fd_.find(gate->fd());
        if (place != by_fd_.end() && place->second == gate) by_fd_.erase(place);
    }
    std::shared_ptr<Listener::Gate> find(int fd) {
        const MutexLock lock(mutex_);
        const auto place = by_fd_.find(fd);
        return place == by_fd_.end() ? nullptr : place->second;
    }
    // Without a free descriptor: accepts the connection on the spare descriptor and closes it.
    // Otherwise the connection would stay in the backlog, and the listener's thread would retry
    // without a pause.
    void shed(int listening_fd) {
        const MutexLock lock(mutex_);
        if (spare_fd_ >= 0) ::close(std::exchange(spare_fd_, -1));
        const auto fd = static_cast<int>(
            ::syscall(SYS_accept4, listening_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)
        );
        if (fd >= 0) ::close(fd);
        take_spare();
    }

  private:
    void take_spare() REQUIRES(mutex_) { spare_fd_ = ::open("/", O_PATH | O_CLOEXEC); }

    Mutex mutex_;
    std::map<int, std::shared_ptr<Listener::Gate>> by_fd_ GUARDED_BY(mutex_){};
    int spare_fd_ GUARDED_BY(mutex_) = -1;
};

constinit std::atomic<bool> is_accept4_bounded{false};

struct Address {
    ::sockaddr_storage storage{};
    ::socklen_t size = 0;
    std::string path{};  // the file of a unix socket

    [[nodiscard]] const ::sockaddr* raw() const {
        return reinterpret_cast<const ::sockaddr*>(&storage);
    }
};

Error not_understood(const std::string& endpoint) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "endpoint '{}'; accepted are ipc:///path and tcp://address:port with a numeric address",
        endpoint
    );
}

Result<Address> parse_ipc(const std::string& endpoint) {
    Address address;
    address.path = endpoint.substr(std::strlen("ipc://"));
    auto& un = reinterpret_cast<::sockaddr_un&>(address.storage);
    if (address.path.empty() || address.path.size() >= sizeof un.sun_path)
        return not_understood(endpoint);
    un.sun_family = AF_UNIX;
    std::memcpy(un.sun_path, address.path.c_str(), address.path.size() + 1);
    address.size =
        static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + address.path.size());
    if (un.sun_path[0] == '@') {  // an abstract name of the kernel, without a file
        un.sun_path[0] = '\0';
        address.path.clear();
    } else {
        address.size += 1;
    }
    return address;
}

Result<Address> parse_tcp(const std::string& endpoint) {
    const std::string_view place = std::string_view(endpoint).substr(std::strlen("tcp://"));
    const std::size_t colon = place.rfind(':');
    if (colon == place.npos) return not_understood(endpoint);
    std::string host(place.substr(0, colon));
    const std::string_view digits = place.substr(colon + 1);
    std::uint16_t port = 0;
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (problem != std::errc{} || end != digits.data() + digits.size() || digits.empty())
        return not_understood(endpoint);
    Address address;
    if (host.starts_with('[') && host.ends_with(']')) {
        auto& in6 = reinterpret_cast<::sockaddr_in6&>(address.storage);
        in6.sin6_family = AF_INET6;
        in6.sin6_port = htons(port);
        address.size = sizeof in6;
        host = host.substr(1, host.size() - 2);
        if (::inet_pton(AF_INET6, host.c_str(), &in6.sin6_addr) != 1)
            return not_understood(endpoint);
        return address;
    }
    auto& in = reinterpret_cast<::sockaddr_in&>(address.storage);
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    address.size = sizeof in;
    if (::inet_pton(AF_INET, host.c_str(), &in.sin_addr) != 1) return not_understood(endpoint);
    return address;
}

// Fills in the port that the kernel chose for port 0.
std::string with_port(int fd, const std::string& endpoint) {
    ::sockaddr_storage bound{};
    ::socklen_t size = sizeof bound;
    if (::getsockname(fd, reinterpret_cast<::sockaddr*>(&bound), &size) != 0) return endpoint;
    const std::uint16_t port = bound.ss_family == AF_INET6
                                   ? reinterpret_cast<::sockaddr_in6&>(bound).sin6_port
                                   : reinterpret_cast<::sockaddr_in&>(bound).sin_port;
    return fmt::format("{}:{}", endpoint.substr(0, endpoint.rfind(':')), ntohs(port));
}

}  // namespace

Listener::Listener(std::shared_ptr<Gate> gate, std::string endpoint, std::string path)
    : gate_(std::move(gate)), endpoint_(std::move(endpoint)), path_(std::move(path)) {}

Result<std::unique_ptr<Listener>> Listener::open(const std::string& endpoint, int connections_max) {
    CHECK(connections_max > 0);
    if (!is_accept4_bounded) {
        return make_error(
            ErrorCode::kInternal,
            "cannot listen on '{}': this program bounds no connections; link pitstop_accept4",
            endpoint
        );
    }
    const bool is_ipc = endpoint.starts_with("ipc://");
    if (!is_ipc && !endpoint.starts_with("tcp://")) return not_understood(endpoint);
    ASSIGN_OR_RETURN(const Address address, is_ipc ? parse_ipc(endpoint) : parse_tcp(endpoint));
    const int fd =
        ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const auto fail = [&](const char* what) {
        Error error = make_error(
            ErrorCode::kUnavailable,
            "cannot listen on '{}': {}: {}",
            endpoint,
            what,
            std::strerror(errno)
        );
        if (fd >= 0) ::close(fd);
        return error;
    };
    if (fd < 0) return fail("socket");
    if (!address.path.empty()) {
        ::unlink(address.path.c_str());  // a killed process may have left the file behind
    } else if (!is_ipc) {
        const int yes = 1;
        ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    }
    if (::bind(fd, address.raw(), address.size) != 0) return fail("bind");
    constexpr int kBacklog = 512;
    if (::listen(fd, kBacklog) != 0) return fail("listen");
    auto gate = std::make_shared<Gate>(fd, connections_max);
    Gates::all().add(gate);
    return std::unique_ptr<Listener>(
        new Listener(std::move(gate), is_ipc ? endpoint : with_port(fd, endpoint), address.path)
    );
}

Listener::~Listener() {
    Gates::all().remove(gate_);
    if (!path_.empty()) ::unlink(path_.c_str());
}

int Listener::fd() const { return gate_->fd(); }
int Listener::connections_max() const { return gate_->connections_max(); }
ListenerCounts Listener::counts() const { return gate_->counts(); }
void Listener::mark_spoken(int connection) { gate_->mark_spoken(connection); }

int bounded_accept4(int listening_fd, ::sockaddr* address, ::socklen_t* size, int flags) {
    const auto fd = static_cast<int>(::syscall(SYS_accept4, listening_fd, address, size, flags));
    if (fd < 0 && errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM)
        return fd;
    const int problem = fd < 0 ? errno : 0;
    const std::shared_ptr<Listener::Gate> gate = Gates::all().find(listening_fd);
    if (gate == nullptr) {
        errno = problem;
        return fd;
    }
    if (fd >= 0 && gate->admit(fd)) return fd;
    if (fd >= 0) {
        ::close(fd);
    } else {
        gate->count_refused();
        Gates::all().shed(listening_fd);
    }
    errno = ECONNABORTED;
    return -1;
}

void note_accept4_is_bounded() { is_accept4_bounded = true; }

}  // namespace pitstop::bus
