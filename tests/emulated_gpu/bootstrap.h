// Ranks on other machines reach the process that made a unique id by TCP, as in the real library.
// The id has the address and the port of a listener in that process; a process of another
// machine (settings.h, `machine`) connects, says hello and is answered. The ranks still share their
// state in memory.
// Source: NCCL documentation, "Environment Variables": NCCL_SOCKET_IFNAME chooses the address.
//
// Thread: any. The listener has one of its own, for the process's life.
#pragma once

#include <cstdint>

namespace pitstop::emulator {

struct Bootstrap {
    std::uint32_t address = 0;  // IPv4, in network order, of the machine that made the id
    std::uint16_t port = 0;     // in network order
    std::uint64_t machine = 0;
};

// The listener of this process.
[[nodiscard]] Bootstrap own_bootstrap();
// Returns whether the listener can be reached: on its own machine always, from others by TCP.
[[nodiscard]] bool can_reach(const Bootstrap& bootstrap);

}  // namespace pitstop::emulator
