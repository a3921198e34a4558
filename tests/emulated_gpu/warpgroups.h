// What wgmma adds to a block: products that take place as late as their waits allow, the registers
// that they use meanwhile, shared memory as the async proxy sees it, and the block's budget of
// registers. What a kernel may not do there ends it with a line that says what.
//
// Shared memory is seen by a product when who wrote it has fenced it: the thread of a cp.async, a
// thread of the warp of an ordinary store. (A fence of the reader's, behind a barrier, would do by
// PTX's memory model; no kernel relies on it.) Ordinary stores are noticed at the end of a warp's
// turn; before a grid's first fence they are nobody's, and that fence is taken for theirs.
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

// Of one thread.
struct Warpgroup {
    struct Product {
        std::function<void()> run{};
        Registers sums{};
        Registers fragment{};  // data null: A is in shared memory
    };
    struct InUse {
        Registers registers{};
        std::vector<std::byte> value{};  // as nobody but a product may change it
        int num_products = 0;
    };
    std::vector<std::vector<Product>> groups{};  // oldest first; the last is open
    std::vector<InUse> in_use{};
    bool is_fenced = false;                 // wgmma.fence since the start or the last wait
    std::vector<std::uint32_t> unfenced{};  // chunks of shared memory it wrote by cp.async
    int num_registers = 0;                  // of its warp, in the warp's first thread
};

// Whether a cp.async that is issued now takes place now, rather than at its wait, or a block's
// products do (PITSTOP_EMULATOR_COPIES). Those of a thread keep their order: were each asked for,
// the last would nearly always be done with the first that is at once.
[[nodiscard]] bool is_at_once();

// A block begins: nothing of its shared memory is known to the async proxy. `is_watched`: whose
// ordinary stores they are is wanted from its first line on, rather than from its first fence on.
void begin_async_proxy(std::size_t shared_bytes, bool is_watched);
// The block has used the async proxy, or its grid has.
[[nodiscard]] bool is_async_proxy_watched();
// The running thread's cp.async has arrived there.
void note_copy(const void* to, std::size_t bytes);
// What was stored since the last call is the warp's.
void note_stores(int warp);
// fence.proxy.async of the running thread.
void fence_proxy();
// Fails where the async proxy need not see what is there.
void check_seen_by_async_proxy(const void* from, std::size_t bytes);

void fence_products();  // wgmma.fence
void multiply_async(Warpgroup::Product product);
void commit_products();
void wait_products(int num_pending);

// setmaxnreg: of the running thread's warp. A warp that takes more than is left waits.
void give_registers(int num);
void take_registers(int num);

}  // namespace pitstop::emulator
