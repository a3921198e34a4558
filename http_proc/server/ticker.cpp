#include "http_proc/server/ticker.h"

#include "base/check.h"

#include <cstdint>
#include <sys/timerfd.h>
#include <unistd.h>
#include <utility>

namespace pitstop::http {

Ticker::Ticker() : fd_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
    CHECK(fd_ >= 0);
}

Ticker::~Ticker() { ::close(fd_); }

void Ticker::arm(bool is_on) {
    ::itimerspec period{};
    if (is_on) {
        period.it_value.tv_nsec = std::chrono::nanoseconds(kPeriod).count();
        period.it_interval = period.it_value;
    }
    CHECK(::timerfd_settime(fd_, 0, &period, nullptr) == 0);
}

void Ticker::beat() {
    std::uint64_t num_beats = 0;
    [[maybe_unused]] const ssize_t len = ::read(fd_, &num_beats, sizeof num_beats);
    // A resumed waiter may call next() again, and then waits for the next beat.
    for (const auto& waiter : std::exchange(waiters_, {})) waiter.set(true);
    if (waiters_.empty()) arm(/*is_on=*/false);
}

Later<bool> Ticker::next() {
    Later<bool> later;
    if (waiters_.empty()) arm(/*is_on=*/true);
    waiters_.push_back(later.setter());
    return later;
}

}  // namespace pitstop::http
