#include "tests/emulated_gpu/blocks.h"

#include "tests/emulated_gpu/held_warps.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/random.h"
#include "tests/emulated_gpu/settings.h"
#include "tests/emulated_gpu/streams.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace pitstop::emulator {

// Saves the running stack's pointer in *save and continues with the stack `load`. A kernel needs
// millions of switches, so this does without swapcontext()'s system call.
#if !defined(__x86_64__)
#error "the emulator switches stacks on x86-64 only"
#endif
extern "C" void pitstop_emulator_switch(void** save, void* load);
asm(R"(
    .text
    .globl pitstop_emulator_switch
pitstop_emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .section .note.GNU-stack,"",@progbits
    .text
)");

Thread* current = nullptr;
Dim3 block_index, block_dim, grid_dim;

namespace {

constexpr std::size_t kStackBytes = 256 << 10;

std::int64_t blocks_run = 0;

enum class State : std::uint8_t { kReady, kAtBarrier, kAtWarp, kSpinning, kDone };

constexpr int kSpinsMax = 1000;  // rounds in which only waiting threads ran: none will continue

struct Fiber {
    void* stack_pointer = nullptr;
    std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
    Thread thread{};
    State state = State::kReady;
    std::int64_t waits_for =
        0;  // continues once this many barriers, or warp instructions, are done
    const char* waits_at = "";
    void* sanitizer_stack = nullptr;
};

struct Block {
    std::vector<std::unique_ptr<Fiber>> fibers{};
    std::vector<std::unique_ptr<Warp>> warps{};
    std::vector<std::byte> shared{};
    std::byte* shared_begin = nullptr;
    std::size_t shared_bytes = 0;
    const std::function<void()>* body = nullptr;
    std::int64_t barriers_done = 0;
    int num_at_barrier = 0;
    int num_threads = 0;
    int num_done = 0;
    NamedBarriers named{};
    bool is_standing_by = false;  // a thread waits for another block, or another GPU
    bool has_told = false;  // a thread's stores are seen before the rest of this block continues
    bool has_let_next_start = false;
};
Block block;
bool is_cooperative = false;       // the block's launch is cooperative
const Overlap* overlap = nullptr;  // of the block's launch; null: no other kernel runs
void* scheduler_pointer = nullptr;
Fiber* running = nullptr;
#if defined(__SANITIZE_ADDRESS__)
const void* scheduler_stack = nullptr;
std::size_t scheduler_stack_bytes = 0;
void* scheduler_fake = nullptr;
#endif

void enter(Fiber& fiber) {
    running = &fiber;
    current = &fiber.thread;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_fake, fiber.stack.get(), kStackBytes);
#endif
    pitstop_emulator_switch(&scheduler_pointer, fiber.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
}

void leave() {
    Fiber& fiber = *running;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(
        fiber.state == State::kDone ? nullptr : &fiber.sanitizer_stack,
        scheduler_stack,
        scheduler_stack_bytes
    );
#endif
    pitstop_emulator_switch(&fiber.stack_pointer, scheduler_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber.sanitizer_stack, nullptr, nullptr);
#endif
}

void run_thread() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
    (*block.body)();
    running->state = State::kDone;
    ++block.num_done;
    leave();
}

// Prepares a stack from which pitstop_emulator_switch() enters run_thread(): six registers, the
// address of run_thread(), and a zero as its return address, just below a 16-byte boundary.
void prepare(Fiber& fiber) {
    auto top =
        reinterpret_cast<std::uintptr_t>(fiber.stack.get() + kStackBytes) & ~std::uintptr_t{15};
    auto* words = reinterpret_cast<std::uintptr_t*>(top);
    *--words = 0;
    *--words = reinterpret_cast<std::uintptr_t>(&run_thread);
    for (int i = 0; i < 6; ++i) *--words = 0;
    fiber.stack_pointer = words;
}

