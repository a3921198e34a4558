// Prints the machine's limits on 1 to N threads, as a table or as JSON.
#include "base/flags.h"
#include "bench/machine_limits.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <thread>

using namespace pitstop;

int main(int argc, char** argv) {
    FlagSet flags("pitstop_roofline", "What this machine can read, copy and compute at most.");
    int threads_max = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    int array_mb = 512;
    std::string cpu;
    bool as_json = false;
    flags.add("threads", &threads_max, "maximum number of threads to measure with");
    flags.add("array-mb", &array_mb, "MiB of the array that is read; far more than the last cache");
    flags.add("cpu", &cpu, "scalar, avx2, avx512, avx512bf16; empty: PITSTOP_CPU, or the best");
    flags.add("json", &as_json, "print JSON instead of a table");
    if (const auto code = flags.read(argc, argv)) return *code;
    if (threads_max < 1 || array_mb < 1) {
        return flags.fail(
            make_error(ErrorCode::kInvalidArgument, "--threads and --array-mb take a number from 1")
        );
    }
    const Result<IsaLevel> level = choose_isa(cpu);
    if (!level) return flags.fail(level.error());

    nlohmann::json rows = nlohmann::json::array();
    if (!as_json) {
        fmt::print(
            "{:>7} {:>10} {:>10} {:>14} {:>14}   ({})\n",
            "threads",
            "read GB/s",
            "copy GB/s",
            "fp32 GFLOP/s",
            "bf16 GFLOP/s",
            name_of(*level)
        );
    }
    for (int threads = 1;; threads = std::min(threads * 2, threads_max)) {
        kernels::ThreadPool pool(threads);
        const MachineLimits limits = measure_limits(pool, *level, std::int64_t{array_mb} << 20);
        if (as_json) {
            rows.push_back({
                {"threads", threads},
                {"read_gb_s", limits.read_gb_s},
                {"copy_gb_s", limits.copy_gb_s},
                {"fp32_gflop_s", limits.fma_gflop_s},
                {"bf16_gflop_s", limits.bf16_gflop_s},
            });
        } else {
            fmt::print(
                "{:>7} {:>10.1f} {:>10.1f} {:>14.1f} {:>14.1f}\n",
                threads,
                limits.read_gb_s,
                limits.copy_gb_s,
                limits.fma_gflop_s,
                limits.bf16_gflop_s
            );
        }
        if (threads == threads_max) break;
    }
    if (as_json)
        fmt::print("{}\n", nlohmann::json{{"cpu", name_of(*level)}, {"limits", rows}}.dump(2));
    return 0;
}
