// Writes a benchmark's figures as JSON, for files, and as a table, for people.
#pragma once

#include "bench/json_report.h"
#include "bench/metrics.h"
#include "bench/model_cost.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::bench {

// The start-up times of a tree that was started for the run.
struct StartUp {
    double ready_s = 0;        // from the launcher's start to its ready line
    double first_token_s = 0;  // to the first token of the first request
};

// The use of the processes during the run.
struct ProcessReport {
    std::string name{};
    double cpu_s = 0;
    std::int64_t peak_bytes = 0;  // since it started
};

struct Report {
    std::string mode{};
    std::vector<std::string> command{};
    // the workload's options, in order
    std::vector<std::pair<std::string, std::string>> workload{};
    std::string model{};
    std::string device{};
    std::int64_t replicas = 0;
    std::int64_t tp = 0;
    Metrics metrics{};
    std::int64_t steps = 0;  // finished during the run, all replicas
    std::optional<StartUp> start_up{};
    std::optional<ModelCost> cost{};     // none: the tree computes nothing
    std::optional<StepLimits> limits{};  // measured in the same run
    std::vector<ProcessReport> processes{};
};

// Compares a figure with the machine's limit.
struct Bounded {
    std::string name{};
    double value = 0;
    double limit = 0;
    std::string bound_by{};  // the work that sets the limit
};
[[nodiscard]] std::vector<Bounded> bounded_figures(const Report& report);

[[nodiscard]] Json report_json(const Report& report);
[[nodiscard]] std::string report_table(const Report& report);

}  // namespace pitstop::bench
