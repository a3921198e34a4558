#include "tp_worker/sources/cuda_storage.h"

#include "base/cut_guard.h"
#include "tp_worker/sources/torch_handle.h"
#include "tp_worker/sources/torch_storage.h"

#include <chrono>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

// The shared object with the counters begins with torch's header of this many bytes.
constexpr std::int64_t kHeaderBytes = 64;
constexpr std::int64_t kCounterBytes = 8;

// If the sender has ended, its counters are gone too, and no reference must be given back.
void give_back(const std::string& counter, std::int64_t index) {
    if (!torch_sender_of(counter)) return;
    const int fd = ::shm_open(counter.c_str(), O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    struct stat info {};
    const std::int64_t end = kHeaderBytes + (index + 1) * kCounterBytes;
    if (::fstat(fd, &info) == 0 && info.st_size >= end) {
        const auto size = static_cast<std::size_t>(end);
        void* const start = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (start != MAP_FAILED) {
            const CutGuard guard({static_cast<const std::byte*>(start), size});
            auto* const counters =
                reinterpret_cast<std::int64_t*>(static_cast<std::byte*>(start) + kHeaderBytes);
            const std::atomic_ref<std::int64_t> references(counters[index]);
            // The count must not fall below zero: the sender would then never free the memory.
            std::int64_t num = references.load();
            while (num > 0 && !references.compare_exchange_weak(num, num - 1)) continue;
            ::munmap(start, size);
        }
    }
    ::close(fd);
}

Result<> wait_for(const kernels::EventImport& event, const CudaWait& wait) {
    constexpr auto kLook = std::chrono::microseconds(100);
    while (true) {
        ASSIGN_OR_RETURN(const bool is_done, event.is_done());
        if (is_done) return Ok{};
        if (wait.is_dropped.load(std::memory_order_relaxed))
            return make_error(ErrorCode::kAborted, "the stage was dropped");
        if (Clock::now() >= wait.until) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "the sender's GPU did not finish writing the tensor in time"
            );
        }
        std::this_thread::sleep_for(kLook);
    }
}

}  // namespace

CudaStorages::~CudaStorages() {
    // Mappings that are not kept are closed before the sender may free the memory.
    if (mappings_ != nullptr) mappings_->end_message();
    for (const auto& [counter, index] : references_) give_back(counter, index);
}

void CudaStorages::hold(const CudaHandle& handle) {
    if (!handle.memory.empty()) references_.emplace(handle.counter, handle.counter_index);
}

Result<std::span<const std::byte>> CudaStorages::open(
    const CudaHandle& handle, const std::string& device_uuid, const CudaWait& wait
) {
    if (handle.memory.empty()) return std::span<const std::byte>{};
    hold(handle);
    if (!handle.device_uuid.empty() && "GPU-" + handle.device_uuid != device_uuid) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a tensor is on device {}; this worker's is {}",
            handle.device_uuid,
            device_uuid
        );
    }
    const std::optional<pid_t> sender = torch_sender_of(handle.counter);
    if (!sender) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "'{}' is not a name of torch's reference counters (/torch_<pid>_<random>_<n>)",
            handle.counter.substr(0, 128)
        );
    }
    ASSIGN_OR_RETURN(
        const kernels::DeviceImport* const found,
        mappings_->find(handle.memory, {.pid = *sender, .counters = handle.counter})
    );
    const kernels::DeviceImport& allocation = *found;
    if (handle.storage_offset > allocation.bytes() ||
        handle.storage_bytes > allocation.bytes() - handle.storage_offset) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a storage of {} bytes from byte {} on; the sender's allocation has {}",
            handle.storage_bytes,
            handle.storage_offset,
            allocation.bytes()
        );
    }
    if (handle.waits_for_event) {
        ASSIGN_OR_RETURN(
            const kernels::EventImport event, kernels::EventImport::open(handle.event)
        );
        RETURN_IF_ERROR(wait_for(event, wait));
    }
    return std::span(
        allocation.data() + handle.storage_offset, static_cast<std::size_t>(handle.storage_bytes)
    );
}

}  // namespace pitstop::tp_worker
