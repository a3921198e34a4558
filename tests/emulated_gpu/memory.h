// The memory that CUDA has given this process: on the GPU, page-locked on the host, and address
// ranges of the virtual-memory API.
//
// Device memory is host memory that the host may not touch. While nothing runs on the GPU, an
// access by the host faults. While something runs, such an access is not noticed: host and GPU are
// threads of one process. An allocation ends at the end of a page, and the page after it is
// inaccessible: a kernel that runs over the end faults. Memory that was never written contains
// kPoison. Freed and unmapped addresses are not reused, so an access to them faults. A fault on the
// GPU's side is the context's sticky cudaErrorIllegalAddress (streams.h).
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace pitstop::emulator {

inline constexpr unsigned char kPoison = 0xff;  // NaN as bf16 and fp32, -1 as an integer
// The granularity of physical memory. Source: CUDA Driver API, cuMemGetAllocationGranularity: 2 MiB
// on all GPUs so far.
inline constexpr std::size_t kGranularity = std::size_t{2} << 20;
inline constexpr std::size_t kDeviceAlignment =
    256;  // CUDA C++ Programming Guide, "device memory accesses"

enum class MemoryKind : std::uint8_t {
    kDevice,    // cudaMalloc
    kPinned,    // cudaMallocHost
    kLocked,    // cudaHostRegister: the process's own pages
    kRange,     // an address range, mapped or not
    kImported,  // memory of another process
};

struct Allocation {
    MemoryKind kind = MemoryKind::kDevice;
    int gpu = 0;
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
    int fd = -1;                 // kDevice: the pages, which another process can map
    std::byte* pages = nullptr;  // begin of the mapping, which ends with the closed page
    std::size_t page_bytes = 0;
    bool is_open = false;  // accesses to GPU memory do not fault now
};

// Null if the GPU lacks the memory.
[[nodiscard]] std::byte* allocate_device(int gpu, std::size_t bytes);
[[nodiscard]] std::byte* allocate_pinned(std::size_t bytes);
// Locks whole pages of the process. False if the range is not whole pages, or one is locked
// already.
[[nodiscard]] bool lock_pages(std::byte* begin, std::size_t bytes);
[[nodiscard]] inline bool is_page_locked(MemoryKind kind) {
    return kind == MemoryKind::kPinned || kind == MemoryKind::kLocked;
}
// False if no memory of that kind begins at `begin`.
[[nodiscard]] bool free_memory_at(void* begin, MemoryKind kind);
// Maps another process's allocation. Null if that fails, as after the process has ended.
[[nodiscard]] std::byte* import_memory(
    int pid, int fd, std::size_t page_bytes, std::size_t offset, std::size_t bytes, int gpu
);
// The allocation that contains `address`.
[[nodiscard]] std::optional<Allocation> find_memory(const void* address);

// Memory of the virtual-memory API. Lives until its handle is released and all mappings are gone.
struct Physical {
    int gpu = 0;
    std::size_t bytes = 0;
    int fd = -1;
    bool is_imported = false;  // the exporting process accounts for the bytes
    Physical(int gpu_in, std::size_t bytes_in, int fd_in)
        : gpu(gpu_in), bytes(bytes_in), fd(fd_in) {}
    Physical(const Physical&) = delete;
    Physical& operator=(const Physical&) = delete;
    ~Physical();
};
// Null if the GPU lacks the memory.
[[nodiscard]] std::shared_ptr<Physical> create_physical(int gpu, std::size_t bytes);
// Memory that the driver and libraries use for themselves on a GPU.
enum class OwnMemory : std::uint8_t {
    kContext,
    kGraph,    // an executable graph
    kCode,     // code of a kernel of the program
    kLibrary,  // code of a kernel of a library
    kNccl,     // an NCCL communicator
};
// Null if the GPU lacks the memory.
[[nodiscard]] std::shared_ptr<Physical> create_own_memory(
    int gpu, std::size_t bytes, OwnMemory what
);
// Another process's memory, from a descriptor of this process. Null if the descriptor names no such
// memory.
[[nodiscard]] std::shared_ptr<Physical> import_physical(int gpu, int fd);
[[nodiscard]] std::byte* reserve_range(std::size_t bytes);
// These four change nothing and return false if the arguments do not fit the ranges and mappings.
[[nodiscard]] bool free_range(std::byte* begin, std::size_t bytes);
[[nodiscard]] bool map_range(
    std::byte* begin, std::size_t bytes, std::shared_ptr<Physical> physical
);
[[nodiscard]] bool set_range_access(std::byte* begin, std::size_t bytes, std::span<const int> gpus);
[[nodiscard]] bool unmap_range(std::byte* begin, std::size_t bytes);

// Called before the GPU's kernels run: opens its memory and the peer memory that it may access, and
// closes the rest. kEveryGpu (streams.h) opens all memory, as for copies. Source: CUDA C++
// Programming Guide, "Peer-to-Peer Memory Access"; CUDA Driver API, cuMemSetAccess, for ranges.
void open_memory_for(int gpu);
// Let `gpu` access memory of `peer`, or stop that. False if nothing changes.
[[nodiscard]] bool enable_peer(int gpu, int peer);
[[nodiscard]] bool disable_peer(int gpu, int peer);

// The device's memory is open while a DeviceAccess exists.
class DeviceAccess {
  public:
    DeviceAccess();
    ~DeviceAccess();
    DeviceAccess(const DeviceAccess&) = delete;
    DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace pitstop::emulator
