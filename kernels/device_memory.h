// Wraps memory, streams and events of the opened GPU (cuda_device.h), for a worker: no CUDA type is
// named.
//
// Copies and fills are enqueued on a stream and order themselves against what is enqueued there;
// only what is called wait_* waits. A failing CUDA call ends the process, naming the call; running
// out of memory is an Error.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "kernels/tensor.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace pitstop::kernels {

// Owns device memory, 256-byte aligned. Legacy IPC handles can be made of it.
class DeviceBuffer {
  public:
    DeviceBuffer() = default;
    // Fails with kResourceExhausted if the device has not got that much; the message says what is
    // free.
    [[nodiscard]] static Result<DeviceBuffer> create(std::int64_t bytes);
    ~DeviceBuffer();
    DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        swap(other);
        return *this;
    }

    [[nodiscard]] void* data() const { return data_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  private:
    void swap(DeviceBuffer& other) {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }
    void* data_ = nullptr;
    std::int64_t bytes_ = 0;
};

// Owns page-locked host memory, which copies to and from without a detour: step inputs and results.
class PinnedBuffer {
  public:
    PinnedBuffer() = default;
    [[nodiscard]] static Result<PinnedBuffer> create(std::int64_t bytes);
    ~PinnedBuffer();
    PinnedBuffer(PinnedBuffer&& other) noexcept { swap(other); }
    PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
        swap(other);
        return *this;
    }

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  private:
    void swap(PinnedBuffer& other) {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }
    std::byte* data_ = nullptr;
    std::int64_t bytes_ = 0;
};

enum class StreamPriority : std::uint8_t { kStep, kBackground };  // staging gives way to steps

class DeviceStream {
  public:
    DeviceStream() = default;
    [[nodiscard]] static Result<DeviceStream> create(StreamPriority priority);
    ~DeviceStream();
    DeviceStream(DeviceStream&& other) noexcept { std::swap(handle_, other.handle_); }
    DeviceStream& operator=(DeviceStream&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }

    [[nodiscard]] Stream stream() const { return {handle_}; }
    void wait() const;  // until everything enqueued here is done; start-up and tests, never a step

  private:
    void* handle_ = nullptr;
};

// Tells whether what is enqueued there becomes part of a graph instead of running: nothing may wait
// for it then.
[[nodiscard]] bool is_capturing(Stream stream);

// Copies and digests may take this long; they end within seconds where anything ends (P5).
inline constexpr Duration kDeviceWaitMax = std::chrono::seconds(300);

// Marks a point in a stream.
class DeviceEvent {
  public:
    DeviceEvent() = default;
    [[nodiscard]] static Result<DeviceEvent> create();
    ~DeviceEvent();
    DeviceEvent(DeviceEvent&& other) noexcept { std::swap(handle_, other.handle_); }
    DeviceEvent& operator=(DeviceEvent&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }

    void record(Stream stream) const;
    // Tells whether everything before the last record() is done. True if there was none.
    [[nodiscard]] bool is_done() const;
    // Waits until everything before the last record() is done. Past `max` from `since` the process
    // ends as after a failing call, and the line says that `what` did not end: nothing on a GPU can
    // be called off.
    // kClose stays on its core for as long as a step takes; kLoose leaves it to others, and comes
    // some 50 us late.
    enum class Watch : std::uint8_t { kClose, kLoose };
    void wait(
        Duration max,
        std::string_view what,
        Watch watch = Watch::kClose,
        TimePoint since = Clock::now()
    ) const;
    // What is enqueued on `stream` from now on starts after the last record().
    void order_before(Stream stream) const;
    // Returns the milliseconds on the device from `begin` to this event. REQUIRES: both are done.
    [[nodiscard]] double ms_since(const DeviceEvent& begin) const;

  private:
    void* handle_ = nullptr;
};

// Host memory may be any; only a PinnedBuffer's copies do not hold up the caller.
void copy_to_device(void* to, const void* from_host, std::int64_t bytes, Stream stream);
void copy_to_host(void* to_host, const void* from, std::int64_t bytes, Stream stream);
void copy_on_device(void* to, const void* from, std::int64_t bytes, Stream stream);
// Copies the rows of a matrix. REQUIRES: the same shape.
void copy_rows_on_device(View2<const float> from, View2<float> to, Stream stream);
// Copies between any two memories; returns when it is done. Orders itself against no stream: what
// is read was written before, and nothing writes to it.
void copy_and_wait(void* to, const void* from, std::int64_t bytes);
void fill_device(void* to, std::uint8_t value, std::int64_t bytes, Stream stream);

}  // namespace pitstop::kernels
