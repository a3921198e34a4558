// How often a stream gets an event: at once after a quiet time, else every kPeriod, with all that
// came since. An event costs a system call here, one at the reader, and waking it; a model that
// makes thousands of tokens a second per stream would spend more on that than on the tokens. A
// model whose steps take longer than kPeriod never notices.
//
// Measured with pitstop_http_bench (64 streams, workers that compute nothing): docs/http.md.
//
// Thread: the server's loop, which calls beat() when fd() is readable.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

namespace pitstop {

class EventPace {
  public:
    static constexpr std::chrono::milliseconds kPeriod{2};

    EventPace();
    ~EventPace();
    EventPace(const EventPace&) = delete;
    EventPace& operator=(const EventPace&) = delete;

    // Runs `release` within kPeriod.
    void hold(std::function<void()> release);

    [[nodiscard]] int fd() const { return fd_; }
    void beat();

  private:
    int fd_ = -1;  // a timerfd; armed while something is held
    std::vector<std::function<void()>> held_{};
};

}  // namespace pitstop
