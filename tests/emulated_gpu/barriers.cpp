#include "tests/emulated_gpu/barriers.h"

#include "tests/emulated_gpu/blocks.h"

#include <cstring>

namespace pitstop::emulator {
namespace {

// A barrier's word: arrivals that a phase needs, arrivals so far, phases that have ended.
struct BarrierWord {
    std::uint16_t num;
    std::uint16_t here;
    std::uint32_t phases;
};

}  // namespace

void barrier_init(std::uint64_t* barrier, int num) {
    const BarrierWord word{static_cast<std::uint16_t>(num), 0, 0};
    std::memcpy(barrier, &word, sizeof word);
}

void barrier_arrive(std::uint64_t* barrier) {
    BarrierWord word;
    std::memcpy(&word, barrier, sizeof word);
    if (++word.here == word.num) {
        word.here = 0;
        ++word.phases;
    }
    std::memcpy(barrier, &word, sizeof word);
    let_others_get_ahead();
}

void barrier_wait(const std::uint64_t* barrier, int parity) {
    while (true) {
        BarrierWord word;
        std::memcpy(&word, barrier, sizeof word);
        if (static_cast<int>(word.phases % 2) != parity) return;
        spin("mbarrier.try_wait");
    }
}

namespace {

void count(NamedBarriers& barriers, int id, int num) {
    if (++barriers.num_arrived[id] < num) return;
    barriers.num_arrived[id] = 0;
    ++barriers.num_done[id];
}

}  // namespace

void named_barrier_arrive(int id, int num) {
    count(named_barriers(), id, num);
    let_others_get_ahead();
}

void named_barrier(int id, int num) {
    NamedBarriers& barriers = named_barriers();
    const std::int64_t mine = barriers.num_done[id] + 1;
    count(barriers, id, num);
    while (barriers.num_done[id] < mine) spin("bar.sync");
}

}  // namespace pitstop::emulator
