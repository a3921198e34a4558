// Copies between a GPU's memory and any host memory through page-locked pieces. As many threads as
// the bus needs fill or empty some pieces, while other pieces are in transit. One thread copies
// within host memory at a fraction of the bus's rate. From pageable memory the driver would do the
// same with one piece at a time, and block the caller for each.
//
// Owns:    the pieces, and a stream that yields to steps.
// Thread:  any for take(); any for send(), wait() and fetch() without `threads`, one at a time with
//          `threads`; one per Lease. A fetch() waits for a piece only while it has none.
// Bounded: for num_threads() leases and kInTransit pieces on their way, from construction on:
//          page-locking takes 0.5 s per GiB (an H200's machine), too long for an update.
// Only start_after() orders copies after another stream's work. Callers ensure that the source was
// written before, and that nothing reads the destination yet.
#pragma once

#include "base/mutex.h"
#include "base/result.h"
#include "base/task_pool.h"
#include "base/time.h"
#include "kernels/runtime/device_memory.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

namespace pitstop::tp_worker {

class PinnedPieces {
    struct Piece {
        kernels::PinnedBuffer memory{};
        kernels::DeviceEvent is_done{};  // marks the end of the piece's last copy
    };

  public:
    // Takes 80 us at 51 GB/s, the rate of an H200's link.
    static constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
    // More pieces than leases: the bus has work while the thread that waits for a copy sleeps.
    static constexpr int kInTransit = 4;
    // Each thread fills 4 GB/s or more from a file: together more than the bus carries.
    static constexpr int kThreadsMax = 16;

    // `num_threads` is within [1, kThreadsMax]. `wait_max` limits the waits of take(). Errors:
    // kResourceExhausted without page-locked memory.
    [[nodiscard]] static Result<std::unique_ptr<PinnedPieces>> make(
        int num_threads, Duration wait_max = kernels::kDeviceWaitMax
    );
    PinnedPieces(const PinnedPieces&) = delete;  // leases point to it
    PinnedPieces& operator=(const PinnedPieces&) = delete;

    // Returns how many threads may have a lease each without waiting for each other.
    [[nodiscard]] int num_threads() const { return num_threads_; }

    // A piece of kPieceBytes that no copy uses. The piece is returned once sent, or with the lease.
    class Lease {
      public:
        Lease(Lease&& other) noexcept
            : owner_(std::exchange(other.owner_, nullptr)), piece_(other.piece_) {}
        Lease& operator=(Lease&&) = delete;
        ~Lease() {
            if (owner_ != nullptr) owner_->put_back(piece_);
        }
        [[nodiscard]] std::byte* data() const { return piece_->memory.data(); }
        // Sends the first `bytes` bytes of the piece to the GPU.
        void send(std::byte* to, std::int64_t bytes) &&;
        // Starts a copy from the GPU to the piece's start; wait() returns once it is done.
        void fetch(const std::byte* from, std::int64_t bytes);
        void wait() { owner_->wait_for(*piece_); }

      private:
        friend class PinnedPieces;
        Lease(PinnedPieces& owner, Piece& piece) : owner_(&owner), piece_(&piece) {}
        PinnedPieces* owner_;
        Piece* piece_;
    };
    // Waits for the copy of the piece that was sent first. If all num_threads() + kInTransit pieces
    // have leases, it waits for a lease to end. REQUIRES: a lease ends within the `wait_max` of
    // make().
    [[nodiscard]] Lease take();

    // Orders later work here after all work enqueued on `stream`. Any thread may call it.
    void start_after(kernels::Stream stream);
    // A stream for work that must be ordered with the copies.
    [[nodiscard]] kernels::Stream stream() const { return stream_.stream(); }

    // Sends to the GPU; `from_host` may be overwritten once this returns. `threads` share the
    // pieces; without any, as during passes, the caller copies alone.
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
    PinnedPieces() = default;
    // Returns a piece that was free; null if none was and `waits` is false.
    Piece* take_piece(bool waits);
    void put_back(Piece* piece);
    static void wait_for(const Piece& piece);

    int num_threads_ = 1;
    Duration wait_max_{};
    kernels::DeviceStream stream_{};
    kernels::DeviceEvent is_before_{};  // marks the work that start_after() waits for
    kernels::DeviceEvent is_all_{};     // marks the work that wait() waits for
    std::deque<Piece> pieces_{};
    Mutex mutex_{};
    Condition is_free_{};
    std::deque<Piece*> free_ GUARDED_BY(mutex_){};  // in the order in which they were sent
};

}  // namespace pitstop::tp_worker
