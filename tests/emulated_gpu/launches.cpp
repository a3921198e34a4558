#include "tests/emulated_gpu/launches.h"

#include "tests/emulated_gpu/calls.h"
#include "tests/emulated_gpu/code.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/settings.h"
#include "tests/emulated_gpu/static_shared.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace pitstop::emulator {
namespace {

constexpr std::size_t kSharedBytesPlain = std::size_t{48} << 10;

struct Raised {
    std::mutex mutex{};
    std::map<const void*, std::size_t> bytes{};
};
Raised& raised() {
    static Raised* const instance = new Raised;
    return *instance;
}

// The dynamic shared memory that a launch may use in addition to the static.
std::size_t shared_bytes_max(const void* kernel) {
    const std::scoped_lock lock(raised().mutex);
    const auto found = raised().bytes.find(kernel);
    if (found != raised().bytes.end()) return found->second;
    return kSharedBytesPlain - std::min(kSharedBytesPlain, static_shared_bytes(kernel));
}

// The blocks that a GPU can run at once, by their threads and their shared memory. Source: CUDA C++
// Programming Guide, "Technical specifications per compute capability" (9.0).
std::size_t resident_max(const KernelLaunch& launch) {
    constexpr std::size_t kThreadsPerMultiprocessor = 2048;
    constexpr std::size_t kSharedBytesPerMultiprocessor = std::size_t{228} << 10;
    constexpr std::size_t kSharedBytesOfBlock = 1 << 10;  // reserved by the system per block
    if (static_shared_bytes(launch.kernel) != 0)
        fail("a cooperative launch of a kernel with static shared memory (blocks.h, stand_by)");
    const std::size_t threads = std::size_t{launch.block.x} * launch.block.y * launch.block.z;
    const std::size_t shared = launch.shared_bytes + kSharedBytesOfBlock;
    return std::size_t{kMultiprocessors} *
           std::min(kThreadsPerMultiprocessor / threads, kSharedBytesPerMultiprocessor / shared);
}

// The cooperative kernel that each GPU runs, if the environment allows one at a time.
struct Turn {
    std::mutex mutex{};
    std::map<int, const void*> holder{};  // GPU -> the kernel that has the turn

    [[nodiscard]] bool take(int gpu, const void* who) {
        const std::scoped_lock lock(mutex);
        const void*& at = holder[gpu];
        if (at == nullptr) at = who;
        return at == who;
    }
    void give(int gpu) {
        const std::scoped_lock lock(mutex);
        holder[gpu] = nullptr;
    }
};
Turn& turn() {
    static Turn* const instance = new Turn;
    return *instance;
}

// Runs the grid's blocks, once no other cooperative kernel runs on the GPU.
Step in_turn(int gpu, const std::shared_ptr<Grid>& blocks) {
    return [gpu, blocks] {
        if (!turn().take(gpu, blocks.get())) return false;
        const bool is_over = !blocks->run_block();
        if (is_over) turn().give(gpu);
        return is_over;
    };
}

// Work that never ends, or that ends its context with an error.
Step faulty(const Fault& fault) {
    if (fault.kind == FaultKind::kHang) {
        return [] {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return false;
        };
    }
    return [error = fault.error] {
        end_context(error);
        return true;
    };
}

}  // namespace

int raise_shared_memory(const void* kernel, int bytes) {
    if (const cudaError_t error = enter_call("cudaFuncSetAttribute"); error != cudaSuccess)
        return told(error);
    if (bytes < 0 ||
        static_cast<std::size_t>(bytes) + static_shared_bytes(kernel) > kSharedBytesMax)
        return told(cudaErrorInvalidValue);
    const std::scoped_lock lock(raised().mutex);
    raised().bytes[kernel] = static_cast<std::size_t>(bytes);
    return cudaSuccess;
}

int launch_kernel(KernelLaunch launch) {
    if (const cudaError_t error = enter_call("cudaLaunchKernelEx"); error != cudaSuccess)
        return told(error);
    const Dim3 grid = launch.grid;
    const Dim3 block = launch.block;
    const std::size_t num_threads = std::size_t{block.x} * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || num_threads == 0 || grid.x > 0x7fffffffu ||
        grid.y > 65535 || grid.z > 65535 || block.z > 64 || num_threads > 1024)
        return told(cudaErrorInvalidConfiguration);
    if (launch.shared_bytes > shared_bytes_max(launch.kernel)) return told(cudaErrorInvalidValue);
    if (launch.is_cooperative && std::size_t{grid.x} * grid.y * grid.z > resident_max(launch))
        return told(cudaErrorCooperativeLaunchTooLarge);
    const auto handle = static_cast<cudaStream_t>(launch.stream);
    const std::shared_ptr<Stream> stream = stream_of(handle);
    if (stream == nullptr) return told(no_stream(handle));
    if (!load_code(stream->gpu, launch.kernel, CodeOf::kProgram))
        return told(cudaErrorMemoryAllocation);
    const std::optional<Fault> fault = fault_at("kernel", stream->gpu);
    const bool may_start_early = launch.may_start_early;
    const bool waits_for_others = launch.is_cooperative && !settings().runs_grids_together;
    auto begin = [launch = std::move(launch), fault, waits_for_others, gpu = stream->gpu](
                     const std::shared_ptr<Overlap>& overlap
                 ) -> Step {
        if (fault) return faulty(*fault);
        auto blocks = std::make_shared<Grid>(
            Grid::Shape{launch.grid, launch.block, launch.shared_bytes, launch.is_cooperative},
            launch.body,
            overlap
        );
        if (waits_for_others) return in_turn(gpu, blocks);
        return [blocks] { return !blocks->run_block(); };
    };
    enqueue(
        stream,
        {.kind = WorkKind::kKernel,
         .name = "a kernel",
         .gpu = stream->gpu,
         .begin = [begin] { return begin(nullptr); },
         .begin_beside = begin,
         .may_start_early = may_start_early}
    );
    return cudaSuccess;
}

}  // namespace pitstop::emulator
