// GPU memory at a constant address: reserved once, mapped and unmapped while pointers into it stay
// valid (CUDA's virtual memory API). A rank's arenas on a GPU are such ranges.
//
// The physical memory consists of chunks, each with a handle that can be exported as a file
// descriptor. NCCL needs the descriptor for registered memory, and another process needs it for
// mapping the memory. Exportable handles must be requested at allocation.
//
// Owns:   the address range, and its physical memory while mapped. Memory that another process has
//         mapped too returns to the driver only when that mapping ends.
// Thread: one at a time changes its state.
//
// A DeviceRange has no legacy IPC handle. Memory that a peer opens by such a handle is a
// DeviceBuffer.
#pragma once

#include "base/result.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pitstop::kernels {

class DeviceRange {
  public:
    // The driver makes a handle in 8 to 193 us (A100, 2 MiB each) for any size, and fails for some
    // very large sizes. 100 GB need 1600 of these chunks.
    // Source: bench_vmm of magnate3/linux-riscv-dev; gpu-burn, pull request 150.
    static constexpr std::int64_t kChunkBytes = std::int64_t{64} << 20;

    DeviceRange() = default;
    // Rounds `bytes` up to the driver's granularity. kResourceExhausted: no addresses.
    [[nodiscard]] static Result<DeviceRange> reserve(std::int64_t bytes);
    ~DeviceRange();
    DeviceRange(DeviceRange&& other) noexcept { swap(other); }
    DeviceRange& operator=(DeviceRange&& other) noexcept {
        swap(other);
        return *this;
    }

    // Maps memory that reads as zeros. kResourceExhausted: the device has less; the message says
    // how much is free, how much is missing, and which processes use how much. Nothing stays
    // allocated then. REQUIRES: !is_mapped().
    [[nodiscard]] Result<> map();
    // Returns the memory to the driver. Waits until every stream of this process (DeviceStream) has
    // finished its work; a concurrent capture continues.
    // REQUIRES: is_mapped().
    void unmap();

    // Returns a file descriptor of the chunk's memory, owned by the caller:
    // cuMemImportFromShareableHandle in another process accepts it. REQUIRES: is_mapped(), i
    // < num_chunks().
    [[nodiscard]] Result<int> export_chunk(std::size_t i) const;
    [[nodiscard]] std::size_t num_chunks() const { return handles_.size(); }  // 0: not mapped

    [[nodiscard]] bool is_mapped() const { return !handles_.empty(); }
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  private:
    [[nodiscard]] std::int64_t bytes_of_chunk(std::size_t i) const {
        return std::min(kChunkBytes, bytes_ - static_cast<std::int64_t>(i) * kChunkBytes);
    }
    void release_handles();
    void swap(DeviceRange& other) {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(handles_, other.handles_);
    }
    std::byte* data_ = nullptr;
    std::int64_t bytes_ = 0;
    std::vector<std::uint64_t> handles_{};  // of the driver, one per chunk; empty: not mapped
};

}  // namespace pitstop::kernels
