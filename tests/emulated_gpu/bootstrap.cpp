#include "tests/emulated_gpu/bootstrap.h"

#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/settings.h"

#include <arpa/inet.h>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <sys/time.h>
#include <thread>
#include <unistd.h>

namespace pitstop::emulator {
namespace {

constexpr char kHello[4] = {'N', 'C', 'C', 'L'};
constexpr int kPatienceS = 10;  // for a machine that does not answer

// The named interface's address, else that of the first interface that leads out, else the
// loopback's.
std::uint32_t own_address() {
    const char* const wanted = std::getenv("NCCL_SOCKET_IFNAME");
    std::uint32_t found = htonl(INADDR_LOOPBACK);
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return found;
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
        if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
        const bool leads_out = (one->ifa_flags & IFF_LOOPBACK) == 0;
        if (wanted != nullptr ? std::string(one->ifa_name) != wanted : !leads_out) continue;
        sockaddr_in address{};
        std::memcpy(&address, one->ifa_addr, sizeof address);
        found = address.sin_addr.s_addr;
        break;
    }
    ::freeifaddrs(all);
    return found;
}

bool send_hello(int fd) { return ::send(fd, kHello, sizeof kHello, MSG_NOSIGNAL) == sizeof kHello; }

bool take_hello(int fd) {
    char said[sizeof kHello];
    return ::recv(fd, said, sizeof said, MSG_WAITALL) == sizeof said &&
           std::memcmp(said, kHello, sizeof said) == 0;
}

void set_patience(int fd) {
    const timeval patience{.tv_sec = kPatienceS, .tv_usec = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

Bootstrap listen_here() {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = own_address();
    socklen_t size = sizeof place;
    constexpr int kWaiting = 64;
    if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&place), size) != 0 ||
        ::listen(fd, kWaiting) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&place), &size) != 0)
        fail("NCCL cannot listen for ranks of other machines");
    std::thread([fd] {
        while (true) {
            const int peer = ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
            if (peer < 0) continue;
            set_patience(peer);
            if (take_hello(peer)) (void)send_hello(peer);
            ::close(peer);
        }
    }).detach();
    return {
        .address = place.sin_addr.s_addr,
        .port = place.sin_port,
        .machine = std::hash<std::string>{}(settings().machine)};
}

}  // namespace

Bootstrap own_bootstrap() {
    static const Bootstrap own = listen_here();
    return own;
}

bool can_reach(const Bootstrap& bootstrap) {
    if (bootstrap.machine == std::hash<std::string>{}(settings().machine)) return true;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    set_patience(fd);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = bootstrap.address;
    place.sin_port = bootstrap.port;
    const bool is_reached = ::connect(fd, reinterpret_cast<sockaddr*>(&place), sizeof place) == 0 &&
                            send_hello(fd) && take_hello(fd);
    ::close(fd);
    return is_reached;
}

}  // namespace pitstop::emulator
