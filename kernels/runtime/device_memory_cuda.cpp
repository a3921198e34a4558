#include "kernels/runtime/check.cuh"
#include "kernels/runtime/cuda_device.h"
#include "kernels/runtime/device_memory.h"
#include "kernels/runtime/launch.cuh"
#include "kernels/runtime/stream_list.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <thread>

namespace pitstop::kernels {
namespace {

cudaStream_t as_stream(void* handle) { return static_cast<cudaStream_t>(handle); }
cudaEvent_t as_event(void* handle) { return static_cast<cudaEvent_t>(handle); }

// A wait polls, because cudaEventSynchronize has no deadline. For as long as most steps take, it
// keeps its core, like CUDA's own wait; after that it sleeps.
constexpr auto kAttentive = std::chrono::milliseconds(100);
constexpr auto kNap = std::chrono::milliseconds(1);
constexpr auto kShortNap = std::chrono::microseconds(50);  // half the time of a 4 MiB piece

// Checks a call after its expected errors were handled: any other error ends the process with the
// call's name.
void check(cudaError_t error, const char* call) {
    if (error != cudaSuccess) cuda_failed(call, error, __FILE__, __LINE__);
}

}  // namespace

Result<DeviceBuffer> DeviceBuffer::create(std::int64_t bytes) {
    CHECK(bytes >= 0);
    enter_cuda_device();
    DeviceBuffer buffer;
    if (bytes == 0) return buffer;
    const cudaError_t error = cudaMalloc(&buffer.data_, static_cast<std::size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();  // not sticky: nothing is broken
        return make_error(
            ErrorCode::kResourceExhausted,
            "{} bytes of device memory are needed, {} are free",
            bytes,
            device_memory_info().free_bytes
        );
    }
    check(error, "cudaMalloc");
    buffer.bytes_ = bytes;
    return buffer;
}

DeviceBuffer::~DeviceBuffer() {
    if (data_ != nullptr) CUDA_CHECK(cudaFree(data_));
}

Result<PinnedBuffer> PinnedBuffer::create(std::int64_t bytes) {
    CHECK(bytes >= 0);
    enter_cuda_device();
    PinnedBuffer buffer;
    if (bytes == 0) return buffer;
    void* data = nullptr;
    const cudaError_t error = cudaMallocHost(&data, static_cast<std::size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return make_error(
            ErrorCode::kResourceExhausted, "CUDA refused {} bytes of page-locked host memory", bytes
        );
    }
    check(error, "cudaMallocHost");
    buffer.data_ = static_cast<std::byte*>(data);
    buffer.bytes_ = bytes;
    return buffer;
}

PinnedBuffer::~PinnedBuffer() {
    if (data_ != nullptr) CUDA_CHECK(cudaFreeHost(data_));
}

Result<PinnedPages> PinnedPages::create(std::int64_t bytes, std::int64_t piece_bytes) {
    CHECK(bytes >= 0 && piece_bytes > 0);
    CHECK(bytes % kPageBytes == 0 && piece_bytes % kPageBytes == 0);
    enter_cuda_device();
    PinnedPages made;
    if (bytes == 0) return made;
    const auto size = static_cast<std::size_t>(bytes);
    const auto refused = [&] {
        return make_error(
            ErrorCode::kResourceExhausted, "CUDA refused {} bytes of page-locked host memory", bytes
        );
    };
    void* const data =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return refused();
    made.data_ = static_cast<std::byte*>(data);
    made.bytes_ = bytes;
    made.piece_bytes_ = piece_bytes;
    (void)::madvise(data, size, MADV_HUGEPAGE);  // fewer pages to lock, if the kernel has huge ones
    while (made.locked_bytes_ < bytes) {
        std::byte* const piece = made.data_ + made.locked_bytes_;
        const std::int64_t locked = std::min(piece_bytes, bytes - made.locked_bytes_);
        // Writing allocates the pages before the driver locks them.
        std::memset(piece, 0, static_cast<std::size_t>(locked));
        const cudaError_t error =
            cudaHostRegister(piece, static_cast<std::size_t>(locked), cudaHostRegisterDefault);
        if (error == cudaErrorMemoryAllocation) {
            (void)cudaGetLastError();
            return refused();
        }
        check(error, "cudaHostRegister");
        made.locked_bytes_ += locked;
    }
    return made;
}

PinnedPages::~PinnedPages() {
    for (std::int64_t begin = 0; begin < locked_bytes_; begin += piece_bytes_)
        CUDA_CHECK(cudaHostUnregister(data_ + begin));
    if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(bytes_));
}

