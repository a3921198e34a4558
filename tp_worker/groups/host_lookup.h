// Looks up the addresses of a host with a deadline.
//
// getaddrinfo has no deadline: a name server that does not answer blocks its caller for minutes. So
// a thread that can be left behind looks up names; a result that comes too late is dropped. Numeric
// addresses need no thread.
//
// Thread:  any.
// Bounded: kLookupsMax at once in this process, including those left behind.
#pragma once

#include "base/result.h"
#include "tp_worker/groups/patience.h"

#include <cstdint>
#include <string>
#include <sys/socket.h>
#include <vector>

namespace pitstop::tp_worker {

struct HostAddress {
    int family = 0;
    ::sockaddr_storage address{};
    ::socklen_t size = 0;  // bytes of the address
};

inline constexpr int kLookupsMax = 8;

// Returns at least one address, for stream sockets. Errors: kNotFound (no such host),
// kDeadlineExceeded, kAborted, kResourceExhausted (kLookupsMax others wait).
[[nodiscard]] Result<std::vector<HostAddress>> look_up_host(
    const std::string& host, std::int64_t port, const Patience& patience
);

}  // namespace pitstop::tp_worker
