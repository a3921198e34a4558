#include "client/ready_queue.h"

#include "base/check.h"

#include <cstddef>
#include <iterator>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace pitstop {

ReadyQueue::ReadyQueue() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { CHECK(fd_ >= 0); }

ReadyQueue::~ReadyQueue() { ::close(fd_); }

void ReadyQueue::push(Callback callback) {
    const MutexLock lock(mutex_);
    waiting_.push_back(std::move(callback));
}

void ReadyQueue::wake() {
    const MutexLock lock(mutex_);
    if (waiting_.empty() || is_awake_) return;
    ::eventfd_write(fd_, 1);
    is_awake_ = true;
}

std::size_t ReadyQueue::run(std::size_t max) {
    // Takes all at once: one by one, every callback would cost a system call to reset
    // the descriptor.
    std::deque<Callback> batch;
    {
        const MutexLock lock(mutex_);
        if (waiting_.size() <= max) {
            batch.swap(waiting_);
            eventfd_t count = 0;
            ::eventfd_read(fd_, &count);
            is_awake_ = false;
        } else {
            const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(max);
            std::move(waiting_.begin(), end, std::back_inserter(batch));
            waiting_.erase(waiting_.begin(), end);
        }
    }
    std::size_t num = 0;
    for (const Callback& callback : batch) {
        if (is_closed_) break;
        (*callback)();  // unlocked: the callback may start a request, or close this queue
        ++num;
    }
    return num;
}

void ReadyQueue::close() {
    is_closed_ = true;
    std::deque<Callback> never_run;  // destroyed unlocked
    const MutexLock lock(mutex_);
    never_run.swap(waiting_);
}

}  // namespace pitstop
