#include "http_proc/event_pace.h"

#include "base/check.h"

#include <cstdint>
#include <sys/timerfd.h>
#include <unistd.h>
#include <utility>

namespace pitstop {

EventPace::EventPace() : fd_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
    CHECK(fd_ >= 0);
}

EventPace::~EventPace() { ::close(fd_); }

void EventPace::hold(std::function<void()> release) {
    held_.push_back(std::move(release));
    if (held_.size() > 1) return;
    ::itimerspec once{};
    once.it_value.tv_nsec = std::chrono::nanoseconds(kPeriod).count();
    ::timerfd_settime(fd_, 0, &once, nullptr);
}

void EventPace::beat() {
    std::uint64_t count = 0;
    if (::read(fd_, &count, sizeof count) < 0) return;  // it was not due
    const std::vector<std::function<void()>> held = std::exchange(held_, {});
    for (const std::function<void()>& release : held) release();
}

}  // namespace pitstop
