// Runs the blocks of CUDA kernels on the host, one at a time, to test their indices, masks,
// barriers, fragment layouts and copies without a GPU. The kernels' sources are compiled as C++
// against the headers in include/, which replace <cuda_runtime.h> and the device headers with PTX;
// kernels/ does not know about it.
//
// Each thread of a block is a fiber. A thread runs until it waits: at a barrier, at an atomic, or
// at a warp-wide instruction until all 32 lanes have reached the same one; chance decides which
// thread continues. Emulated as PTX documents them: shuffles and votes, ldmatrix, mma.m16n8k16,
// cp.async with its groups, mbarriers, and wgmma with its shared-memory descriptors.
//
// The emulator finds
// * a barrier or warp instruction that not all threads reach, a missing or late wait;
// * an index outside of its allocation (guard bands here, AddressSanitizer in that build);
// * misaligned vector loads and matrix rows, unwritten shared memory (NaN at first).
//
// The emulator does not show speed, occupancy, weak memory ordering between barriers, nor the exact
// rounding of the tensor cores and of approximate functions.
//
// A cp.async or wgmma takes place as late as its wait allows, or with
// PITSTOP_EMULATOR_COPIES=random by chance at once. Correct kernels give equal results. Late copies
// show a missing wait, early ones a slot that is refilled before its product has read it.
//
// Thread: one at a time. Bounded: by the grid.
#pragma once

#include "tests/emulated_gpu/barriers.h"
#include "tests/emulated_gpu/overlap.h"
#include "tests/emulated_gpu/warpgroups.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pitstop::emulator {

struct Dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr Dim3(unsigned x_in = 1, unsigned y_in = 1, unsigned z_in = 1)
        : x(x_in), y(y_in), z(z_in) {}
};

inline constexpr int kLanes = 32;
inline constexpr unsigned kThreadsMax = 1024;  // of a block
inline constexpr std::size_t kSlotBytes = 64;
inline constexpr std::size_t kSharedBytesMax = 227 << 10;  // of a block on Hopper

struct AsyncCopy {
    void* to;
    const void* from;
    std::uint32_t src_bytes;
};

// A warp-wide instruction: lanes put their operands into `in`, and the last lane computes all of
// `out`. Two sets exist, because a lane may be at the next instruction before another has read this
// one's result.
struct Warp {
    struct Set {
        alignas(16) std::byte in[kLanes][kSlotBytes];
        alignas(16) std::byte out[kLanes][kSlotBytes];
        const char* name = nullptr;
        int num_here = 0;
    };
    Set sets[2];
    std::int64_t num_done = 0;  // instructions completed
    int num_lanes = kLanes;
};

struct Thread {
    Dim3 index{};    // threadIdx
    int linear = 0;  // number of the thread in its block
    Warp* warp = nullptr;
    std::int64_t warp_instructions = 0;            // the instruction that it has reached
    std::vector<std::vector<AsyncCopy>> groups{};  // of cp.async, oldest first; the last is open
    Warpgroup warpgroup{};                         // its wgmma products and registers
};

extern Thread* current;
extern Dim3 block_index, block_dim, grid_dim;

[[noreturn]] void fail(const std::string& what);
void block_barrier();
// Called once the lane's operands are in `in`; returns when all lanes have arrived.
void wait_for_warp(const char* name);

// compute(in, out) sees all lanes' operands.
template <class In, class Out, class F>
Out warp_instruction(const char* name, const In& in, F compute) {
    static_assert(sizeof(In) <= kSlotBytes && sizeof(Out) <= kSlotBytes);
    Warp& warp = *current->warp;
    Warp::Set& set = warp.sets[current->warp_instructions++ % 2];
    const int lane = current->linear % kLanes;
    if (set.num_here == 0) set.name = name;
    if (std::strcmp(set.name, name) != 0)
        fail(
            std::string("lanes of a warp are at different instructions: ") + set.name + ", " + name
        );
    std::memcpy(set.in[lane], &in, sizeof in);
    if (++set.num_here == warp.num_lanes) {
        In all_in[kLanes];
        Out all_out[kLanes] = {};
        for (int l = 0; l < kLanes; ++l) std::memcpy(&all_in[l], set.in[l], sizeof(In));
        compute(all_in, all_out);
        for (int l = 0; l < kLanes; ++l) std::memcpy(set.out[l], &all_out[l], sizeof(Out));
        set.num_here = 0;
        ++warp.num_done;
    } else {
        wait_for_warp(name);
    }
    Out out;
    std::memcpy(&out, set.out[lane], sizeof out);
    return out;
}

void copy_async(void* to, const void* from, std::uint32_t src_bytes);
void commit_copies();
void wait_copies(int num_pending);

// Called when other threads need not wait for the running thread any more: its warp may now stand
// still for long.
void let_others_get_ahead();

[[nodiscard]] NamedBarriers& named_barriers();

// The running thread waits for an action of another thread.
void spin(const char* where);

[[nodiscard]] std::byte* dynamic_shared_memory();
// Fails unless [pointer, pointer + bytes) lies in the block's dynamic shared memory, aligned.
void check_shared(const void* pointer, std::size_t bytes, std::size_t alignment);
void check_aligned(const void* pointer, std::size_t alignment);

// The running thread of a kernel yields to the others of its block, as real threads would
// interleave.
void let_others_run();

// The running thread waits for another block of its launch, or for another GPU. Other blocks and
// other work run meanwhile. Fails in a launch that is not cooperative: its other blocks may not
// start before this one has ended. A cooperative kernel has no static shared memory, because all
// blocks would share it (cuda_language.h); launches.h refuses it.
void stand_by();
// The running thread has written a value that others wait for: sometimes they see it before the
// rest of its block continues.
void tell_others();

// The kernel's side of overlap.h. Before it calls either function, a kernel must not use its static
// shared memory, which all blocks share here.
void let_next_kernel_start();
void wait_for_kernel_before();

struct ParkedBlock;

// A kernel's blocks, which run one after the other in a random order; those of a cooperative launch
// run until they stand by. Launches of several kernels may take turns, a block at a time.
class Grid {
  public:
    struct Shape {
        Dim3 grid{};
        Dim3 block{};
        std::size_t shared_bytes = 0;  // dynamic
        bool is_cooperative = false;   // all of its blocks run at once
    };
    // Each thread runs `body`. Fails if no GPU has such a large block. Without `overlap`, no other
    // kernel runs at the same time.
    Grid(Shape shape, std::function<void()> body, std::shared_ptr<Overlap> overlap = nullptr);
    ~Grid();
    // Runs a block. False: it was the last one. REQUIRES: DeviceAccess (memory.h), if the kernel
    // uses such memory.
    bool run_block();

  private:
    void begin_block();
    void park_block();
    void resume_block(std::size_t which);
    void begin_or_resume();
    void note_starts() const;

    Shape shape_;
    std::shared_ptr<Overlap> overlap_;
    std::function<void()> body_;
    std::vector<std::uint64_t> order_{};  // numbers of the blocks to run; the last is next
    std::vector<std::unique_ptr<ParkedBlock>> parked_{};  // blocks that stand by
    bool uses_async_proxy_ = false;                       // an earlier block has used it
};

// Runs a grid's blocks to their ends.
void run_grid(Dim3 grid, Dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

// Blocks run since the program started.
[[nodiscard]] std::int64_t num_blocks_run();

}  // namespace pitstop::emulator
