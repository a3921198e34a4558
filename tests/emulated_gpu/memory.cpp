#include "tests/emulated_gpu/memory.h"

#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/faults.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/settings.h"
#include "tests/emulated_gpu/streams.h"

#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace pitstop::emulator {
namespace {

// The names of memory files, which /proc shows: one for each kind of memory.
constexpr const char* kPhysicalName = "pitstop_emulated_chunk";
constexpr const char* kDeviceName = "pitstop_emulated_gpu";
constexpr const char* kPinnedName = "pitstop_emulated_pinned";
constexpr const char* name_of(OwnMemory what) {
    switch (what) {
        case OwnMemory::kContext:
            return "pitstop_emulated_context";
        case OwnMemory::kGraph:
            return "pitstop_emulated_graph";
        case OwnMemory::kCode:
            return "pitstop_emulated_code";
        case OwnMemory::kLibrary:
            return "pitstop_emulated_library";
        case OwnMemory::kNccl:
            return "pitstop_emulated_nccl";
    }
    return "";
}

constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// Creates memory as a file without a path, so that other processes can map it.
int make_pages(std::size_t bytes, const char* name) {
    const int fd = ::memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) fail("memfd_create");
    return fd;
}

void poison(int fd, std::size_t bytes) {
    void* const pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (pages == MAP_FAILED) fail("mmap of device memory");
    std::memset(pages, kPoison, bytes);
    ::munmap(pages, bytes);
}

std::byte* reserve_addresses(std::size_t bytes, std::size_t alignment) {
    void* const found = ::mmap(
        nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0
    );
    if (found == MAP_FAILED) return nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(found);
    return static_cast<std::byte*>(found) + (alignment - address % alignment) % alignment;
}

// Unmaps the memory and keeps the addresses reserved.
void close_addresses(std::byte* begin, std::size_t bytes) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (::mmap(begin, bytes, PROT_NONE, kFlags, -1, 0) == MAP_FAILED) fail("mmap of no memory");
}

struct Mapping {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<Physical> physical{};
    std::set<int> gpus{};  // GPUs that may access the memory
    bool is_open = false;
};

struct Memory {
    std::mutex mutex{};
    std::map<const std::byte*, Allocation> allocations{};
    std::map<const std::byte*, Mapping> mappings{};  // parts of ranges
    std::set<std::pair<int, int>> peers{};           // (GPU, peer whose memory it may access)
    int num_accesses = 0;
    int gpu = kEveryGpu;  // the GPU whose kernels run

    static Memory& of_process() {
        static Memory* const memory = new Memory;
        return *memory;
    }

    // Every GPU may access imported memory (cudaIpcMemLazyEnablePeerAccess).
    [[nodiscard]] bool may_access(MemoryKind kind, int of_gpu) const {
        return gpu == kEveryGpu || gpu == of_gpu || kind == MemoryKind::kImported ||
               peers.contains({gpu, of_gpu});
    }
    [[nodiscard]] bool is_open(MemoryKind kind, int of_gpu) const {
        return num_accesses > 0 && may_access(kind, of_gpu);
    }
    [[nodiscard]] bool is_open(const Mapping& mapping) const {
        return num_accesses > 0 && !mapping.gpus.empty() &&
               (gpu == kEveryGpu || mapping.gpus.contains(gpu));
    }
    static int protection(bool is_open) { return is_open ? PROT_READ | PROT_WRITE : PROT_NONE; }
    static void protect(std::byte* begin, std::size_t bytes, bool is_open_now, bool& is_open) {
        if (is_open == is_open_now) return;
        is_open = is_open_now;
        if (::mprotect(begin, bytes, protection(is_open)) != 0) fail("mprotect of device memory");
    }
    void protect_all() {
        for (auto& [begin, memory] : allocations) {
            const bool is_on_gpu =
                memory.kind == MemoryKind::kDevice || memory.kind == MemoryKind::kImported;
            if (is_on_gpu)
                protect(
                    memory.pages,
                    memory.page_bytes,
                    is_open(memory.kind, memory.gpu),
                    memory.is_open
                );
        }
        for (auto& [begin, mapping] : mappings)
            protect(mapping.begin, mapping.bytes, is_open(mapping), mapping.is_open);
    }

