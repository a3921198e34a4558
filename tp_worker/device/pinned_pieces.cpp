#include "tp_worker/device/pinned_pieces.h"

#include "base/check.h"
#include "kernels/cuda_device.h"

#include <algorithm>
#include <cstring>

namespace pitstop::tp_worker {
namespace {

// Copies within the host's memory.
void copy_by(TaskPool* threads, std::byte* to, const std::byte* from, std::int64_t bytes) {
    // Twice the cost of starting a thread (task_pool.h).
    constexpr std::int64_t kPartBytes = std::int64_t{512} << 10;
    if (threads == nullptr) {
        std::memcpy(to, from, static_cast<std::size_t>(bytes));
        return;
    }
    const auto num_parts = static_cast<std::size_t>((bytes + kPartBytes - 1) / kPartBytes);
    CHECK(threads->run(num_parts, [&](std::size_t part) -> Result<> {
        const std::int64_t begin = static_cast<std::int64_t>(part) * kPartBytes;
        const std::int64_t size = std::min(kPartBytes, bytes - begin);
        std::memcpy(to + begin, from + begin, static_cast<std::size_t>(size));
        return Ok{};
    }));
}

}  // namespace

Result<PinnedPieces> PinnedPieces::make() {
    PinnedPieces made;
    ASSIGN_OR_RETURN(
        made.stream_, kernels::DeviceStream::create(kernels::StreamPriority::kBackground)
    );
    ASSIGN_OR_RETURN(made.is_before_, kernels::DeviceEvent::create());
    for (Piece& piece : made.pieces_) {
        ASSIGN_OR_RETURN(piece.memory, kernels::PinnedBuffer::create(kPieceBytes));
        ASSIGN_OR_RETURN(piece.is_done, kernels::DeviceEvent::create());
    }
    return made;
}

PinnedPieces::Piece& PinnedPieces::wait_for_piece(std::int64_t number) {
    Piece& piece = pieces_[static_cast<std::size_t>(number) % kNumPieces];
    piece.is_done.wait(
        kernels::kDeviceWaitMax, "a copy between host and GPU", kernels::DeviceEvent::Watch::kLoose
    );
    return piece;
}

std::byte* PinnedPieces::next() {
    kernels::enter_cuda_device();
    return wait_for_piece(num_sent_).memory.data();
}

void PinnedPieces::send_next(std::byte* to, std::int64_t bytes) {
    CHECK(bytes <= kPieceBytes);
    const Piece& piece = pieces_[static_cast<std::size_t>(num_sent_++) % kNumPieces];
    kernels::copy_to_device(to, piece.memory.data(), bytes, stream_.stream());
    piece.is_done.record(stream_.stream());
}

void PinnedPieces::start_after(kernels::Stream stream) {
    is_before_.record(stream);
    is_before_.order_before(stream_.stream());
}

void PinnedPieces::send(
    std::byte* to, const std::byte* from_host, std::int64_t bytes, TaskPool* threads
) {
    for (std::int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
        const std::int64_t size = std::min(kPieceBytes, bytes - begin);
        copy_by(threads, next(), from_host + begin, size);
        send_next(to + begin, size);
    }
}

void PinnedPieces::wait() {
    for (std::size_t i = 0; i < kNumPieces; ++i) wait_for_piece(static_cast<std::int64_t>(i));
}

void PinnedPieces::fetch(
    std::byte* to_host, const std::byte* from, std::int64_t bytes, TaskPool* threads
) {
    kernels::enter_cuda_device();
    wait();  // no piece is on its way to the GPU afterwards
    const std::int64_t num_pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
    const auto size_of = [&](std::int64_t number) {
        return std::min(kPieceBytes, bytes - number * kPieceBytes);
    };
    const auto start = [&](std::int64_t number) {
        const Piece& piece = pieces_[static_cast<std::size_t>(number) % kNumPieces];
        kernels::copy_to_host(
            piece.memory.data(), from + number * kPieceBytes, size_of(number), stream_.stream()
        );
        piece.is_done.record(stream_.stream());
    };
    constexpr auto kAhead = static_cast<std::int64_t>(kNumPieces);
    for (std::int64_t number = 0; number < std::min(kAhead, num_pieces); ++number) start(number);
    for (std::int64_t number = 0; number < num_pieces; ++number) {
        const Piece& piece = wait_for_piece(number);
        copy_by(threads, to_host + number * kPieceBytes, piece.memory.data(), size_of(number));
        if (number + kAhead < num_pieces) start(number + kAhead);
    }
}

}  // namespace pitstop::tp_worker
