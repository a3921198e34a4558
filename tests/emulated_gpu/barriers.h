// A block's barriers: those of shared memory and those that have names. A thread that keeps waiting
// lets the others run. Source: PTX ISA, "mbarrier", "bar".
#pragma once

#include <cstdint>

namespace pitstop::emulator {

void barrier_init(std::uint64_t* barrier, int num);
void barrier_arrive(std::uint64_t* barrier);
void barrier_wait(const std::uint64_t* barrier, int parity);

// `num` threads arrive at barrier `id`. named_barrier() waits for all of them;
// named_barrier_arrive() returns at once.
void named_barrier(int id, int num);
void named_barrier_arrive(int id, int num);

// A block's state of its barriers with names.
struct NamedBarriers {
    static constexpr int kNum = 16;
    int num_arrived[kNum] = {};
    std::int64_t num_done[kNum] = {};
};

}  // namespace pitstop::emulator
