#include "tests/emulated_gpu/warpgroups.h"

#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/random.h"
#include "tests/emulated_gpu/settings.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kChunkBytes = 16;  // the most bytes that one cp.async writes
// Source: CUDA C++ Programming Guide, "Compute Capabilities", "Technical Specifications".
constexpr int kRegistersPerBlock = 65536;
constexpr int kRegistersPerThreadMax = 255;
// Source: PTX ISA, "setmaxnreg".
constexpr int kRegistersMin = 24, kRegistersMax = 256, kRegistersStep = 8;

// Shared memory as the async proxy sees it, by chunks, and the last unfenced writer of each chunk.
struct AsyncView {
    std::vector<std::byte> bytes{};
    std::vector<std::byte> known{};                    // as of the last search for stores
    std::vector<int> writer{};                         // by_thread(), by_warp(); 0: fenced
    std::vector<std::vector<std::uint32_t>> stored{};  // chunks, by the warp that stored there
    bool is_watched = false;
    bool are_products_at_once = false;
    int num_registers_left = 0;
};
AsyncView view;

int by_thread(int thread) { return 1 + thread; }
int by_warp(int warp) { return -1 - warp; }

std::size_t offset_of(const void* address) {
    return static_cast<std::size_t>(
        static_cast<const std::byte*>(address) - dynamic_shared_memory()
    );
}

std::size_t size_of_chunk(std::size_t chunk) {
    return std::min(kChunkBytes, view.bytes.size() - chunk * kChunkBytes);
}

bool is_chunk_changed(std::size_t chunk, const std::vector<std::byte>& since) {
    const std::size_t begin = chunk * kChunkBytes;
    return std::memcmp(
               since.data() + begin, dynamic_shared_memory() + begin, size_of_chunk(chunk)
           ) != 0;
}

void copy_chunk(std::size_t chunk, std::vector<std::byte>& to) {
    const std::size_t begin = chunk * kChunkBytes;
    std::memcpy(to.data() + begin, dynamic_shared_memory() + begin, size_of_chunk(chunk));
}

// The most registers of a launched kernel whose registers were not counted.
int registers_at_launch() {
    const int num_threads = static_cast<int>(block_dim.x * block_dim.y * block_dim.z);
    const int num = std::min(kRegistersPerThreadMax, kRegistersPerBlock / num_threads);
    return num / kRegistersStep * kRegistersStep;
}

void check_registers(int num) {
    if (num < kRegistersMin || num > kRegistersMax || num % kRegistersStep != 0)
        fail("setmaxnreg of " + std::to_string(num) + " registers");
}

bool is_unchanged(const Warpgroup::InUse& use) {
    return std::memcmp(use.registers.data, use.value.data(), use.registers.bytes) == 0;
}

void read(Warpgroup::InUse& use) {
    std::memcpy(use.value.data(), use.registers.data, use.registers.bytes);
}

void check_unchanged(const Warpgroup& group) {
    for (const Warpgroup::InUse& use : group.in_use) {
        if (!is_unchanged(use))
            fail("registers of a wgmma were written to before it was waited for");
    }
}

void begin_use(Warpgroup& group, const Registers& registers) {
    if (registers.data == nullptr) return;
    for (Warpgroup::InUse& use : group.in_use) {
        if (use.registers.data != registers.data) continue;
        ++use.num_products;
        return;
    }
    group.in_use.push_back(
        {.registers = registers,
         .value = std::vector<std::byte>(registers.bytes),
         .num_products = 1}
    );
    read(group.in_use.back());
}

void end_use(Warpgroup& group, const Registers& registers) {
    for (Warpgroup::InUse& use : group.in_use) {
        if (use.registers.data == registers.data) --use.num_products;
    }
    std::erase_if(group.in_use, [](const auto& use) { return use.num_products == 0; });
}

void run(Warpgroup& group, const Warpgroup::Product& product) {
    product.run();
    for (Warpgroup::InUse& use : group.in_use) {
        if (use.registers.data == product.sums.data) read(use);
    }
}

}  // namespace

bool is_at_once() {
    static const bool is_random = [] {
        const char* const asked = std::getenv("PITSTOP_EMULATOR_COPIES");
        const std::string when = asked == nullptr ? "late" : asked;
        if (when != "late" && when != "random")
            fail("PITSTOP_EMULATOR_COPIES takes late or random, not '" + when + "'");
        return when == "random";
    }();
    static Random random(settings().seed);
    return is_random && random.below(2) == 0;
}

