#include "tp_worker/device/transfers.h"

#include "base/check.h"

#include <cstring>
#include <limits>

namespace pitstop::tp_worker {

Result<Transfers> Transfers::make(const Device& device, std::int64_t bytes_max, Duration wait_max) {
    Transfers transfers;
    transfers.wait_max_ = wait_max;
    if (!device.is_cuda()) return transfers;
    transfers.stream_ = device.stream();
    for (Turn& turn : transfers.turns_) {
        ASSIGN_OR_RETURN(turn.event, kernels::DeviceEvent::create());
        ASSIGN_OR_RETURN(turn.pinned, kernels::PinnedBuffer::create(bytes_of(bytes_max)));
    }
    ASSIGN_OR_RETURN(transfers.device_, kernels::DeviceBuffer::create(bytes_of(bytes_max)));
    return transfers;
}

void* Transfers::place(const void* from, void* to, std::size_t bytes) {
    if (is_on_cpu()) return to != nullptr ? to : const_cast<void*>(from);
    CHECK(!turn().has_ended);
    const std::int64_t offset = used_;
    used_ += bytes_of(static_cast<std::int64_t>(bytes));
    CHECK(used_ <= device_.bytes());
    std::byte* const there = static_cast<std::byte*>(device_.data()) + offset;
    if (bytes == 0) return there;
    if (from != nullptr) {
        std::memcpy(turn().pinned.data() + offset, from, bytes);
        if (unsent_begin_ == unsent_end_) unsent_begin_ = offset;
        unsent_end_ = offset + static_cast<std::int64_t>(bytes);
    }
    if (to != nullptr) turn().outputs.push_back({to, offset, bytes});
    return there;
}

void Transfers::send() {
    const std::int64_t bytes = unsent_end_ - unsent_begin_;
    if (bytes == 0) return;
    kernels::copy_to_device(
        static_cast<std::byte*>(device_.data()) + unsent_begin_,
        turn().pinned.data() + unsent_begin_,
        bytes,
        stream_
    );
    bytes_sent_ += bytes;
    unsent_begin_ = unsent_end_;
}

void Transfers::keep() { kept_ = used_; }

void Transfers::bring_back(Turn& turn, std::size_t first) const {
    if (first < turn.outputs.size()) {
        const std::int64_t begin = turn.outputs[first].offset;
        const Output& last = turn.outputs.back();
        const std::int64_t end = last.offset + static_cast<std::int64_t>(last.bytes);
        kernels::copy_to_host(
            turn.pinned.data() + begin,
            static_cast<const std::byte*>(device_.data()) + begin,
            end - begin,
            stream_
        );
    }
    turn.event.record(stream_);
}

void Transfers::take_out(Turn& turn, std::size_t first, TimePoint since) const {
    turn.event.wait(wait_max_, "a step", kernels::DeviceEvent::Watch::kClose, since);
    for (std::size_t i = first; i < turn.outputs.size(); ++i) {
        const Output& output = turn.outputs[i];
        std::memcpy(output.to, turn.pinned.data() + output.offset, output.bytes);
    }
    turn.outputs.erase(
        turn.outputs.begin() + static_cast<std::ptrdiff_t>(first), turn.outputs.end()
    );
}

void Transfers::wait() {
    if (is_on_cpu()) return;
    CHECK(unsent_begin_ == unsent_end_);
    // If the other turn has ended and is not finished, waits for it first, with its own time limit,
    // so that two slow turns do not look like one that never ends.
    const Turn& older = turns_[1 - current_];
    if (older.has_ended) {
        older.event.wait(
            wait_max_, "the step before this one", kernels::DeviceEvent::Watch::kClose, older.since
        );
    }
    std::size_t first = 0;
    while (first < turn().outputs.size() && turn().outputs[first].offset < kept_) ++first;
    bring_back(turn(), first);
    take_out(turn(), first, Clock::now());
    used_ = kept_;
}

void Transfers::end_turn() {
    if (is_on_cpu()) return;
    CHECK(unsent_begin_ == unsent_end_ && !turn().has_ended);
    bring_back(turn(), 0);
    turn().has_ended = true;
    turn().since = Clock::now();
    current_ = 1 - current_;
    used_ = kept_ = unsent_begin_ = unsent_end_ = 0;
}

// Returns the turn that ended first. If both have ended, that is the current one.
std::size_t Transfers::first_ended() const {
    const std::size_t first = turns_[current_].has_ended ? current_ : 1 - current_;
    CHECK(turns_[first].has_ended);
    return first;
}

bool Transfers::is_turn_over() const {
    if (is_on_cpu()) return true;
    const Turn& first = turns_[first_ended()];
    return first.event.is_done() || Clock::now() - first.since >= wait_max_;
}

void Transfers::finish_turn() {
    if (is_on_cpu()) return;
    const std::size_t ended = first_ended();
    Turn& first = turns_[ended];
    take_out(first, 0, first.since);
    first.has_ended = false;
    turns_[1 - ended].since = Clock::now();  // the second of two turns has the device from now on
}

std::int64_t Transfers::bytes_left() const {
    return is_on_cpu() ? std::numeric_limits<std::int64_t>::max() : device_.bytes() - used_;
}

}  // namespace pitstop::tp_worker
