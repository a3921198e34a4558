// Imports memory and events of another process on the opened GPU, by CUDA's legacy IPC handles or,
// memory of the virtual memory API, by file descriptors; and gives legacy handles of this
// process's memory.
// What the other process says is not believed: a handle that opens nothing is an Error, and how
// large the memory is says the driver.
//
// Source: CUDA Runtime API, cudaIpcOpenMemHandle (one process opens an allocation once; the
//         exporter must not free it before it is closed), cudaIpcOpenEventHandle; CUDA Driver API,
//         cuMemGetAddressRange, cuMemImportFromShareableHandle.
#pragma once

#include "base/result.h"
#include "kernels/device_memory.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::kernels {

// A cudaIpcMemHandle_t has so many bytes, and so has a cudaIpcEventHandle_t.
inline constexpr std::size_t kIpcHandleBytes = 64;

// Maps a whole allocation of the other process, or chunks of its virtual memory back to back.
class DeviceImport {
  public:
    // Gives a file descriptor of a chunk, this process's own, which is closed here.
    using ChunkFd = std::function<Result<int>(std::int64_t chunk)>;

    DeviceImport() = default;
    // Errors: kInvalidArgument, `handle` has another size; kUnavailable, CUDA opens nothing by it:
    // its process has ended, has freed it, or is this one; kResourceExhausted.
    [[nodiscard]] static Result<DeviceImport> open(std::string_view handle);
    // Maps `num` chunks of `chunk_bytes`. What the exporter unmaps meanwhile stays what it was.
    // Errors: kInvalidArgument, no size of chunks, or more than the device has; kUnavailable, CUDA
    // maps no memory of that size by a descriptor; kResourceExhausted, no addresses; fd_of's own.
    [[nodiscard]] static Result<DeviceImport> open_chunks(
        std::int64_t chunk_bytes, std::int64_t num, const ChunkFd& fd_of
    );
    // REQUIRES: nothing enqueued reads it any more.
    ~DeviceImport();
    DeviceImport(DeviceImport&& other) noexcept { swap(other); }
    DeviceImport& operator=(DeviceImport&& other) noexcept {
        swap(other);
        return *this;
    }

    [[nodiscard]] const std::byte* data() const { return data_; }
    // Ranks write to one another there (exchange.h).
    [[nodiscard]] std::byte* writable() const { return data_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  private:
    void swap(DeviceImport& other) {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(chunk_bytes_, other.chunk_bytes_);
        std::swap(mapped_bytes_, other.mapped_bytes_);
    }
    [[nodiscard]] Result<> map_next(int fd);
    void close_chunks();
    std::byte* data_ = nullptr;
    std::int64_t bytes_ = 0;
    std::int64_t chunk_bytes_ = 0;   // 0: opened by a legacy handle
    std::int64_t mapped_bytes_ = 0;  // counts the chunks so far
};

// Returns the handle by which another process opens the buffer. REQUIRES: the buffer is not empty;
// it lives until nobody has it open any more.
[[nodiscard]] std::string ipc_handle_of(const DeviceBuffer& buffer);

// Opens an event that the other process recorded.
class EventImport {
  public:
    EventImport() = default;
    // Errors: as DeviceImport::open().
    [[nodiscard]] static Result<EventImport> open(std::string_view handle);
    ~EventImport();
    EventImport(EventImport&& other) noexcept { std::swap(handle_, other.handle_); }
    EventImport& operator=(EventImport&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }

    // Tells whether what came before it is done. Errors: kUnavailable, as open().
    [[nodiscard]] Result<bool> is_done() const;

  private:
    void* handle_ = nullptr;
};

}  // namespace pitstop::kernels
