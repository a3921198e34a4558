// Copies between a GPU's memory and any host memory through page-locked pieces: one is filled or
// emptied while others are in transit. From pageable memory the driver would do the same with one
// piece at a time, and block the caller for each.
//
// Owns:    the pieces, and a stream that yields to steps.
// Thread:  one at a time.
// Bounded: kNumPieces of kPieceBytes, from construction on.
// Not ordered with any other stream except by start_after(): the source was written before, and
// nothing reads the destination yet.
#pragma once

#include "base/result.h"
#include "base/task_pool.h"
#include "kernels/device_memory.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace pitstop::tp_worker {

class PinnedPieces {
  public:
    // Takes 80 us at 55 GB/s, a PCIe 5 link's rate. Not measured.
    static constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
    static constexpr std::size_t kNumPieces = 4;

    // Errors: kResourceExhausted without page-locked memory.
    [[nodiscard]] static Result<PinnedPieces> make();

    // Returns a piece of kPieceBytes that no copy uses, to be filled by the caller.
    [[nodiscard]] std::byte* next();
    // Sends the beginning of the piece that next() returned to the GPU.
    void send_next(std::byte* to, std::int64_t bytes);

    // Orders later work here after all work enqueued on `stream`. Any thread may call it.
    void start_after(kernels::Stream stream);
    // For work that must be ordered with the copies.
    [[nodiscard]] kernels::Stream stream() const { return stream_.stream(); }

    // Sends to the GPU; `from_host` may be overwritten at once. `threads` share the copying within
    // host memory: one thread reaches a fraction of the bus's rate. Without any, as during passes,
    // the caller copies alone.
    void send(
        std::byte* to, const std::byte* from_host, std::int64_t bytes, TaskPool* threads = nullptr
    );
    // Returns when everything sent has arrived.
    void wait();
    // Copies from the GPU, and returns when all of it has arrived. `threads` as in send().
    void fetch(
        std::byte* to_host, const std::byte* from, std::int64_t bytes, TaskPool* threads = nullptr
    );

  private:
    struct Piece {
        kernels::PinnedBuffer memory{};
        kernels::DeviceEvent is_done{};  // its last copy
    };
    PinnedPieces() = default;
    Piece& wait_for_piece(std::int64_t number);

    kernels::DeviceStream stream_{};
    kernels::DeviceEvent is_before_{};  // marks the work that start_after() waits for
    std::array<Piece, kNumPieces> pieces_{};
    std::int64_t num_sent_ = 0;
};

}  // namespace pitstop::tp_worker
