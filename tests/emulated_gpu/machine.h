// The emulated machine: its GPUs, and each process's share of their memory. All processes that name
// the same file (settings.h) are on one machine; a process's memory is returned when it has ended.
// Each process numbers the GPUs that it sees; what crosses to another process has the machine's
// number.
//
// Thread: any.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::emulator {

// Of each GPU: few, so that loops over a GPU's multiprocessors run more than once.
inline constexpr int kMultiprocessors = 4;

// Returns the machine's number of the process's GPU `gpu`; and the reverse, -1: the process does
// not see it.
[[nodiscard]] int machine_gpu(int gpu);
[[nodiscard]] int own_gpu(int machine_gpu);

// Returns the 16 bytes of the UUID that cudaDeviceProp has for GPU `gpu` of this machine.
[[nodiscard]] std::array<std::uint8_t, 16> uuid_of(int gpu);

// Takes `bytes` of a GPU's memory for this process, or nothing if not enough is free.
[[nodiscard]] bool take_memory(int gpu, std::int64_t bytes);
void give_memory(int gpu, std::int64_t bytes);
[[nodiscard]] std::int64_t free_memory(int gpu);
// Returns the processes that have some of a GPU's memory.
struct MemoryUser {
    std::int64_t pid = 0;
    std::int64_t bytes = 0;
};
[[nodiscard]] std::vector<MemoryUser> memory_users(int gpu);

// Returns a process's start in clock ticks since the system's start, which with the pid is unique;
// -1: there is no such process (any more).
[[nodiscard]] std::int64_t start_time_of(std::int64_t pid);

}  // namespace pitstop::emulator
