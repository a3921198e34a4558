#include "tp_worker/groups/nccl_turn.h"

#include "base/log.h"

#include <algorithm>
#include <chrono>

namespace pitstop::tp_worker {
Result<NcclTurn::Held> NcclTurn::take(const std::string& group, const Patience& patience) {
    MutexLock lock(mutex_);
    ++num_waiting_;
    const Result<> waited = wait_until_free(group, patience, lock);
    --num_waiting_;
    RETURN_IF_ERROR(waited);
    is_taken_ = true;
    group_ = group;
    return Held(*this);
}

Result<> NcclTurn::wait_until_free(
    const std::string& group, const Patience& patience, MutexLock& lock
) {
    while (is_taken_) {
        if (patience.is_called_off.load(std::memory_order_relaxed))
            return make_error(ErrorCode::kAborted, "cancelled while group '{}' used NCCL", group_);
        if (Clock::now() >= patience.deadline) {
            return make_error(
                ErrorCode::kDeadlineExceeded,
                "group '{}' waited too long: NCCL was in use for group '{}'",
                printable(group),
                printable(group_)
            );
        }
        is_free_.wait_until(
            lock, std::min<TimePoint>(patience.deadline, Clock::now() + kCallOffLook)
        );
    }
    return Ok{};
}

std::optional<NcclTurn::Held> NcclTurn::try_take(const std::string& group) {
    const MutexLock lock(mutex_);
    if (is_taken_ || num_waiting_ > 0) return std::nullopt;
    is_taken_ = true;
    group_ = group;
    return Held(*this);
}

void NcclTurn::bound(Duration held_max) {
    const MutexLock lock(mutex_);
    held_max_ = held_max;
}

Patience NcclTurn::within_bound(const Patience& patience) const {
    const MutexLock lock(mutex_);
    TimePoint deadline = patience.deadline;
    if (held_max_) deadline = std::min<TimePoint>(deadline, Clock::now() + *held_max_);
    return {deadline, patience.is_called_off};
}

int NcclTurn::num_waiting() const {
    const MutexLock lock(mutex_);
    return num_waiting_;
}

void NcclTurn::give_back() {
    {
        const MutexLock lock(mutex_);
        is_taken_ = false;
    }
    is_free_.notify_all();
}

}  // namespace pitstop::tp_worker
