// Moves small arrays between the host and the ops: a step's inputs, and what was sampled.
//
//   const SampleRow* there = transfers.in(rows);
//   Choice* chosen = transfers.out(choices);
//   transfers.send();
//   ops.sample({.rows = there, .choices = chosen, ...});
//   transfers.wait();  // `choices` is filled
//
// On the CPU an op works on the caller's arrays, and send() and wait() do nothing. On a GPU, in()
// gathers arrays in page-locked memory, and send() uploads all of them in one copy, on the stream,
// before the op that reads them; out() returns device memory, and wait() downloads all of it in one
// copy and waits for its event.
//
// Two steps may be in progress: end_turn() leaves a step's arrays to the stream, and the next
// step's arrays are placed and sent while its ops run; finish_turn() waits for the older step. Each
// turn has page-locked memory of its own; they share the device's, whose copies the stream orders.
//
//   ...  transfers.end_turn();     // of step k
//   ...  transfers.end_turn();     // of step k + 1
//   transfers.finish_turn();       // k's arrays are filled
//
// The first arrays of a turn have the same addresses as those of the last turn, up to the first one
// whose size differs. So a graph of the step may keep these addresses.
//
// Arrays passed to out() must stay in place until they are filled. Arrays passed to in() may be
// freed at once on a GPU, and after the op has returned on the CPU.
// Thread:  the stream's.
// Bounded: bytes_max of arrays between two wait()s or in a turn, each rounded up to kAlignment.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "kernels/runtime/device_memory.h"
#include "tp_worker/device/device.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace pitstop::tp_worker {

class Transfers {
  public:
    static constexpr std::int64_t kAlignment = 256;  // bytes

    // A call that waits for a turn for longer than `wait_max` ends the process (P5;
    // DeviceEvent::wait). A turn's time begins at its end_turn(), or when the turn before it is
    // over if that is later. The same limit applies to wait(). Errors: kResourceExhausted without
    // page-locked or device memory.
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
    // For an array that the op also writes to: on a GPU the caller's array is unchanged.
    template <class T>
    [[nodiscard]] T* in_writable(std::span<T> array) {
        static_assert(std::is_trivially_copyable_v<T>);
        return static_cast<T*>(place(array.data(), nullptr, array.size_bytes()));
    }
    template <class T>
    [[nodiscard]] T* out(std::span<T> array) {
        static_assert(std::is_trivially_copyable_v<T>);
        return static_cast<T*>(place(nullptr, array.data(), array.size_bytes()));
    }

    // Starts the upload of every array passed to in() since the last send().
    void send();

    // Keeps the addresses of this turn's arrays so far: no wait() fills those arrays, only the
    // turn's end does.
    void keep();

    // Returns when everything enqueued on the stream is done and every out() array since keep() is
    // filled; later arrays reuse their places. An older turn that is not finished is waited for
    // first, with a time limit of its own. REQUIRES: every array of in() was sent.
    void wait();

    // Arrays placed from now on belong to the next turn. REQUIRES: every array of in() was sent;
    // before the next array is placed, at most one turn has ended and is not finished.
    void end_turn();
    // Returns whether finish_turn() would return at once: the turn that ended first is done, or its
    // time is over. REQUIRES: one turn is not finished; on the CPU there is nothing to do.
    [[nodiscard]] bool is_turn_over() const;
    // Waits for the turn that ended first: for all work enqueued before its end. Its out() arrays
    // are then filled.
    void finish_turn();

    // Returns the bytes that send() has sent so far, including the rounding between arrays; 0 on
    // the CPU.
    [[nodiscard]] std::int64_t bytes_sent() const { return bytes_sent_; }

    // Returns the bytes that still fit before a wait(); unbounded on the CPU.
    [[nodiscard]] std::int64_t bytes_left() const;
    // Returns the bytes that bytes_left() counts for an array.
    [[nodiscard]] static constexpr std::int64_t bytes_of(std::int64_t array_bytes) {
        return (array_bytes + kAlignment - 1) / kAlignment * kAlignment;
    }

  private:
    Transfers() = default;
    // Returns the op's address for an array of the host, which is read from `from` and written back
    // to `to`.
    void* place(const void* from, void* to, std::size_t bytes);

    struct Output {
        void* to;
        std::int64_t offset;
        std::size_t bytes;
    };

    struct Turn {
        kernels::PinnedBuffer pinned{};
        kernels::DeviceEvent event{};
        std::vector<Output> outputs{};  // by offset
        bool has_ended = false;         // true until finish_turn()
        TimePoint since{};              // when the device began to work on the ended turn
    };
    [[nodiscard]] bool is_on_cpu() const { return stream_.handle == nullptr; }
    [[nodiscard]] Turn& turn() { return turns_[current_]; }
    [[nodiscard]] std::size_t first_ended() const;
    // Starts the download of the turn's outputs from `first` on to its page-locked memory, and
    // marks that point.
    void bring_back(Turn& turn, std::size_t first) const;
    // Copies the downloaded outputs once the mark is reached; the time limit counts from `since`.
    void take_out(Turn& turn, std::size_t first, TimePoint since) const;

    // Empty on the CPU. An array has the same offset in both buffers.
    kernels::Stream stream_{};
    Duration wait_max_{};
    kernels::DeviceBuffer device_{};
    std::array<Turn, 2> turns_{};
    std::size_t current_ = 0;
    std::int64_t bytes_sent_ = 0;
    // The current turn's positions in the buffers:
    std::int64_t used_ = 0;
    std::int64_t kept_ = 0;
    std::int64_t unsent_begin_ = 0;
    std::int64_t unsent_end_ = 0;  // equal to unsent_begin_: nothing to send
};

}  // namespace pitstop::tp_worker
