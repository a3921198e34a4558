#include "tp_worker/device/transfers.h"

#include "base/check.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace pitstop::tp_worker {

Result<Transfers> Transfers::make(const Device& device, std::int64_t bytes_max, Duration wait_max) {
    Transfers transfers;
    transfers.wait_max_ = wait_max;
    if (!device.is_cuda()) return transfers;
    transfers.stream_ = device.stream();
    ASSIGN_OR_RETURN(transfers.event_, kernels::DeviceEvent::create());
    ASSIGN_OR_RETURN(transfers.pinned_, kernels::PinnedBuffer::create(bytes_of(bytes_max)));
    ASSIGN_OR_RETURN(transfers.device_, kernels::DeviceBuffer::create(bytes_of(bytes_max)));
    return transfers;
}

void* Transfers::place(const void* from, void* to, std::size_t bytes) {
    if (stream_.handle == nullptr) return to != nullptr ? to : const_cast<void*>(from);
    const std::int64_t offset = used_;
    used_ += bytes_of(static_cast<std::int64_t>(bytes));
    CHECK(used_ <= pinned_.bytes());
    std::byte* const there = static_cast<std::byte*>(device_.data()) + offset;
    if (bytes == 0) return there;
    if (from != nullptr) {
        std::memcpy(pinned_.data() + offset, from, bytes);
        if (unsent_begin_ == unsent_end_) unsent_begin_ = offset;
        unsent_end_ = offset + static_cast<std::int64_t>(bytes);
    }
    if (to != nullptr) outputs_.push_back({to, offset, bytes});
    return there;
}

void Transfers::send() {
    const std::int64_t bytes = unsent_end_ - unsent_begin_;
    if (bytes == 0) return;
    kernels::copy_to_device(
        static_cast<std::byte*>(device_.data()) + unsent_begin_,
        pinned_.data() + unsent_begin_,
        bytes,
        stream_
    );
    unsent_begin_ = unsent_end_;
}

void Transfers::wait() {
    if (stream_.handle == nullptr) return;
    CHECK(unsent_begin_ == unsent_end_);
    if (!outputs_.empty()) {
        const std::int64_t begin = outputs_.front().offset;
        const Output& last = outputs_.back();
        const std::int64_t end = last.offset + static_cast<std::int64_t>(last.bytes);
        kernels::copy_to_host(
            pinned_.data() + begin,
            static_cast<const std::byte*>(device_.data()) + begin,
            end - begin,
            stream_
        );
    }
    event_.record(stream_);
    event_.wait(wait_max_, "a step");
    for (const Output& output : outputs_) {
        std::memcpy(output.to, pinned_.data() + output.offset, output.bytes);
    }
    outputs_.clear();
    used_ = 0;
}

std::int64_t Transfers::bytes_left() const {
    return stream_.handle == nullptr ? std::numeric_limits<std::int64_t>::max()
                                     : pinned_.bytes() - used_;
}

}  // namespace pitstop::tp_worker
