// Memory, streams and events of the opened GPU (cuda_device.h), for a worker: names no CUDA type.
//
// Copies and fills are enqueued on a stream, in its order; only functions named wait_* wait. A
// failing CUDA call ends the process, naming the call; running out of memory is an Error.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "base/view.h"
#include "kernels/runtime/stream.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace pitstop::kernels {

// Owns device memory, 256-byte aligned. Legacy IPC handles of it can be made.
class DeviceBuffer {
  public:
    DeviceBuffer() = default;
    // Errors: kResourceExhausted if the device has less; the message says how much is free.
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

// Owns page-locked host memory, which is copied directly: step inputs and results.
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

// Owns host memory that is page-locked in pieces. Page-locking takes some tenths of a second per
// GB. Launches of the process may wait until a piece is locked, not longer.
class PinnedPages {
  public:
    PinnedPages() = default;
    // All zeros. REQUIRES: both are multiples of kPageBytes. A copy to or from a GPU lies
    // within one piece. Errors: kResourceExhausted, with the bytes.
    [[nodiscard]] static Result<PinnedPages> create(std::int64_t bytes, std::int64_t piece_bytes);
    ~PinnedPages();
    PinnedPages(PinnedPages&& other) noexcept { swap(other); }
    PinnedPages& operator=(PinnedPages&& other) noexcept {
        swap(other);
        return *this;
    }

    static constexpr std::int64_t kPageBytes = 4096;

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  private:
    void swap(PinnedPages& other) {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        std::swap(locked_bytes_, other.locked_bytes_);
        std::swap(piece_bytes_, other.piece_bytes_);
    }
    std::byte* data_ = nullptr;
    std::int64_t bytes_ = 0;
    std::int64_t locked_bytes_ = 0;  // from the beginning; all pieces but the last are whole
    std::int64_t piece_bytes_ = 0;
};

enum class StreamPriority : std::uint8_t { kStep, kBackground };  // staging yields to steps

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
    // until all work enqueued here is done; for start-up and tests, never in a step
    void wait() const;

  private:
    void* handle_ = nullptr;
};

// Returns whether work enqueued there becomes part of a graph instead of running: then nothing may
// wait for it.
[[nodiscard]] bool is_capturing(Stream stream);

// The limit of waits for copies and digests, which end within seconds if they end at all (P5).
inline constexpr Duration kDeviceWaitMax = std::chrono::seconds(300);

// A point in a stream.
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
    // Returns whether all work before the last record() is done. True if record() was never called.
    [[nodiscard]] bool is_done() const;
    // Waits until all work before the last record() is done. If the work is not done `max` after
    // `since`, the process ends as after a failing call, with a message that names `what`: work on
    // a GPU cannot be cancelled. kClose occupies its core for the length of a step; kLoose frees
    // the core, and notices the end about 50 us late.
    enum class Watch : std::uint8_t { kClose, kLoose };
    void wait(
        Duration max,
        std::string_view what,
        Watch watch = Watch::kClose,
        TimePoint since = Clock::now()
    ) const;
    // Work enqueued on `stream` from now on starts after the last record().
    void order_before(Stream stream) const;
    // Returns the milliseconds on the device from `begin` to this event. REQUIRES: both are done.
    [[nodiscard]] double ms_since(const DeviceEvent& begin) const;

  private:
    void* handle_ = nullptr;
};

// Any host memory is accepted; only copies of a PinnedBuffer do not block the caller.
void copy_to_device(void* to, const void* from_host, std::int64_t bytes, Stream stream);
void copy_to_host(void* to_host, const void* from, std::int64_t bytes, Stream stream);
void copy_on_device(void* to, const void* from, std::int64_t bytes, Stream stream);
// Copies the rows of a matrix. REQUIRES: the same shape.
void copy_rows_on_device(View2<const float> from, View2<float> to, Stream stream);
// Copies between any two memories, and returns when done. Not ordered with any stream: REQUIRES:
// the source was written before, and no work writes to it.
void copy_and_wait(void* to, const void* from, std::int64_t bytes);
void fill_device(void* to, std::uint8_t value, std::int64_t bytes, Stream stream);

}  // namespace pitstop::kernels
