// Reports what updates and pauses cost running requests, with targets.
#pragma once

#include "bench/json_report.h"
#include "bench/percentiles.h"
#include "messages/update_seconds.h"

#include <string>
#include <vector>

namespace pitstop::bench {

// One update as the tree reported it.
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
    Summary gap_ms{};                             // of the streams outside updates
    Summary gap_update_ms{};                      // during an update
    std::vector<UpdateWaterfall> updates{};       // with running streams
    std::vector<UpdateWaterfall> idle_updates{};  // without running streams
    double copy_rate = 0;                         // this machine's memcpy, bytes per second
    double copy_s = 0;                            // copying a checkpoint as a stage does
    double digested_copy_s = 0;                   // copying and digesting a checkpoint
    Summary pause_idle_ms{};                      // a pause and a continue without running streams
    Summary pause_streams_ms{};                   // the same with streams, mode in_place
    Summary pause_gap_ms{};                       // the streams' gaps around the pauses
    Summary status_ms{};                          // while a long pass runs
    double long_pass_s = 0;                       // the pass's age at the last status call
};

// A figure and its limit, upper or lower.
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
