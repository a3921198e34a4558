#include "http_proc/server/event_pace.h"

#include "base/check.h"

#include <chrono>
#include <cstdint>
#include <sys/timerfd.h>
#include <unistd.h>
#include <utility>

namespace pitstop::http {

EventPace::EventPace() : fd_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
    CHECK(fd_ >= 0);
}

EventPace::~EventPace() { ::close(fd_); }

void EventPace::hold(std::function<void()> release, Wait wait) {
    held_.push_back(std::move(release));
    if (!beat_at_ || Clock::now() + wait < *beat_at_) arm(wait);
}

void EventPace::arm(Wait wait) {
    beat_at_ = Clock::now() + wait;
    ::itimerspec once{};
    const auto whole = std::chrono::floor<std::chrono::seconds>(wait);
    once.it_value.tv_sec = whole.count();
    once.it_value.tv_nsec = std::chrono::nanoseconds(wait - whole).count();
    if (wait.count() == 0) once.it_value.tv_nsec = 1;  // 0 would disarm the timer
    ::timerfd_settime(fd_, 0, &once, nullptr);
}

void EventPace::beat() {
    std::uint64_t count = 0;
    if (::read(fd_, &count, sizeof count) < 0) return;  // the timer is not due
    beat_at_.reset();
    if (num_due_ == 0) num_due_ = held_.size();
    for (std::size_t i = 0; i < kPerBeat && num_due_ > 0; ++i) {
        const std::function<void()> release = std::move(held_.front());
        held_.pop_front();
        --num_due_;
        release();  // `release` may call hold()
    }
    if (num_due_ > 0) {
        arm(Wait{0});
    } else if (!held_.empty() && !beat_at_) {
        arm(kPeriodMin);  // for events that were held during the release
    }
}

}  // namespace pitstop::http
