// How ranks of other machines find the process that made a unique id: by TCP, as the real ones do.
// The id has the address and the port of a listener there; whoever comes to it from another machine
// (settings.h, `machine`) says hello and is answered. What they share then is memory all the same.
// Source: NCCL documentation, "Environment Variables", NCCL_SOCKET_IFNAME: which address it is.
//
// Thread: any. The listener has one of its own, for the process's life.
#pragma once

#include <cstdint>

namespace pitstop::emulator {

struct Bootstrap {
    std::uint32_t address = 0;  // IPv4, of the machine that made the id
    std::uint16_t port = 0;     // both in network order
    std::uint64_t machine = 0;
};

// This process's.
[[nodiscard]] Bootstrap own_bootstrap();
// Whether it can be reached from here: at once on one machine, by TCP from another.
[[nodiscard]] bool can_reach(const Bootstrap& bootstrap);

}  // namespace pitstop::emulator
