// The command line of a tp_worker.
#pragma once

#include "base/flags.h"
#include "base/result.h"
#include "tp_worker/model/engine.h"

#include <cstdint>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

struct Options {
    std::string run_dir{};
    std::string log_level = "info";
    std::string load_format = "auto";
    std::string compute = "bf16";
    std::string expert_weights = "fp32";
    std::string device = "auto";
    int num_gpus = 1;
    std::string update_mode = "auto";
    std::string all_reduce = "auto";
    bool has_no_graphs = false;
    bool is_deterministic = false;
    bool ignores_extra_tensors = false;
    std::string isa{};
    int replica = 0;
    int num_replicas = 1;
    int rank = 0;
    int tp = 1;
    int nodes = 1;
    int node = 0;
    std::string head{};
    std::string node_key{};
    int threads = 0;
    std::int64_t chunked_prefill_size = 8192;
    int attach_timeout_ms = 60'000;
    int peer_timeout_ms = 120'000;
    double step_timeout_s = 300;
    double stage_share = 0.25;
    std::int64_t epoch = 1;
    std::string keep_committed{};
    EngineOptions engine{};
};

void add_flags(Options& options, FlagSet& flags);

// Fills `options.engine` from the other options. An error names the flag and what it accepts.
[[nodiscard]] Result<> check_options(Options& options);

// Returns NAME=VALUE for everything in which the ranks of all machines must agree, including the
// model's config.json and, with several machines, its weights. REQUIRES: the options are checked.
[[nodiscard]] std::vector<std::string> settings_of(const Options& options);

// Returns this rank's name in logs, the launcher and PITSTOP_FAULT_POINT: tp_worker[replica.rank].
[[nodiscard]] std::string worker_name(const Options& options);

// Returns the requested number, or an even share of the machine's cores.
[[nodiscard]] int choose_threads(const Options& options);

}  // namespace pitstop::tp_worker
