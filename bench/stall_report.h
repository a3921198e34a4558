// Reports what updates and pauses cost those who are being served, against what they may cost.
#pragma once

#include "bench/json_report.h"
#include "bench/percentiles.h"
#include "messages/update_seconds.h"

#include <string>
#include <vector>

namespace pitstop::bench {

// Holds one update as the tree reported it.
struct UpdateWaterfall {
    double call_s = 0;  // as the caller saw it
    messages::UpdateSeconds seconds{};
    double bytes = 0;
};

struct StallReport {
    std::vector<std::string> command{};
    std::string model{};
    std::string device{};
    int tp = 1;
    int num_streams = 0;
    Summary gap_ms{};                             // of the streams without an update
    Summary gap_update_ms{};                      // during one
    std::vector<UpdateWaterfall> updates{};       // while streams decode
    std::vector<UpdateWaterfall> idle_updates{};  // while nothing does
    double copy_rate = 0;                         // this machine's memcpy, bytes per second
    double copy_s = 0;                            // a checkpoint, copied as a stage does
    double digested_copy_s = 0;                   // the same, digested on the way
    Summary pause_idle_ms{};                      // a pause and a continue, nothing running
    Summary pause_streams_ms{};                   // likewise with streams, mode in_place
    Summary pause_gap_ms{};                       // the gaps those tore
    Summary status_ms{};                          // while a long pass runs
    double long_pass_s = 0;                       // how long it had run at the last of them
};

// A figure and the most (or least) it may be.
struct Target {
    std::string name{};
    double value = 0;
    double limit = 0;
    bool is_upper = true;
    std::string unit{};
    [[nodiscard]] bool holds() const { return is_upper ? value <= limit : value >= limit; }
};
[[nodiscard]] std::vector<Target> targets_of(const StallReport& report);

[[nodiscard]] Json stall_json(const StallReport& report);
[[nodiscard]] std::string stall_table(const StallReport& report);

}  // namespace pitstop::bench