bool may_run(const Fiber& fiber) {
    switch (fiber.state) {
        case State::kReady:
        case State::kSpinning:
            return true;
        case State::kAtBarrier:
            return block.barriers_done >= fiber.waits_for;
        case State::kAtWarp:
            return fiber.thread.warp->num_done >= fiber.waits_for;
        case State::kDone:
            return false;
    }
    return false;
}

Random& choices() {
    static Random random(settings().seed);
    return random;
}

HeldWarps held;

// Runs each of a warp's lanes until it waits. Returns whether any could run, and whether any did
// more than poll again.
struct Turn {
    bool has_run = false;
    bool has_progress = false;
};
Turn take_turn(std::size_t warp, bool is_reversed) {
    Turn turn;
    for (std::size_t i = 0; i < kLanes; ++i) {
        const std::size_t lane = is_reversed ? kLanes - 1 - i : i;
        Fiber& fiber = *block.fibers[warp * kLanes + lane];
        if (!may_run(fiber)) continue;
        const bool was_spinning = fiber.state == State::kSpinning;
        fiber.state = State::kReady;
        enter(fiber);
        turn.has_run = true;
        turn.has_progress |= !was_spinning || fiber.state != State::kSpinning;
    }
    if (turn.has_run && is_async_proxy_watched()) note_stores(static_cast<int>(warp));
    return turn;
}

[[noreturn]] void fail_stuck() {
    std::string where;
    for (int i = 0; i < block.num_threads; ++i) {
        const Fiber& fiber = *block.fibers[static_cast<std::size_t>(i)];
        if (fiber.state != State::kDone && where.size() < 400)
            where += "\n  thread " + std::to_string(i) + " at " + fiber.waits_at;
    }
    fail(
        "the block is stuck, " + std::to_string(block.num_done) + " of " +
        std::to_string(block.num_threads) + " threads have left:" + where
    );
}

// Runs the warps in turns, in an order that changes from round to round. In its turn a warp runs
// lane by lane, from the first or from the last. Some warps stand still for a while: the order must
// not matter. Returns false if nothing can run before another block, or another GPU, does
// something.
bool run_threads(Random& random) {
    std::vector<std::size_t> warps(static_cast<std::size_t>(block.num_threads / kLanes));
    for (std::size_t i = 0; i < warps.size(); ++i) warps[i] = i;
    held = {};
    int num_spins = 0;
    while (block.num_done < block.num_threads) {
        bool has_progress = false;
        random.shuffle(warps);
        const bool is_reversed = random.below(2) == 0;
        block.is_standing_by = false;
        held.choose(random, random.below(warps.size()));
        for (const std::size_t warp : warps) {
            if (!held.has(warp)) has_progress |= take_turn(warp, is_reversed).has_progress;
            if (std::exchange(block.has_told, false)) return false;
        }
        if (held.end_round(has_progress)) continue;
        if (!has_progress && block.is_standing_by) return false;
        num_spins = has_progress ? 0 : num_spins + 1;
        if (num_spins > kSpinsMax) fail_stuck();
    }
    return true;
}

