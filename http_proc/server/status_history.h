// The last two minutes of the tree's status, so that a status page shows them whenever it is opened
// or reloaded.
//
// Thread:  the server's loop, which calls beat() several times per second.
// Bounded: kPointsMax points; one question at a time.
#pragma once

#include "base/ids.h"
#include "base/time.h"
#include "http_proc/server/request_metrics.h"
#include "messages/status.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace pitstop {
class Client;
}

namespace pitstop::http {

class StatusHistory {
  public:
    static constexpr std::chrono::seconds kWindow{120};
    static constexpr std::chrono::milliseconds kPeriod{1'000};
    static constexpr std::size_t kPointsMax = kWindow / kPeriod + 1;

    // Counts of ended requests, of all replicas since their start.
    struct Ended {
        std::int64_t all = 0;
        std::int64_t errors = 0;
        std::int64_t aborted = 0;
    };
    struct Point {
        TimePoint at{};
        double tokens_per_s = 0;  // the first four members are of all replicas together
        double step_age_s = 0;    // the age of the oldest step in flight
        bool is_paused = false;   // whether at least one replica is paused
        Ended ended{};
        std::vector<Epoch> epochs{};  // [replicas]: the epoch that serves
        // This front end's request metrics at the time `at`.
        Histogram first_token;
        Histogram between_tokens;
        Histogram queue;
    };

    // Asks the tree for its status once per kPeriod.
    void beat(Client& client, const RequestMetrics& requests, TimePoint now);
    void add(const messages::StatusReply& status, const RequestMetrics& requests, TimePoint now);
    // Returns the points of the last kWindow, oldest first.
    [[nodiscard]] const std::deque<Point>& points() const { return points_; }

    [[nodiscard]] static Ended ended_of(const messages::StatusReply& status);

  private:
    std::deque<Point> points_{};
    TimePoint asked_at_{};
    bool is_asking_ = false;
    // tells the tree's answer, which may come late, whether this object still exists
    std::shared_ptr<bool> is_there_ = std::make_shared<bool>(true);
};

}  // namespace pitstop::http
