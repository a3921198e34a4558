// CUDA's runtime: memory and events of other processes. Source: CUDA Runtime API, "Device
// Management", cudaIpc*: which memory has no handle, which processes may not open one, and the same
// address at a second opening.
#include "tests/emulated_gpu/blocks.h"
#include "tests/emulated_gpu/calls.h"
#include "tests/emulated_gpu/machine.h"
#include "tests/emulated_gpu/memory.h"
#include "tests/emulated_gpu/settings.h"
#include "tests/emulated_gpu/tolls.h"

#include <cstring>
#include <fcntl.h>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace pitstop::emulator {
namespace {

constexpr std::uint32_t kMagic = 0x70697473;

// The 64 bytes of a handle.
struct MemoryHandle {
    std::uint32_t magic = kMagic;
    std::int32_t pid = 0;
    std::int32_t fd = -1;
    std::int32_t gpu = 0;  // its number on the machine
    std::uint64_t page_bytes = 0;
    std::uint64_t offset = 0;  // place of the allocation in its pages
    std::uint64_t bytes = 0;
    std::uint64_t number = 0;  // no two allocations have the same handle
    std::uint32_t machine = 0;
};
static_assert(sizeof(MemoryHandle) <= sizeof(cudaIpcMemHandle_t));

// The driver of another machine does not know the object that a handle names.
std::uint32_t number_of_machine() {
    return static_cast<std::uint32_t>(std::hash<std::string>{}(settings().machine));
}

struct EventHandle {
    std::uint32_t magic = kMagic;
    std::int32_t pid = 0;
    std::int32_t fd = -1;
};

struct Opened {
    std::string handle{};
    int num_opens = 0;
};
struct Imports {
    std::mutex mutex{};
    std::map<void*, Opened> by_address{};
};
Imports& imports() {
    static Imports* const instance = new Imports;
    return *instance;
}

template <class T, class Handle>
bool read(const Handle& handle, T& into) {
    std::memcpy(&into, handle.reserved, sizeof into);
    return into.magic == kMagic;
}

SharedEvent* map_event(int fd) {
    void* const mapped =
        ::mmap(nullptr, sizeof(SharedEvent), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return mapped == MAP_FAILED ? nullptr : static_cast<SharedEvent*>(mapped);
}

}  // namespace

void share_event(Event& event) {
    event.shared_fd = ::memfd_create("pitstop_emulated_event", MFD_CLOEXEC);
    if (event.shared_fd < 0 || ::ftruncate(event.shared_fd, sizeof(SharedEvent)) != 0)
        fail("memfd_create");
    event.shared = map_event(event.shared_fd);
    if (event.shared == nullptr) fail("mmap of an event");
}

}  // namespace pitstop::emulator

using namespace pitstop::emulator;

extern "C" {

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
    PITSTOP_ENTER();
    const std::optional<Allocation> found = find_memory(data);
    // Memory of the virtual-memory API and imported memory have no handles.
    if (!found || found->kind != MemoryKind::kDevice) return told(cudaErrorInvalidValue);
    *handle = {};
    const MemoryHandle made{
        .pid = ::getpid(),
        .fd = found->fd,
        .gpu = machine_gpu(found->gpu),
        .page_bytes = found->page_bytes,
        .offset = static_cast<std::uint64_t>(found->begin - found->pages),
        .bytes = found->bytes,
        .number = reinterpret_cast<std::uint64_t>(found->begin),
        .machine = number_of_machine()};
    std::memcpy(handle->reserved, &made, sizeof made);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned flags) {
    PITSTOP_ENTER();
    MemoryHandle wanted;
    if (flags != cudaIpcMemLazyEnablePeerAccess || !read(handle, wanted))
        return told(cudaErrorInvalidValue);
    if (wanted.machine != number_of_machine()) return told(cudaErrorInvalidValue);
    if (wanted.pid == ::getpid()) return told(cudaErrorDeviceUninitialized);
    const int gpu = own_gpu(wanted.gpu);
    if (gpu < 0) return told(cudaErrorInvalidDevice);
    const std::string bytes(handle.reserved, sizeof handle.reserved);
    const std::scoped_lock lock(imports().mutex);
    for (auto& [address, opened] : imports().by_address) {
        if (opened.handle != bytes) continue;
        ++opened.num_opens;
        *data = address;
        return cudaSuccess;
    }
    pay_for_opening();
    *data =
        import_memory(wanted.pid, wanted.fd, wanted.page_bytes, wanted.offset, wanted.bytes, gpu);
    if (*data == nullptr) return told(cudaErrorInvalidValue);
    imports().by_address[*data] = {bytes, 1};
    return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* data) {
    PITSTOP_ENTER();
    const std::scoped_lock lock(imports().mutex);
    const auto found = imports().by_address.find(data);
    if (found == imports().by_address.end()) return told(cudaErrorInvalidValue);
    if (--found->second.num_opens > 0) return cudaSuccess;
    imports().by_address.erase(found);
    if (!free_memory_at(data, MemoryKind::kImported)) return told(cudaErrorInvalidValue);
    pay_for_closing();
    return told(static_cast<cudaError_t>(pay_for_freeing(current_gpu())));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event_handle) {
    PITSTOP_ENTER();
    const std::shared_ptr<Event> event = find_event(event_handle);
    if (event == nullptr || event->shared == nullptr || event->is_imported)
        return told(cudaErrorInvalidResourceHandle);
    *handle = {};
    const EventHandle made{.pid = ::getpid(), .fd = event->shared_fd};
    std::memcpy(handle->reserved, &made, sizeof made);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event_handle, cudaIpcEventHandle_t handle) {
    PITSTOP_ENTER();
    EventHandle wanted;
    if (!read(handle, wanted)) return told(cudaErrorInvalidValue);
    const std::string path =
        "/proc/" + std::to_string(wanted.pid) + "/fd/" + std::to_string(wanted.fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return told(cudaErrorInvalidResourceHandle);
    auto event = std::make_shared<Event>();
    event->shared = map_event(fd);
    event->shared_fd = fd;
    event->has_time = false;
    event->is_imported = true;
    if (event->shared == nullptr) return told(cudaErrorInvalidResourceHandle);
    *event_handle = add_event(std::move(event));
    return cudaSuccess;
}

}  // extern "C"
