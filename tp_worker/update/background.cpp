#include "tp_worker/update/background.h"

#include "base/check.h"

#include <cstdint>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>

namespace pitstop::tp_worker {
Background::Background() : event_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    CHECK(event_fd_ >= 0);
    thread_ = std::thread([this] { run(); });
}

Background::~Background() {
    stop();
    ::close(event_fd_);
}

void Background::stop() {
    {
        const MutexLock lock(mutex_);
        is_over_ = true;
        jobs_.clear();
    }
    is_changed_.notify_one();
    if (thread_.joinable()) thread_.join();
}

void Background::give(Job job) {
    {
        const MutexLock lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    is_changed_.notify_one();
}

bool Background::offer(Job job) {
    {
        const MutexLock lock(mutex_);
        if (jobs_.size() >= kOffersMax) return false;
        jobs_.push_back(std::move(job));
    }
    is_changed_.notify_one();
    return true;
}

std::vector<messages::Frames> Background::take_answers() {
    std::uint64_t num = 0;
    [[maybe_unused]] const ssize_t size = ::read(event_fd_, &num, sizeof num);
    const MutexLock lock(mutex_);
    return std::exchange(answers_, {});
}

void Background::answer(messages::Frames frames) {
    {
        const MutexLock lock(mutex_);
        answers_.push_back(std::move(frames));
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t size = ::write(event_fd_, &one, sizeof one);
}

void Background::run() {
    MutexLock lock(mutex_);
    for (;;) {
        while (!is_over_ && jobs_.empty()) is_changed_.wait(lock);
        if (is_over_) return;
        Job job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        std::vector<messages::Frames> answers = job();
        job = nullptr;  // may free a large payload, so not under the lock
        lock.lock();
        for (messages::Frames& frames : answers) answers_.push_back(std::move(frames));
        if (answers.empty()) continue;
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t size = ::write(event_fd_, &one, sizeof one);
    }
}

}  // namespace pitstop::tp_worker