void begin_async_proxy(std::size_t shared_bytes, bool is_watched) {
    view.bytes.assign(shared_bytes, std::byte{0xff});
    view.known = view.bytes;
    view.writer.assign((shared_bytes + kChunkBytes - 1) / kChunkBytes, 0);
    view.stored.assign(kThreadsMax / kLanes, {});
    view.is_watched = is_watched;
    view.are_products_at_once = is_at_once();
    view.num_registers_left = 0;
}

bool is_async_proxy_watched() { return view.is_watched; }

void note_copy(const void* to, std::size_t bytes) {
    const std::size_t begin = offset_of(to) / kChunkBytes;
    const std::size_t end = (offset_of(to) + bytes + kChunkBytes - 1) / kChunkBytes;
    for (std::size_t chunk = begin; chunk < std::min(end, view.writer.size()); ++chunk) {
        view.writer[chunk] = by_thread(current->linear);
        current->warpgroup.unfenced.push_back(static_cast<std::uint32_t>(chunk));
        copy_chunk(chunk, view.known);
    }
}

void note_stores(int warp) {
    const std::byte* const now = dynamic_shared_memory();
    if (std::memcmp(view.known.data(), now, view.known.size()) == 0) return;
    for (std::size_t chunk = 0; chunk < view.writer.size(); ++chunk) {
        if (!is_chunk_changed(chunk, view.known)) continue;
        view.writer[chunk] = by_warp(warp);
        view.stored[static_cast<std::size_t>(warp)].push_back(static_cast<std::uint32_t>(chunk));
        copy_chunk(chunk, view.known);
    }
}

void fence_proxy() {
    const int warp = current->linear / kLanes;
    if (!view.is_watched) {
        view.is_watched = true;
        for (std::size_t chunk = 0; chunk < view.writer.size(); ++chunk) {
            copy_chunk(chunk, view.known);
            if (view.writer[chunk] == 0) copy_chunk(chunk, view.bytes);
        }
    }
    note_stores(warp);
    const auto publish = [](std::vector<std::uint32_t>& chunks, int writer) {
        for (const std::uint32_t chunk : std::exchange(chunks, {})) {
            if (view.writer[chunk] != writer) continue;
            view.writer[chunk] = 0;
            copy_chunk(chunk, view.bytes);
        }
    };
    publish(current->warpgroup.unfenced, by_thread(current->linear));
    publish(view.stored[static_cast<std::size_t>(warp)], by_warp(warp));
}

void check_seen_by_async_proxy(const void* from, std::size_t bytes) {
    const std::size_t begin = offset_of(from);
    if (view.writer[begin / kChunkBytes] == 0 &&
        std::memcmp(view.bytes.data() + begin, from, bytes) == 0)
        return;
    fail("wgmma reads shared memory that was written without a fence.proxy.async");
}

void fence_products() { current->warpgroup.is_fenced = true; }

void multiply_async(Warpgroup::Product product) {
    Warpgroup& group = current->warpgroup;
    check_unchanged(group);
    if (!group.is_fenced) fail("a wgmma without a wgmma.fence after its registers were written to");
    begin_use(group, product.sums);
    begin_use(group, product.fragment);
    if (group.groups.empty()) group.groups.emplace_back();
    group.groups.back().push_back(std::move(product));
    if (!view.are_products_at_once) return;
    Warpgroup::Product& issued = group.groups.back().back();
    run(group, issued);
    issued.run = [] {};
}

void commit_products() {
    auto& groups = current->warpgroup.groups;
    if (groups.empty()) groups.emplace_back();
    groups.emplace_back();
}

void wait_products(int num_pending) {
    Warpgroup& group = current->warpgroup;
    check_unchanged(group);
    const auto num_kept = static_cast<std::size_t>(num_pending) + 1;
    if (group.groups.size() > num_kept) let_others_run();  // products take time
    while (group.groups.size() > num_kept) {
        for (const Warpgroup::Product& product : group.groups.front()) {
            run(group, product);
            end_use(group, product.sums);
            end_use(group, product.fragment);
        }
        group.groups.erase(group.groups.begin());
    }
    group.is_fenced = false;
}

void give_registers(int num) {
    check_registers(num);
    if (current->linear % kLanes != 0) return;
    int& own = current->warpgroup.num_registers;
    if (own == 0) own = registers_at_launch();
    if (num > own) fail("setmaxnreg.dec to more registers than the warp has");
    view.num_registers_left += own - num;
    own = num;
}

void take_registers(int num) {
    check_registers(num);
    if (current->linear % kLanes != 0) return;
    int& own = current->warpgroup.num_registers;
    if (own == 0) own = registers_at_launch();
    if (num < own) fail("setmaxnreg.inc to fewer registers than the warp has");
    while (view.num_registers_left < num - own) spin("setmaxnreg");
    view.num_registers_left -= num - own;
    own = num;
}

}  // namespace pitstop::emulator
