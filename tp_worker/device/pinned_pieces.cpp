#include "tp_worker/device/pinned_pieces.h"

#include "base/check.h"
#include "kernels/runtime/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace pitstop::tp_worker {
namespace {

std::size_t num_pieces_of(std::int64_t bytes) {
    return static_cast<std::size_t>(
        (bytes + PinnedPieces::kPieceBytes - 1) / PinnedPieces::kPieceBytes
    );
}

// The place of a piece in memory of this many bytes.
struct Range {
    std::int64_t begin = 0;
    std::int64_t size = 0;
};
Range range_of(std::size_t number, std::int64_t bytes) {
    const std::int64_t begin = static_cast<std::int64_t>(number) * PinnedPieces::kPieceBytes;
    return {.begin = begin, .size = std::min(PinnedPieces::kPieceBytes, bytes - begin)};
}

// Calls work(i) for i in [0, num), on the threads if there are any.
void for_each(TaskPool* threads, std::size_t num, const std::function<void(std::size_t)>& work) {
    if (threads == nullptr) {
        for (std::size_t i = 0; i < num; ++i) work(i);
        return;
    }
    CHECK(threads->run(num, [&](std::size_t i) -> Result<> { return work(i), Ok{}; }));
}

}  // namespace

Result<std::unique_ptr<PinnedPieces>> PinnedPieces::make(int num_threads, Duration wait_max) {
    std::unique_ptr<PinnedPieces> made(new PinnedPieces);
    made->wait_max_ = wait_max;
    made->num_threads_ = std::clamp(num_threads, 1, kThreadsMax);
    ASSIGN_OR_RETURN(
        made->stream_, kernels::DeviceStream::create(kernels::StreamPriority::kBackground)
    );
    ASSIGN_OR_RETURN(made->is_before_, kernels::DeviceEvent::create());
    ASSIGN_OR_RETURN(made->is_all_, kernels::DeviceEvent::create());
    const MutexLock lock(made->mutex_);
    for (int i = 0; i < made->num_threads_ + kInTransit; ++i) {
        Piece& piece = made->pieces_.emplace_back();
        ASSIGN_OR_RETURN(piece.memory, kernels::PinnedBuffer::create(kPieceBytes));
        ASSIGN_OR_RETURN(piece.is_done, kernels::DeviceEvent::create());
        made->free_.push_back(&piece);
    }
    return made;
}

void PinnedPieces::wait_for(const Piece& piece) {
    piece.is_done.wait(
        kernels::kDeviceWaitMax, "a copy between host and GPU", kernels::DeviceEvent::Watch::kLoose
    );
}

PinnedPieces::Piece* PinnedPieces::take_piece(bool waits) {
    MutexLock lock(mutex_);
    if (free_.empty() && !waits) return nullptr;
    const TimePoint deadline = Clock::now() + wait_max_;
    bool may_come = true;  // false once the deadline has passed
    while (free_.empty()) {
        CHECK(may_come);
        may_come = is_free_.wait_until(lock, deadline);
    }
    Piece* const piece = free_.front();
    free_.pop_front();
    return piece;
}

PinnedPieces::Lease PinnedPieces::take() {
    kernels::enter_cuda_device();
    Piece* const piece = take_piece(/*waits=*/true);
    wait_for(*piece);
    return {*this, *piece};
}

void PinnedPieces::put_back(Piece* piece) {
    {
        const MutexLock lock(mutex_);
        free_.push_back(piece);
    }
    is_free_.notify_one();
}

void PinnedPieces::Lease::send(std::byte* to, std::int64_t bytes) && {
    CHECK(bytes <= kPieceBytes);
    kernels::copy_to_device(to, data(), bytes, owner_->stream());
    piece_->is_done.record(owner_->stream());
    std::exchange(owner_, nullptr)->put_back(piece_);
}

void PinnedPieces::Lease::fetch(const std::byte* from, std::int64_t bytes) {
    CHECK(bytes <= kPieceBytes);
    kernels::copy_to_host(data(), from, bytes, owner_->stream());
    piece_->is_done.record(owner_->stream());
}

void PinnedPieces::start_after(kernels::Stream stream) {
    is_before_.record(stream);
    is_before_.order_before(stream_.stream());
}

void PinnedPieces::send(
    std::byte* to, const std::byte* from_host, std::int64_t bytes, TaskPool* threads
) {
    for_each(threads, num_pieces_of(bytes), [&](std::size_t number) {
        const Range range = range_of(number, bytes);
        Lease piece = take();
        std::memcpy(piece.data(), from_host + range.begin, static_cast<std::size_t>(range.size));
        std::move(piece).send(to + range.begin, range.size);
    });
}

void PinnedPieces::wait() {
    kernels::enter_cuda_device();
    is_all_.record(stream_.stream());
    is_all_.wait(kernels::kDeviceWaitMax, "copies to the GPU", kernels::DeviceEvent::Watch::kLoose);
}

void PinnedPieces::fetch(
    std::byte* to_host, const std::byte* from, std::int64_t bytes, TaskPool* threads
) {
    kernels::enter_cuda_device();
    const auto start = [&](std::size_t number, Lease piece) {
        const Range range = range_of(number, bytes);
        piece.fetch(from + range.begin, range.size);
        return piece;
    };
    const auto take_out = [&](std::size_t number, Lease piece) {
        const Range range = range_of(number, bytes);
        piece.wait();
        std::memcpy(to_host + range.begin, piece.data(), static_cast<std::size_t>(range.size));
    };
    const std::size_t num = num_pieces_of(bytes);
    if (threads != nullptr) {
        for_each(threads, num, [&](std::size_t number) {
            take_out(number, start(number, take()));
        });
        return;
    }
    // One thread empties a piece while the next pieces are in transit. If two such threads waited
    // for more pieces, each could hold the pieces that the other one waits for.
    std::deque<Lease> coming;
    for (std::size_t next = 0, out = 0; out < num; ++out) {
        for (; next < num && coming.size() < kInTransit; ++next) {
            Piece* const piece = take_piece(/*waits=*/coming.empty());
            if (piece == nullptr) break;
            wait_for(*piece);
            coming.push_back(start(next, {*this, *piece}));
        }
        take_out(out, std::move(coming.front()));
        coming.pop_front();
    }
}

}  // namespace pitstop::tp_worker
