// pitstop_gpu_bench measures every family of CUDA kernels at serving sizes of qwen3-8b, as a
// fraction of this GPU's copy and multiply rates, measured in the same run. Without a GPU it fails
// with a message.
//
// One family can run alone, with limits from an earlier run: if each family has its own process, a
// crash loses one family only. The report is rewritten after each family.
//
// Inputs rotate over more memory than the L2 cache holds; matrices of the limits are random, as
// zeros draw less power.
#include "base/flags.h"
#include "bench/gpu_families.h"
#include "bench/gpu_gaps.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace pitstop::kernels::bench {
namespace {

using Json = nlohmann::json;

Json describe(const kernels::CudaDeviceInfo& info) {
    const kernels::DeviceMemoryInfo memory = kernels::device_memory_info();
    return {
        {"name", info.name},
        {"uuid", info.uuid},
        {"compute_capability", 10 * info.compute_major + info.compute_minor},
        {"multiprocessors", info.num_multiprocessors},
        {"memory_bytes", info.memory_bytes},
        {"free_bytes", memory.free_bytes},
        {"l2_bytes", info.l2_bytes},
        {"driver_cuda", info.driver_version},
        {"runtime_cuda", info.runtime_version},
        {"cublas_lt", info.cublas_lt_version},
        {"cublas_lt_path", info.cublas_lt_path},
        {"nccl_path", info.nccl_path}};
}

struct Options {
    std::string json{};
    std::string family{};  // empty: all; kLimits: none
    double copy_gb_s = 0;  // 0: to be measured
    double matrix_tflop_s = 0;
    bool is_device_only = false;
    bool is_list = false;
    bool is_gaps = false;
};
constexpr const char* kLimits = "limits";

void write(const std::string& path, const Json& report) {
    if (!path.empty()) std::ofstream(path) << report.dump(2) << '\n';
}

Result<> check(const Options& options) {
    const std::span<const GpuFamily> all = gpu_families();
    const bool is_known = options.family.empty() || options.family == kLimits ||
                          std::any_of(all.begin(), all.end(), [&](const GpuFamily& family) {
                              return options.family == family.name;
                          });
    if (!is_known) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "unknown --family {}; accepted are the families that --list prints, and '{}'",
            options.family,
            kLimits
        );
    }
    if ((options.copy_gb_s > 0) != (options.matrix_tflop_s > 0)) {
        return make_error(
            ErrorCode::kInvalidArgument, "give both --copy-gb-s and --matrix-tflop-s, or neither"
        );
    }
    return Ok{};
}

Result<Json> run(const Options& options) {
    ASSIGN_OR_RETURN(const int num, kernels::num_cuda_devices());
    if (num == 0) return make_error(ErrorCode::kUnavailable, "the driver shows no GPU");
    ASSIGN_OR_RETURN(const kernels::CudaDeviceInfo info, kernels::open_cuda_device(0));
    Json report{{"status", "run"}, {"device", describe(info)}};
    if (options.is_device_only) return report;
    ASSIGN_OR_RETURN(GpuMeter meter, GpuMeter::make());
    const auto write_so_far = [&] {
        report.update(meter.report());
        write(options.json, report);
    };
    meter.call_after_each_figure(write_so_far);
    if (options.copy_gb_s > 0) {
        meter.set_limits(
            {.copy_bytes_s = options.copy_gb_s * 1e9,
             .matrix_flop_s = options.matrix_tflop_s * 1e12}
        );
    } else {
        meter.measure_limits();
    }
    write_so_far();
    if (options.is_gaps) {
        report["gaps"] = measure_gaps(meter);
        return report;
    }
    for (const GpuFamily& family : gpu_families()) {
        if (options.family.empty() || options.family == family.name) family.run(meter);
    }
    return report;
}

int main(int argc, char** argv) {
    Options options;
    FlagSet flags("pitstop_gpu_bench", "CUDA kernels as fractions of what the GPU can do at most.");
    flags.add("json", &options.json, "file to which the figures are also written");
    flags.add(
        "device-only", &options.is_device_only, "print the GPU's properties; measure nothing"
    );
    flags.add("list", &options.is_list, "print the names of the families of kernels");
    flags.add(
        "family", &options.family, "measure this family alone; limits: none; empty: all families"
    );
    flags.add(
        "gaps",
        &options.is_gaps,
        "measure only the time that a decode step loses between its kernels"
    );
    flags.add(
        "copy-gb-s",
        &options.copy_gb_s,
        "the GPU's copy rate in GB/s, measured before; 0: measure it now"
    );
    flags.add(
        "matrix-tflop-s",
        &options.matrix_tflop_s,
        "the GPU's multiply rate in TFLOP/s, measured before; 0: measure it now"
    );
    if (const auto code = flags.read(argc, argv)) return *code;
    if (Result<> checked = check(options); !checked) return flags.fail(checked.error());
    if (options.is_list) {
        for (const GpuFamily& family : gpu_families()) std::puts(family.name);
        return 0;
    }
    const Result<Json> measured = run(options);
    const Json report =
        measured ? *measured : Json{{"status", "not run"}, {"why", measured.error().message}};
    if (!measured) std::printf("not run: %s\n", measured.error().message.c_str());
    if (measured && options.is_device_only) std::printf("%s\n", report["device"].dump(2).c_str());
    write(options.json, report);
    return 0;
}

}  // namespace
}  // namespace pitstop::kernels::bench

int main(int argc, char** argv) {
    try {
        return pitstop::kernels::bench::main(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "pitstop_gpu_bench: %s\n", error.what());
        return 1;
    }
}
