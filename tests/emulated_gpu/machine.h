// The emulated machine: its GPUs, and each process's share of their memory. All processes that name
// the same file (settings.h) are on one machine; a process's memory is returned when it has ended.
// Each process numbers the GPUs that it sees. Messages to another process have a GPU's number on
// the machine.
//
// Thread: any.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::emulator {

// Few per GPU, so that loops over a GPU's multiprocessors run more than once.
inline constexpr int kMultiprocessors = 4;

// Convert a GPU's number in this process into its number on the machine, and back. own_gpu() is -1
// if the process does not see the GPU.
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

// Returns a process's start in clock ticks since the system's start, unique together with the pid;
// -1: there is no such process (any more).
[[nodiscard]] std::int64_t start_time_of(std::int64_t pid);

}  // namespace pitstop::emulator
