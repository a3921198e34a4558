// Looks up the addresses of a host with a deadline.
//
// getaddrinfo has none: a name server that does not answer holds its caller for minutes. So a name
// is looked up on a thread that may be left behind; what it finds then is forgotten. Numbers are no
// names, and need no thread.
//
// Thread:  any.
// Bounded: kLookupsMax at once in this process, those that were left behind included.
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
    ::socklen_t size = 0;  // its size in bytes
};

inline constexpr int kLookupsMax = 8;

// Returns at least one address, for stream sockets. Errors: kNotFound (no such host),
// kDeadlineExceeded, kAborted, kResourceExhausted (kLookupsMax others wait).
[[nodiscard]] Result<std::vector<HostAddress>> look_up_host(
    const std::string& host, std::int64_t port, const Patience& patience
);

}  // namespace pitstop::tp_worker