// Starts the threads at the kernel's first line, with unwritten shared memory.
void prepare_block(
    std::size_t shared_bytes, const std::function<void()>& body, bool uses_async_proxy
) {
    block.num_threads = static_cast<int>(block_dim.x * block_dim.y * block_dim.z);
    block.body = &body;
    block.shared_bytes = shared_bytes;
    block.shared.resize(kSharedBytesMax + 1024);
    const auto address = reinterpret_cast<std::uintptr_t>(block.shared.data());
    block.shared_begin = block.shared.data() + (1024 - address % 1024) % 1024;
    std::memset(block.shared_begin, 0xff, shared_bytes);
    begin_async_proxy(shared_bytes, uses_async_proxy);
    block.warps.clear();
    for (int i = 0; i < block.num_threads / kLanes; ++i)
        block.warps.push_back(std::make_unique<Warp>());
    block.barriers_done = 0;
    block.num_at_barrier = 0;
    block.num_done = 0;
    block.has_let_next_start = false;
    block.named = {};
    while (block.fibers.size() < static_cast<std::size_t>(block.num_threads))
        block.fibers.push_back(std::make_unique<Fiber>());
    for (int i = 0; i < block.num_threads; ++i) {
        Fiber& fiber = *block.fibers[static_cast<std::size_t>(i)];
        const auto number = static_cast<unsigned>(i);
        fiber.thread = Thread{
            .index =
                {number % block_dim.x,
                 number / block_dim.x % block_dim.y,
                 number / block_dim.x / block_dim.y},
            .linear = i,
            .warp = block.warps[static_cast<std::size_t>(i / kLanes)].get()};
        fiber.state = State::kReady;
        prepare(fiber);
    }
}

// If all blocks of a GPU wait for something else, its thread sleeps for this long.
constexpr auto kStandBy = std::chrono::microseconds(20);

// Fibers of ended blocks, for blocks that begin while others stand by.
std::vector<std::vector<std::unique_ptr<Fiber>>> idle_fibers;

}  // namespace

// The number of a kernel's blocks that have room while the kernel waits for the previous one.
constexpr std::size_t kEarlyBlocksMax = 2;

bool waits_for_previous(const Overlap* of) {
    return of != nullptr && of->is_previous_done && !of->is_previous_done();
}

struct ParkedBlock {
    Block state{};
    Dim3 index{};
};

std::int64_t num_blocks_run() { return blocks_run; }

void fail(const std::string& what) {
    std::fprintf(
        stderr,
        "emulator: block (%u, %u, %u), thread %d: %s\n",
        block_index.x,
        block_index.y,
        block_index.z,
        current == nullptr ? -1 : current->linear,
        what.c_str()
    );
    std::fflush(stderr);
    std::abort();
}

void block_barrier() {
    if (block.num_done != 0) fail("a barrier that some threads have left the kernel before");
    if (++block.num_at_barrier == block.num_threads) {
        block.num_at_barrier = 0;
        ++block.barriers_done;
        return;
    }
    running->state = State::kAtBarrier;
    running->waits_for = block.barriers_done + 1;
    running->waits_at = "__syncthreads";
    leave();
}

void wait_for_warp(const char* name) {
    running->state = State::kAtWarp;
    running->waits_for = current->warp_instructions;
    running->waits_at = name;
    leave();
}

void spin(const char* where) {
    running->state = State::kSpinning;
    running->waits_at = where;
    leave();
}

void tell_others() {
    if (current == nullptr) return;
    constexpr std::uint64_t kOneIn = 4;
    block.has_told = is_cooperative && choices().below(kOneIn) == 0;
    let_others_run();
}

void stand_by() {
    if (!is_cooperative)
        fail("a thread waits for other blocks in a launch that is not cooperative");
    block.is_standing_by = true;
    spin("stand_by");
}

// In half of the blocks the thread then stands still, so that the next kernel may get far ahead.
void let_next_kernel_start() {
    if (overlap == nullptr) return;
    if (!std::exchange(block.has_let_next_start, true)) block.has_told = choices().below(2) == 0;
    if (block.has_told) let_others_run();
}

void wait_for_kernel_before() {
    while (waits_for_previous(overlap)) {
        block.is_standing_by = true;
        spin("griddepcontrol.wait");
    }
}

std::byte* dynamic_shared_memory() { return block.shared_begin; }

void check_aligned(const void* pointer, std::size_t alignment) {
    if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) fail("a misaligned address");
}

void check_shared(const void* pointer, std::size_t bytes, std::size_t alignment) {
    const auto* const begin = static_cast<const std::byte*>(pointer);
    if (begin < block.shared_begin || begin + bytes > block.shared_begin + block.shared_bytes)
        fail("an address outside the block's dynamic shared memory");
    check_aligned(pointer, alignment);
}

