// What wgmma adds to a block: products that take place as late as their waits allow, the registers
// that they use meanwhile, shared memory as the async proxy sees it, and the block's budget of
// registers. What a kernel may not do there ends it with a line that says what.
//
// Source: PTX ISA, "Async proxy" ("wgmma.mma_async operations are performed in the asynchronous
// proxy ... a cross-proxy fence is needed"), "wgmma.fence", "wgmma.mma_async" (accessing the
// registers before the wait is undefined), "wgmma.wait_group", "setmaxnreg".
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

enum class CopyTime : std::uint8_t { kLate, kAtOnce };
[[nodiscard]] CopyTime copy_time();  // PITSTOP_EMULATOR_COPIES

// A block begins: nothing of its shared memory is known to the async proxy.
void begin_async_proxy(std::size_t shared_bytes);
// The running thread's cp.async has arrived there.
void note_generic_write(const void* to, std::size_t bytes);
// fence.proxy.async. Ordinary stores are not seen here: those that were made are taken for fenced.
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
