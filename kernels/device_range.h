// GPU memory at an address that stays: it is reserved once, mapped and unmapped while pointers into
// it stay valid (CUDA's virtual memory API). A rank's arenas are this on a GPU.
//
// Owns:   the address range, and its physical memory while mapped.
// Thread: one at a time changes its state.
// No legacy IPC handle can be made of it: what a peer is to open is a DeviceBuffer.
#pragma once

#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace pitstop::kernels {

class DeviceRange {
  public:
    DeviceRange() = default;
    // `bytes` is rounded up to the driver's granularity. kResourceExhausted: no addresses.
    [[nodiscard]] static Result<DeviceRange> reserve(std::int64_t bytes);
    ~DeviceRange();
    DeviceRange(DeviceRange&& other) noexcept { swap(other); }
    DeviceRange& operator=(DeviceRange&& other) noexcept {
        swap(other);
        return *this;
    }

    // Reads as zeros. kResourceExhausted: the device has not got that much; says what is
    // free. REQUIRES: !is_mapped().
    [[nodiscard]] Result<> map();
    // Gives the memory back to the driver. Waits until the device has done all it was given.
    // REQUIRES: is_mapped().
    void unmap();

    [[nodiscard]] bool is_mapped() const { return handle_ != 0; }
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  private:
    void swap(DeviceRange& other) {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(handle_, other.handle_);
    }
    std::byte* data_ = nullptr;
    std::int64_t bytes_ = 0;
    std::uint64_t handle_ = 0;  // of the driver's; 0: not mapped
};

}  // namespace pitstop::kernels