NamedBarriers& named_barriers() { return block.named; }

void let_others_get_ahead() {
    held.choose(choices(), static_cast<std::size_t>(current->linear / kLanes));
    let_others_run();
}

void let_others_run() {
    if (current == nullptr) return;  // a host function that is compiled for both
    running->state = State::kReady;
    running->waits_at = "an atomic";
    leave();
}

Grid::Grid(Shape shape, std::function<void()> body, std::shared_ptr<Overlap> overlap_of)
    : shape_(shape), overlap_(std::move(overlap_of)), body_(std::move(body)) {
    const unsigned num_threads = shape.block.x * shape.block.y * shape.block.z;
    if (shape.shared_bytes > kSharedBytesMax) fail("more shared memory than a block can have");
    if (num_threads % kLanes != 0 || num_threads > kThreadsMax) fail("an odd block size");
    order_.resize(std::uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z);
    for (std::uint64_t i = 0; i < order_.size(); ++i) order_[i] = i;
    choices().shuffle(order_);
}

Grid::~Grid() = default;

void Grid::begin_block() {
    const std::uint64_t number = order_.back();
    order_.pop_back();
    block_index = {
        static_cast<unsigned>(number % shape_.grid.x),
        static_cast<unsigned>(number / shape_.grid.x % shape_.grid.y),
        static_cast<unsigned>(number / shape_.grid.x / shape_.grid.y)};
    prepare_block(shape_.shared_bytes, body_, uses_async_proxy_);
    ++blocks_run;
}

void Grid::park_block() {
    if (is_async_proxy_watched()) fail("a block that uses the async proxy has to be parked");
    auto parked = std::make_unique<ParkedBlock>();
    parked->state = std::exchange(block, Block{});
    parked->index = block_index;
    if (!idle_fibers.empty()) {
        block.fibers = std::move(idle_fibers.back());
        idle_fibers.pop_back();
    }
    parked_.push_back(std::move(parked));
}

void Grid::resume_block(std::size_t which) {
    std::swap(parked_[which], parked_.back());
    idle_fibers.push_back(std::move(block.fibers));
    block = std::move(parked_.back()->state);
    block_index = parked_.back()->index;
    parked_.pop_back();
}

void Grid::begin_or_resume() {
    const bool has_room = !waits_for_previous(overlap) || parked_.size() < kEarlyBlocksMax;
    const std::size_t num_new = has_room ? order_.size() : 0;
    const std::size_t which = choices().below(num_new + parked_.size());
    if (which < num_new) {
        begin_block();
    } else {
        resume_block(which - num_new);
    }
}

void Grid::note_starts() const {
    if (overlap_ == nullptr || !order_.empty()) return;
    overlap_->may_next_start |= std::ranges::all_of(parked_, [](const auto& parked) {
        return parked->state.has_let_next_start;
    });
}

bool Grid::run_block() {
    if (order_.empty() && parked_.empty()) return false;
    grid_dim = shape_.grid;
    block_dim = shape_.block;
    is_cooperative = shape_.is_cooperative;
    overlap = overlap_.get();
    begin_or_resume();
    const bool is_done = run_threads(choices());
    uses_async_proxy_ = is_async_proxy_watched();
    current = nullptr;
    if (!is_done) {
        park_block();
        let_other_works_run();
        if (order_.empty() && is_cooperative) std::this_thread::sleep_for(kStandBy);
    }
    note_starts();
    return !order_.empty() || !parked_.empty();
}

void run_grid(Dim3 grid, Dim3 dim, std::size_t shared_bytes, const std::function<void()>& body) {
    const DeviceAccess access;
    Grid blocks({.grid = grid, .block = dim, .shared_bytes = shared_bytes}, body);
    while (blocks.run_block()) {
    }
}

}  // namespace pitstop::emulator
