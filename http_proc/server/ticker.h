// A timer for handlers: beats once per kPeriod while any handler waits.
//
// Thread: the server's loop, which calls beat() when fd() is readable.
#pragma once

#include "http_proc/server/task.h"

#include <chrono>
#include <vector>

namespace pitstop::http {

class Ticker {
  public:
    static constexpr std::chrono::milliseconds kPeriod{500};

    Ticker();
    ~Ticker();
    Ticker(const Ticker&) = delete;
    Ticker& operator=(const Ticker&) = delete;

    [[nodiscard]] int fd() const { return fd_; }
    void beat();

    // co_await returns true at the next beat.
    [[nodiscard]] Later<bool> next();

  private:
    void arm(bool is_on);

    int fd_ = -1;  // a timerfd
    std::vector<Later<bool>::Setter> waiters_{};
};

}  // namespace pitstop::http
