#include "bench/cpu_time.h"

#include <nlohmann/json.hpp>

#include <ctime>
#include <fstream>
#include <optional>
#include <sys/types.h>

namespace pitstop::bench {
namespace {

std::optional<double> seconds_of(clockid_t clock) {
    ::timespec time{};
    if (::clock_gettime(clock, &time) != 0) return std::nullopt;
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::optional<double> seconds_of_process(pid_t pid) {
    clockid_t clock{};
    if (::clock_getcpuclockid(pid, &clock) != 0) return std::nullopt;
    return seconds_of(clock);
}

}  // namespace

Result<CpuTimes> cpu_times_of(const std::string& run_dir) {
    std::ifstream file(run_dir + "/tree.json");
    const auto tree = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (tree.is_discarded() || !tree.contains("processes"))
        return make_error(ErrorCode::kNotFound, "{}/tree.json names no processes", run_dir);
    CpuTimes times;
    times.own_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID).value_or(0);
    for (const nlohmann::json& process : tree["processes"]) {
        const auto pid = process.value("pid", pid_t{0});
        const auto used_s = seconds_of_process(pid);
        if (!used_s) return make_error(ErrorCode::kNotFound, "process {} is gone", pid);
        (process.value("kind", "") == "http_proc" ? times.http_s : times.others_s) += *used_s;
    }
    return times;
}

TokenCost cost_of(const CpuTimes& begin, const CpuTimes& end, double num_tokens) {
    const double each = 1e6 / num_tokens;
    return {
        .http_us = each * (end.http_s - begin.http_s),
        .others_us = each * (end.others_s - begin.others_s),
        .own_us = each * (end.own_s - begin.own_s)};
}

}  // namespace pitstop::bench
