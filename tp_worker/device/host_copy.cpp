#include "tp_worker/device/host_copy.h"

#include "base/check.h"
#include "kernels/runtime/cuda_device.h"

#include <algorithm>

namespace pitstop::tp_worker {
namespace {

// Chunks are small enough that even a small model has several.
std::int64_t chunk_bytes_of(std::int64_t bytes) {
    constexpr std::int64_t kAlignment = kernels::PinnedPages::kPageBytes;
    constexpr std::int64_t kChunksWanted = 8;
    const std::int64_t wanted = (bytes + kChunksWanted - 1) / kChunksWanted;
    const std::int64_t aligned = (wanted + kAlignment - 1) / kAlignment * kAlignment;
    return std::min(aligned, HostCopy::kChunkBytesMax);
}

}  // namespace

std::int64_t HostCopy::host_bytes_of(std::int64_t bytes) {
    const std::int64_t chunk = chunk_bytes_of(bytes);
    return ((bytes + chunk - 1) / chunk + kFreeSlots) * chunk;
}

Result<HostCopy> HostCopy::make(std::int64_t bytes) {
    CHECK(bytes > 0);
    HostCopy made;
    made.bytes_ = bytes;
    made.chunk_bytes_ = chunk_bytes_of(bytes);
    made.num_chunks_ = (bytes + made.chunk_bytes_ - 1) / made.chunk_bytes_;
    // No other work runs during an exchange, so priority does not matter.
    constexpr auto kPriority = kernels::StreamPriority::kStep;
    ASSIGN_OR_RETURN(made.up_, kernels::DeviceStream::create(kPriority));
    ASSIGN_OR_RETURN(made.down_, kernels::DeviceStream::create(kPriority));
    ASSIGN_OR_RETURN(made.is_before_, kernels::DeviceEvent::create());
    for (std::size_t i = 0; i < kEvents; ++i) {
        ASSIGN_OR_RETURN(made.is_up_[i], kernels::DeviceEvent::create());
        ASSIGN_OR_RETURN(made.is_down_[i], kernels::DeviceEvent::create());
    }
    return made;
}

Result<> HostCopy::commit() {
    if (memory_.bytes() > 0) return Ok{};
    // Memory is locked in pieces, so steps continue in between. A chunk must be in one piece.
    ASSIGN_OR_RETURN(memory_, kernels::PinnedPages::create(host_bytes_of(bytes_), chunk_bytes_));
    first_slot_ = 0;
    return Ok{};
}

void HostCopy::exchange(std::byte* gpu, kernels::Stream steps) {
    CHECK(memory_.bytes() > 0);
    kernels::enter_cuda_device();
    is_before_.record(steps);
    is_before_.order_before(up_.stream());
    is_before_.order_before(down_.stream());
    const std::int64_t to_slot = kFreeSlots - first_slot_;
    for (std::int64_t i = 0; i < num_chunks_; ++i) {
        // The chunks next to the free slots are first.
        const std::int64_t chunk = to_slot == 0 ? i : num_chunks_ - 1 - i;
        const std::int64_t begin = chunk * chunk_bytes_;
        const std::int64_t size = std::min(chunk_bytes_, bytes_ - begin);
        std::byte* const from = memory_.data() + (chunk + first_slot_) * chunk_bytes_;
        std::byte* const to = memory_.data() + (chunk + to_slot) * chunk_bytes_;
        const auto event = static_cast<std::size_t>(i) % kEvents;
        if (i >= kFreeSlots) {  // the previous content of `to` has been sent
            const auto vacated = static_cast<std::size_t>(i - kFreeSlots) % kEvents;
            is_up_[vacated].order_before(down_.stream());
        }
        kernels::copy_to_host(to, gpu + begin, size, down_.stream());
        is_down_[event].record(down_.stream());
        is_down_[event].order_before(up_.stream());
        kernels::copy_to_device(gpu + begin, from, size, up_.stream());
        is_up_[event].record(up_.stream());
    }
    // The last upload waits for the last download.
    const auto last = static_cast<std::size_t>(num_chunks_ - 1) % kEvents;
    is_up_[last].wait(
        kernels::kDeviceWaitMax, "an upload of weights", kernels::DeviceEvent::Watch::kLoose
    );
    first_slot_ = to_slot;
}

}  // namespace pitstop::tp_worker