Result<DeviceStream> DeviceStream::create(StreamPriority priority) {
    enter_cuda_device();
    int lowest = 0;
    int highest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    cudaStream_t handle = nullptr;
    CUDA_CHECK(cudaStreamCreateWithPriority(
        &handle, cudaStreamNonBlocking, priority == StreamPriority::kStep ? highest : lowest
    ));
    DeviceStream stream;
    stream.handle_ = handle;
    list_stream(handle);
    return stream;
}

DeviceStream::~DeviceStream() {
    if (handle_ == nullptr) return;
    unlist_stream(handle_);
    CUDA_CHECK(cudaStreamDestroy(as_stream(handle_)));
}

void DeviceStream::wait() const { CUDA_CHECK(cudaStreamSynchronize(as_stream(handle_))); }

bool is_capturing(Stream stream) {
    cudaStreamCaptureStatus status{};
    CUDA_CHECK(cudaStreamIsCapturing(cuda_stream(stream), &status));
    return status != cudaStreamCaptureStatusNone;
}

Result<DeviceEvent> DeviceEvent::create() {
    enter_cuda_device();
    cudaEvent_t handle = nullptr;
    CUDA_CHECK(cudaEventCreateWithFlags(&handle, cudaEventDefault));
    DeviceEvent event;
    event.handle_ = handle;
    return event;
}

DeviceEvent::~DeviceEvent() {
    if (handle_ != nullptr) CUDA_CHECK(cudaEventDestroy(as_event(handle_)));
}

void DeviceEvent::record(Stream stream) const {
    CUDA_CHECK(cudaEventRecord(as_event(handle_), cuda_stream(stream)));
}

bool DeviceEvent::is_done() const {
    const cudaError_t error = cudaEventQuery(as_event(handle_));
    if (error == cudaErrorNotReady) return false;
    check(error, "cudaEventQuery");  // reports the error of a kernel before the event
    return true;
}

void DeviceEvent::wait(Duration max, std::string_view what, Watch watch, TimePoint since) const {
    const TimePoint begin = Clock::now();
    while (!is_done()) {
        const TimePoint now = Clock::now();
        const Duration waited = now - begin;
        // Asks again: this process may have been stopped since the last query.
        if (now - since >= max && !is_done()) {
            end_by_cuda_failure(fmt::format(
                "{} did not end on the GPU within {:.1f} s",
                what,
                std::chrono::duration<double>(max).count()
            ));
        }
        if (watch == Watch::kLoose) {
            std::this_thread::sleep_for(waited < kAttentive ? kShortNap : Duration(kNap));
        } else if (waited < kAttentive) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(kNap);
        }
    }
}

void DeviceEvent::order_before(Stream stream) const {
    CUDA_CHECK(cudaStreamWaitEvent(cuda_stream(stream), as_event(handle_), 0));
}

double DeviceEvent::ms_since(const DeviceEvent& begin) const {
    float ms = 0.f;
    CUDA_CHECK(cudaEventElapsedTime(&ms, as_event(begin.handle_), as_event(handle_)));
    return double{ms};
}

void copy_to_device(void* to, const void* from_host, std::int64_t bytes, Stream stream) {
    CUDA_CHECK(cudaMemcpyAsync(
        to, from_host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, cuda_stream(stream)
    ));
}

void copy_to_host(void* to_host, const void* from, std::int64_t bytes, Stream stream) {
    CUDA_CHECK(cudaMemcpyAsync(
        to_host, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, cuda_stream(stream)
    ));
}

void copy_on_device(void* to, const void* from, std::int64_t bytes, Stream stream) {
    CUDA_CHECK(cudaMemcpyAsync(
        to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, cuda_stream(stream)
    ));
}

void copy_rows_on_device(View2<const float> from, View2<float> to, Stream stream) {
    CHECK(from.rows == to.rows && from.cols == to.cols);
    const auto bytes = [](std::int64_t num_floats) {
        return static_cast<std::size_t>(num_floats) * sizeof(float);
    };
    CUDA_CHECK(cudaMemcpy2DAsync(
        to.data,
        bytes(to.stride),
        from.data,
        bytes(from.stride),
        bytes(from.cols),
        static_cast<std::size_t>(from.rows),
        cudaMemcpyDeviceToDevice,
        cuda_stream(stream)
    ));
}

void copy_and_wait(void* to, const void* from, std::int64_t bytes) {
    enter_cuda_device();
    CUDA_CHECK(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault));
    // From pageable memory, cudaMemcpy returns when the bytes are staged, before they have arrived
    // (CUDA Runtime API, "API synchronization behavior"); our streams do not wait for the default
    // stream.
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void fill_device(void* to, std::uint8_t value, std::int64_t bytes, Stream stream) {
    CUDA_CHECK(cudaMemsetAsync(to, value, static_cast<std::size_t>(bytes), cuda_stream(stream)));
}

}  // namespace pitstop::kernels
