#include "client/ready_queue.h"

#include "base/check.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace pitstop {

ReadyQueue::ReadyQueue() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { CHECK(fd_ >= 0); }

ReadyQueue::~ReadyQueue() { ::close(fd_); }

void ReadyQueue::push(std::function<void()> callback) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(callback));
    if (waiting_.size() == 1) ::eventfd_write(fd_, 1);
}

std::size_t ReadyQueue::run(std::size_t max) {
    std::size_t num_run = 0;
    for (; num_run < max; ++num_run) {
        std::function<void()> callback;
        {
            const std::lock_guard lock(mutex_);
            if (waiting_.empty()) break;
            callback = std::move(waiting_.front());
            waiting_.pop_front();
            eventfd_t count = 0;
            if (waiting_.empty()) ::eventfd_read(fd_, &count);
        }
        callback();  // unlocked: it may start a request
    }
    return num_run;
}

}  // namespace pitstop