    // Maps the pages of `fd` at new addresses; the page after them stays inaccessible.
    Allocation* add(
        MemoryKind kind, int gpu_of, int fd, std::size_t page_bytes, std::size_t bytes
    ) {
        std::byte* const pages = reserve_addresses(page_bytes + kPage, kPage);
        if (pages == nullptr) return nullptr;
        const bool is_open_now = kind == MemoryKind::kPinned || is_open(kind, gpu_of);
        if (::mmap(pages, page_bytes, protection(is_open_now), MAP_SHARED | MAP_FIXED, fd, 0) ==
            MAP_FAILED)
            return nullptr;
        std::byte* const begin = pages + page_bytes - bytes;
        return &(
            allocations[begin] =
                Allocation{
                    .kind = kind,
                    .gpu = gpu_of,
                    .begin = begin,
                    .bytes = bytes,
                    .fd = fd,
                    .pages = pages,
                    .page_bytes = page_bytes,
                    .is_open = is_open_now}
        );
    }
};

std::byte* allocate(MemoryKind kind, int gpu, std::size_t bytes) {
    const std::size_t rounded = round_up(bytes, kDeviceAlignment);
    const std::size_t page_bytes = round_up(rounded, kPage);
    const bool is_on_gpu = kind == MemoryKind::kDevice;
    if (is_on_gpu && !take_memory(gpu, static_cast<std::int64_t>(page_bytes))) return nullptr;
    const int fd = make_pages(page_bytes, is_on_gpu ? kDeviceName : kPinnedName);
    poison(fd, page_bytes);
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    const Allocation* const made = memory.add(kind, gpu, fd, page_bytes, rounded);
    if (made == nullptr) fail("no addresses are left");
    return made->begin;
}

}  // namespace

std::byte* allocate_device(int gpu, std::size_t bytes) {
    return allocate(MemoryKind::kDevice, gpu, bytes);
}

std::byte* allocate_pinned(std::size_t bytes) { return allocate(MemoryKind::kPinned, 0, bytes); }

bool lock_pages(std::byte* begin, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    if (bytes == 0 || address % kPage != 0 || bytes % kPage != 0) return false;
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    const auto next = memory.allocations.lower_bound(begin);
    if (next != memory.allocations.end() && next->first < begin + bytes) return false;
    if (next != memory.allocations.begin()) {
        const Allocation& before = std::prev(next)->second;
        if (before.begin + before.bytes > begin) return false;
    }
    // The file only shows tests how much is locked; the pages remain the process's own.
    memory.allocations[begin] = Allocation{
        .kind = MemoryKind::kLocked,
        .begin = begin,
        .bytes = bytes,
        .fd = make_pages(bytes, kPinnedName)};
    return true;
}

bool free_memory_at(void* begin, MemoryKind kind) {
    Memory& memory = Memory::of_process();
    Allocation freed;
    {
        const std::scoped_lock lock(memory.mutex);
        const auto found = memory.allocations.find(static_cast<std::byte*>(begin));
        if (found == memory.allocations.end() || found->second.kind != kind) return false;
        freed = found->second;
        memory.allocations.erase(found);
        if (kind != MemoryKind::kLocked) close_addresses(freed.pages, freed.page_bytes);
    }
    if (freed.fd < 0) return true;
    // Another process may still have the pages mapped, and must not find the old bytes.
    if (kind == MemoryKind::kDevice) poison(freed.fd, freed.page_bytes);
    ::close(freed.fd);
    if (kind == MemoryKind::kDevice)
        give_memory(freed.gpu, static_cast<std::int64_t>(freed.page_bytes));
    return true;
}

std::byte* import_memory(
    int pid, int fd, std::size_t page_bytes, std::size_t offset, std::size_t bytes, int gpu
) {
    const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
    const int own_fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (own_fd < 0) return nullptr;
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    const Allocation* const made =
        memory.add(MemoryKind::kImported, gpu, own_fd, page_bytes, page_bytes - offset);
    if (made == nullptr || made->bytes < bytes) {
        ::close(own_fd);
        return nullptr;
    }
    return made->begin;
}

std::optional<Allocation> find_memory(const void* address) {
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    auto found = memory.allocations.upper_bound(static_cast<const std::byte*>(address));
    if (found == memory.allocations.begin()) return std::nullopt;
    --found;
    const Allocation& allocation = found->second;
    if (static_cast<const std::byte*>(address) >= allocation.begin + allocation.bytes)
        return std::nullopt;
    return allocation;
}

Physical::~Physical() {
    ::close(fd);
    if (!is_imported) give_memory(gpu, static_cast<std::int64_t>(bytes));
}

std::shared_ptr<Physical> create_physical(int gpu, std::size_t bytes) {
    if (!take_memory(gpu, static_cast<std::int64_t>(bytes))) return nullptr;
    const int fd = make_pages(bytes, kPhysicalName);
    poison(fd, bytes);
    return std::make_shared<Physical>(gpu, bytes, fd);
}

