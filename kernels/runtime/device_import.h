// Imports memory and events of another process on the opened GPU: by CUDA's legacy IPC handles, or,
// for virtual memory, by file descriptors. Also makes legacy handles of this process's memory. The
// other process is not trusted: an invalid handle is an Error, and the size of the memory comes
// from the driver.
//
// Source: CUDA Runtime API, cudaIpcOpenMemHandle (one process opens an allocation once; the
//         exporter must not free it before it is closed), cudaIpcOpenEventHandle; CUDA Driver API,
//         cuMemGetAddressRange, cuMemImportFromShareableHandle.
#pragma once

#include "base/result.h"
#include "kernels/runtime/device_memory.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace pitstop::kernels {

// The size of a cudaIpcMemHandle_t, and of a cudaIpcEventHandle_t.
inline constexpr std::size_t kIpcHandleBytes = 64;

// A mapping of a whole allocation of the other process, or of chunks of its virtual memory
// back to back.
class DeviceImport {
  public:
    // Returns a file descriptor of a chunk, which DeviceImport closes.
    using ChunkFd = std::function<Result<int>(std::int64_t chunk)>;

    DeviceImport() = default;
    // Errors: kInvalidArgument if `handle` has another size; kUnavailable if CUDA cannot open it
    // (its process has ended, has freed the memory, or is our own); kResourceExhausted.
    [[nodiscard]] static Result<DeviceImport> open(std::string_view handle);
    // Maps `num` chunks of `chunk_bytes`. Chunks stay valid even if the exporter unmaps them.
    // Errors: kInvalidArgument if the chunk size is invalid, or the chunks are larger than the
    // device's memory; kUnavailable if CUDA cannot map a chunk of that size by its descriptor;
    // kResourceExhausted if no address range is free; any error of fd_of.
    [[nodiscard]] static Result<DeviceImport> open_chunks(
        std::int64_t chunk_bytes, std::int64_t num, const ChunkFd& fd_of
    );
    // REQUIRES: no enqueued work reads it.
    ~DeviceImport();
    DeviceImport(DeviceImport&& other) noexcept { swap(other); }
    DeviceImport& operator=(DeviceImport&& other) noexcept {
        swap(other);
        return *this;
    }

    [[nodiscard]] const std::byte* data() const { return data_; }
    // Ranks write to each other's memory through this (exchange.h).
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
    std::int64_t mapped_bytes_ = 0;  // of the chunks so far
};

// Returns the handle with which another process opens the buffer. REQUIRES: the buffer is not
// empty; it lives until no process has it open.
[[nodiscard]] std::string ipc_handle_of(const DeviceBuffer& buffer);

// An event that the other process recorded.
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

    // Returns whether the work before the event is done. Errors: kUnavailable, as open().
    [[nodiscard]] Result<bool> is_done() const;

  private:
    void* handle_ = nullptr;
};

}  // namespace pitstop::kernels
