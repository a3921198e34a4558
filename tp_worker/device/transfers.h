// Small arrays on their way between the host and the ops: a step's inputs, what was sampled.
//
//   const SampleRow* there = transfers.in(rows);
//   Choice* chosen = transfers.out(choices);
//   transfers.send();
//   ops.sample({.rows = there, .choices = chosen, ...});
//   transfers.wait();  // `choices` is filled
//
// On the CPU an op works on the caller's arrays, and send() and wait() have nothing to do. On a GPU
// in() gathers arrays in page-locked memory, and send() takes all of them up in one copy, on the
// stream, before the op that reads them; out() hands out device memory, and wait() brings all of it
// back in one copy and waits for its event.
//
// What is placed after a wait() has the same addresses as what was placed after the last one, as
// long as the sizes before it are the same: a graph of the step may keep them.
//
// Arrays given to out() stay where they are until wait(); those given to in() may go at once on a
// GPU, and when the op has returned on the CPU.
// Thread:  the stream's.
// Bounded: bytes_max of arrays between two wait()s, each rounded up to kAlignment.
#pragma once

#include "base/result.h"
#include "kernels/device_memory.h"
#include "tp_worker/device/device.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace pitstop::tp_worker {

class Transfers {
  public:
    static constexpr std::int64_t kAlignment = 256;  // bytes

    // kResourceExhausted: no page-locked or device memory.
    // A wait() that takes longer than `wait_max` ends the process (P5; DeviceEvent::wait).
    static Result<Transfers> make(
        const Device& device, std::int64_t bytes_max, Duration wait_max = kernels::kDeviceWaitMax
    );

    template <class T>
    [[nodiscard]] const T* in(std::span<const T> array) {
        static_assert(std::is_trivially_copyable_v<T>);
        return static_cast<const T*>(place(array.data(), nullptr, array.size_bytes()));
    }
    template <class T>
    [[nodiscard]] const T* in(const std::vector<T>& array) {
        return in(std::span<const T>(array));
    }
    template <class T>
    [[nodiscard]] T* out(std::span<T> array) {
        static_assert(std::is_trivially_copyable_v<T>);
        return static_cast<T*>(place(nullptr, array.data(), array.size_bytes()));
    }
    // The op reads the array and writes to it.
    template <class T>
    [[nodiscard]] T* in_out(std::span<T> array) {
        static_assert(std::is_trivially_copyable_v<T>);
        return static_cast<T*>(place(array.data(), array.data(), array.size_bytes()));
    }

    // Every array that in() was given since the last send() is on its way.
    void send();

    // Until everything enqueued on the stream is done and every out() array is filled.
    // REQUIRES: every array of in() was sent.
    void wait();

    // What still fits before a wait(); without a bound on the CPU.
    [[nodiscard]] std::int64_t bytes_left() const;
    // What an array takes of it.
    [[nodiscard]] static constexpr std::int64_t bytes_of(std::int64_t array_bytes) {
        return (array_bytes + kAlignment - 1) / kAlignment * kAlignment;
    }

  private:
    Transfers() = default;
    // The op's address for an array of the host's: read from `from`, written back to `to`.
    void* place(const void* from, void* to, std::size_t bytes);

    struct Output {
        void* to;
        std::int64_t offset;
        std::size_t bytes;
    };

    // All empty on the CPU. An array has one offset in both buffers.
    kernels::Stream stream_{};
    kernels::DeviceEvent event_{};
    Duration wait_max_{};
    kernels::PinnedBuffer pinned_{};
    kernels::DeviceBuffer device_{};
    std::int64_t used_ = 0;
    std::int64_t unsent_begin_ = 0;
    std::int64_t unsent_end_ = 0;  // is unsent_begin_: nothing is to be sent
    std::vector<Output> outputs_{};
};

}  // namespace pitstop::tp_worker