std::shared_ptr<Physical> create_own_memory(int gpu, std::size_t bytes, OwnMemory what) {
    const std::size_t page_bytes = round_up(bytes, kPage);
    const auto taken = static_cast<std::int64_t>(page_bytes);
    const std::int64_t used = settings().memory_bytes - free_memory(gpu);
    if (used + taken > memory_limit(gpu) || !take_memory(gpu, taken)) return nullptr;
    return std::make_shared<Physical>(gpu, page_bytes, make_pages(page_bytes, name_of(what)));
}

std::shared_ptr<Physical> import_physical(int gpu, int fd) {
    // /proc shows the name of a memory file. Other descriptors are not memory of a GPU.
    char name[64] = {};
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t length = ::readlink(path.c_str(), name, sizeof name - 1);
    const std::string memory_file = std::string("/memfd:") + kPhysicalName;
    struct stat file {};
    if (length < 0 || !std::string_view(name).starts_with(memory_file) || ::fstat(fd, &file) != 0)
        return nullptr;
    const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return nullptr;
    auto imported = std::make_shared<Physical>(gpu, static_cast<std::size_t>(file.st_size), own);
    imported->is_imported = true;
    return imported;
}

std::byte* reserve_range(std::size_t bytes) {
    std::byte* const begin = reserve_addresses(bytes, kGranularity);
    if (begin == nullptr) return nullptr;
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    memory.allocations[begin] =
        Allocation{.kind = MemoryKind::kRange, .begin = begin, .bytes = bytes, .pages = begin};
    return begin;
}

bool free_range(std::byte* begin, std::size_t bytes) {
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    const auto found = memory.allocations.find(begin);
    if (found == memory.allocations.end() || found->second.kind != MemoryKind::kRange ||
        found->second.bytes != bytes)
        return false;
    const auto mapped = memory.mappings.lower_bound(begin);
    if (mapped != memory.mappings.end() && mapped->first < begin + bytes) return false;
    memory.allocations.erase(found);
    return true;  // the addresses stay reserved: nothing else is mapped there
}

bool map_range(std::byte* begin, std::size_t bytes, std::shared_ptr<Physical> physical) {
    const std::optional<Allocation> range = find_memory(begin);
    if (!range || range->kind != MemoryKind::kRange || bytes != physical->bytes ||
        begin + bytes > range->begin + range->bytes)
        return false;
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    const auto next = memory.mappings.lower_bound(begin);
    if (next != memory.mappings.end() && next->first < begin + bytes) return false;
    if (next != memory.mappings.begin() &&
        std::prev(next)->second.begin + std::prev(next)->second.bytes > begin)
        return false;
    memory.mappings[begin] = Mapping{begin, bytes, std::move(physical)};
    return true;
}

bool set_range_access(std::byte* begin, std::size_t bytes, std::span<const int> gpus) {
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    std::vector<Mapping*> covered;
    for (std::byte* at = begin; at < begin + bytes;) {
        const auto found = memory.mappings.find(at);
        if (found == memory.mappings.end() || at + found->second.bytes > begin + bytes)
            return false;
        covered.push_back(&found->second);
        at += found->second.bytes;
    }
    for (Mapping* const mapping : covered) {
        const bool had_access = !mapping->gpus.empty();
        mapping->gpus.insert(gpus.begin(), gpus.end());
        if (had_access) continue;
        constexpr int kFlags = MAP_SHARED | MAP_FIXED;
        const int fd = mapping->physical->fd;
        if (::mmap(mapping->begin, mapping->bytes, PROT_NONE, kFlags, fd, 0) == MAP_FAILED)
            fail("mmap of physical memory");
    }
    memory.protect_all();
    return true;
}

bool unmap_range(std::byte* begin, std::size_t bytes) {
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    const auto first = memory.mappings.lower_bound(begin);
    const auto last = memory.mappings.lower_bound(begin + bytes);
    std::size_t num_bytes = 0;
    for (auto i = first; i != last; ++i) num_bytes += i->second.bytes;
    if (num_bytes != bytes) return false;
    close_addresses(begin, bytes);
    memory.mappings.erase(first, last);
    return true;
}

void open_memory_for(int gpu) {
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    if (std::exchange(memory.gpu, gpu) != gpu) memory.protect_all();
}

bool enable_peer(int gpu, int peer) {
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    const bool is_new = memory.peers.insert({gpu, peer}).second;
    memory.protect_all();
    return is_new;
}

bool disable_peer(int gpu, int peer) {
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    const bool was_there = memory.peers.erase({gpu, peer}) == 1;
    memory.protect_all();
    return was_there;
}

DeviceAccess::DeviceAccess() {
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    if (memory.num_accesses++ == 0) memory.protect_all();
}

DeviceAccess::~DeviceAccess() {
    Memory& memory = Memory::of_process();
    const std::scoped_lock lock(memory.mutex);
    if (--memory.num_accesses == 0) memory.protect_all();
}

}  // namespace pitstop::emulator
