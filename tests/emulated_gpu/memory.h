// Memory of this process that CUDA gave it: on the GPU, page-locked on the host, and address ranges
// of the virtual-memory API.
//
// Device memory is host memory that the host may not touch. While nothing runs on the GPU an access
// by the host faults; while something runs it is not noticed, as host and GPU are threads of one
// process. An allocation ends at the end of a page, and the page after it cannot be accessed: a
// kernel that runs over the end faults. Never written memory holds kPoison. Freed and unmapped
// addresses are given to nobody else: an access faults. Each of these faults, on the GPU's side, is
// the context's sticky cudaErrorIllegalAddress (streams.h).
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
// Of physical memory. Source: CUDA Driver API, cuMemGetAllocationGranularity: 2 MiB on all GPUs so
// far.
inline constexpr std::size_t kGranularity = std::size_t{2} << 20;
inline constexpr std::size_t kDeviceAlignment =
    256;  // CUDA C++ Programming Guide, "device memory accesses"

enum class MemoryKind : std::uint8_t {
    kDevice,    // cudaMalloc
    kPinned,    // cudaMallocHost
    kLocked,    // cudaHostRegister: the process's own pages
    kRange,     // an address range, mapped or not
    kImported,  // of another process
};

struct Allocation {
    MemoryKind kind = MemoryKind::kDevice;
    int gpu = 0;
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
    int fd = -1;                 // kDevice: the pages, which another process can map
    std::byte* pages = nullptr;  // what is mapped, with the page that cannot be accessed
    std::size_t page_bytes = 0;
    bool is_open = false;  // on the GPU: accesses do not fault now
};

// Null: the GPU has not got that much.
[[nodiscard]] std::byte* allocate_device(int gpu, std::size_t bytes);
[[nodiscard]] std::byte* allocate_pinned(std::size_t bytes);
// Whole pages of the process, none of which is locked already; false otherwise.
[[nodiscard]] bool lock_pages(std::byte* begin, std::size_t bytes);
[[nodiscard]] inline bool is_page_locked(MemoryKind kind) {
    return kind == MemoryKind::kPinned || kind == MemoryKind::kLocked;
}
// False: nothing of that kind begins there.
[[nodiscard]] bool free_memory_at(void* begin, MemoryKind kind);
// The pages of another process's allocation; null where they cannot be mapped (it has ended).
[[nodiscard]] std::byte* import_memory(
    int pid, int fd, std::size_t page_bytes, std::size_t offset, std::size_t bytes, int gpu
);
// What `address` lies in.
[[nodiscard]] std::optional<Allocation> find_memory(const void* address);

// Memory of the virtual-memory API: lives until its handle is released and it is mapped nowhere.
struct Physical {
    int gpu = 0;
    std::size_t bytes = 0;
    int fd = -1;
    bool is_imported = false;  // the exporter's, who counts it
    Physical(int gpu_in, std::size_t bytes_in, int fd_in)
        : gpu(gpu_in), bytes(bytes_in), fd(fd_in) {}
    Physical(const Physical&) = delete;
    Physical& operator=(const Physical&) = delete;
    ~Physical();
};
// Null: the GPU has not got that much.
[[nodiscard]] std::shared_ptr<Physical> create_physical(int gpu, std::size_t bytes);
// What the driver and libraries keep on a GPU for themselves; nobody's to use. Null likewise.
enum class OwnMemory : std::uint8_t {
    kContext,
    kGraph,    // an executable one
    kCode,     // of a kernel of the program
    kLibrary,  // of a kernel of a library
    kNccl,     // a communicator's
};
[[nodiscard]] std::shared_ptr<Physical> create_own_memory(
    int gpu, std::size_t bytes, OwnMemory what
);
// Another process's, by a descriptor of this one. Null: it is of no such memory.
[[nodiscard]] std::shared_ptr<Physical> import_physical(int gpu, int fd);
[[nodiscard]] std::byte* reserve_range(std::size_t bytes);
// False where the arguments do not fit what is there; nothing is changed then.
[[nodiscard]] bool free_range(std::byte* begin, std::size_t bytes);
[[nodiscard]] bool map_range(
    std::byte* begin, std::size_t bytes, std::shared_ptr<Physical> physical
);
[[nodiscard]] bool set_range_access(std::byte* begin, std::size_t bytes, std::span<const int> gpus);
[[nodiscard]] bool unmap_range(std::byte* begin, std::size_t bytes);

// From now on the GPU's kernels run: memory of other GPUs is closed but for what they may access
// directly. kEveryGpu (streams.h): all of it is open, as for copies. Source: CUDA C++ Programming
// Guide, "Peer-to-Peer Memory Access"; CUDA Driver API, cuMemSetAccess, for ranges.
void open_memory_for(int gpu);
// `gpu` accesses memory of `peer`, or no longer. False: it was so before.
[[nodiscard]] bool enable_peer(int gpu, int peer);
[[nodiscard]] bool disable_peer(int gpu, int peer);

// The device's turn: its memory may be used while there is one.
class DeviceAccess {
  public:
    DeviceAccess();
    ~DeviceAccess();
    DeviceAccess(const DeviceAccess&) = delete;
    DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace pitstop::emulator
