// Copies between a GPU's memory and any host memory by page-locked pieces: one of them is filled or
// emptied while others are on their way. Straight from pageable memory the driver would do the
// same with one piece at a time, and hold up the caller for each.
//
// Owns:    the pieces, and a stream that gives way to steps.
// Thread:  one at a time.
// Bounded: kNumPieces of kPieceBytes, from construction on.
// It orders itself against no other stream but by start_after(): what is read was written before,
// and what is written is read by nobody yet.
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
    // Takes 80 us at 55 GB/s, a PCIe 5 link's rate. That is not measured.
    static constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
    static constexpr std::size_t kNumPieces = 4;

    // Errors: kResourceExhausted, without page-locked memory.
    [[nodiscard]] static Result<PinnedPieces> make();

    // Returns a piece of kPieceBytes that no copy uses any more, to be filled by the caller.
    [[nodiscard]] std::byte* next();
    // Sends the beginning of the piece that next() gave to the GPU.
    void send_next(std::byte* to, std::int64_t bytes);

    // Has what is enqueued here from now on start after what `stream` has been given. Any thread
    // may call it.
    void start_after(kernels::Stream stream);
    // This is for what is to be in order with the copies.
    [[nodiscard]] kernels::Stream stream() const { return stream_.stream(); }

    // Sends to the GPU; `from_host` may be overwritten at once. `threads` share the copying within
    // host memory, of which one alone has a fraction of what the bus carries; without any, as
    // beside passes, the caller does it alone.
    void send(
        std::byte* to, const std::byte* from_host, std::int64_t bytes, TaskPool* threads = nullptr
    );
    // Returns when all that was sent is there.
    void wait();
    // Brings it from the GPU, and returns when all of it is here. `threads` are those of send().
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
    kernels::DeviceEvent is_before_{};  // marks what start_after() waits for
    std::array<Piece, kNumPieces> pieces_{};
    std::int64_t num_sent_ = 0;
};

}  // namespace pitstop::tp_worker
