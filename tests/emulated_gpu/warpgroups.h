// wgmma's part of a block: products, the registers that they use, shared memory as the async proxy
// sees it, and the block's budget of registers. Products take place as late as their waits allow.
// A forbidden action ends the kernel with a line that names it.
//
// A product sees shared memory when its writer has fenced it: the thread of a cp.async, a thread of
// the warp of an ordinary store. (A fence of the reader, after a barrier, would be enough by PTX's
// memory model; no kernel relies on it.) Ordinary stores are noticed at the end of a warp's turn;
// those before a grid's first fence have no known writer, and that fence counts for them.
//
// Source: PTX ISA, "Async proxy" ("wgmma.mma_async operations are performed in the asynchronous
// proxy ... a cross-proxy fence is needed"), "membar/fence" (fence.proxy.async), "wgmma.fence",
// "wgmma.mma_async" (accessing the registers before the wait is undefined), "wgmma.wait_group",
// "setmaxnreg".
// Thread: as blocks.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace pitstop::emulator {

// Registers of a thread: accumulators, or a fragment of A.
struct Registers {
    const void* data = nullptr;
    std::size_t bytes = 0;
};

// One thread's products and registers.
struct Warpgroup {
    struct Product {
        std::function<void()> run{};
        Registers sums{};
        Registers fragment{};  // data null: A is in shared memory
    };
    struct InUse {
        Registers registers{};
        std::vector<std::byte> value{};  // a copy: only a product may change the registers
        int num_products = 0;
    };
    std::vector<std::vector<Product>> groups{};  // oldest first; the last is open
    std::vector<InUse> in_use{};
    bool is_fenced = false;                 // wgmma.fence since the start or the last wait
    std::vector<std::uint32_t> unfenced{};  // chunks of shared memory that cp.async wrote
    int num_registers = 0;                  // the warp's, in its first thread only
};

// Returns whether a cp.async that is issued now, or a block's products, take place now and not at
// their wait. Chance decides for each copy and each block if PITSTOP_EMULATOR_COPIES is "random";
// otherwise the answer is no.
[[nodiscard]] bool is_at_once();

// A block begins: the async proxy knows nothing of its shared memory. `is_watched`: the writers of
// ordinary stores are needed from its first line on, not only from its first fence on.
void begin_async_proxy(std::size_t shared_bytes, bool is_watched);
// Returns whether the block, or its grid, has used the async proxy.
[[nodiscard]] bool is_async_proxy_watched();
// The running thread's cp.async has arrived at `to`.
void note_copy(const void* to, std::size_t bytes);
// All stores since the last call were the warp's.
void note_stores(int warp);
// fence.proxy.async of the running thread.
void fence_proxy();
// Fails if the async proxy may still miss stores to this memory.
void check_seen_by_async_proxy(const void* from, std::size_t bytes);

void fence_products();  // wgmma.fence
void multiply_async(Warpgroup::Product product);
void commit_products();
void wait_products(int num_pending);

// setmaxnreg of the running thread's warp. A warp that takes more registers than are left waits.
void give_registers(int num);
void take_registers(int num);

}  // namespace pitstop::emulator
