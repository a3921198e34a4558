#include "tp_worker/options.h"

#include "base/digest.h"
#include "base/isa.h"
#include "base/mapped_file.h"
#include "base/time.h"
#include "checkpoint/weights_sample.h"
#include "messages/ranks.h"
#include "messages/steps.h"
#include "tp_worker/ranks/communicator.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace pitstop::tp_worker {
namespace {

// Flags that place the rank in its tree, and name what it loads.
void add_place_flags(Options& options, FlagSet& flags) {
    flags.add("run-dir", &options.run_dir, "the tree's run directory, where its sockets are");
    flags.add(
        "replica", &options.replica, "number of the replica that this rank belongs to, from 0"
    );
    flags.add("replicas", &options.num_replicas, "number of replicas of the tree");
    flags.add("rank", &options.rank, "this rank's number in its replica, from 0");
    flags.add("tp", &options.tp, "number of ranks of the replica");
    flags.add(
        "ep",
        &options.engine.ep,
        "number of groups of ranks that experts are divided over; a group's ranks split each expert"
    );
    flags.add("model", &options.engine.model_dir, "checkpoint directory");
    flags.add(
        "weights",
        &options.engine.weights_dir,
        "load the weights of this checkpoint directory, of the same shape; empty: of --model"
    );
    flags.add(
        "wait-for-initial-weights",
        &options.engine.awaits_weights,
        "load no weights at the start; the first complete update brings them"
    );
}

// Flags for a replica on several machines.
void add_node_flags(Options& options, FlagSet& flags) {
    flags.add("nodes", &options.nodes, "number of machines that share the ranks equally");
    flags.add(
        "node-rank",
        &options.node,
        "this machine's number, from 0; 0: the head, which has the scheduler"
    );
    flags.add("head", &options.head, "HOST:PORT of the head's door for nodes; empty on the head");
    flags.add(
        "node-key",
        &options.node_key,
        "file with this machine's key for --head, made by keygen --node"
    );
}

// Flags for the device, and for the part of a GPU that the worker may use.
void add_device_flags(Options& options, FlagSet& flags) {
    flags.add(
        "device",
        &options.device,
        "cuda: a GPU for each rank; cpu; auto: cuda if there are --num-gpus usable GPUs, otherwise "
        "cpu"
    );
    flags.add(
        "num-gpus",
        &options.num_gpus,
        "with --device auto: number of GPUs that the ranks of the tree need"
    );
    flags.add(
        "gpu",
        &options.engine.gpu,
        "with cuda: number of this rank's GPU, from 0, in the driver's order"
    );
    flags.add(
        "mem-fraction",
        &options.engine.mem_fraction,
        "with cuda: share of the GPU's free memory for weights, activations and KV, in (0, 1]"
    );
    flags.add(
        "update-mode",
        &options.update_mode,
        "with cuda: where updates are staged. staged: in a second copy of the weights; host: in "
        "host memory; lend: in the memory of KV; direct: nowhere. All but staged give KV the "
        "second copy's room. auto: the first of the four that fits"
    );
    flags.add(
        "all-reduce",
        &options.all_reduce,
        "with cuda and --tp: what sums activations over the ranks. own: kernels that read each "
        "other's memory. nccl: NCCL in each step that is not a graph. auto: own with "
        "--deterministic; otherwise NCCL for sizes where it is faster"
    );
    flags.add(
        "deterministic",
        &options.is_deterministic,
        "with cuda: results do not depend on the rest of the batch; on a CPU they never do"
    );
    flags.add(
        "no-graphs",
        &options.has_no_graphs,
        "with cuda: launch each kernel of a step separately; the results are the same"
    );
    flags.add(
        "tuning-dir",
        &options.engine.tuning_dir,
        "with cuda: directory that keeps the fastest algorithms for products, timed at the start; "
        "empty: time nothing, use the library's first choice"
    );
}

// Flags of the computation: its precision and its sizes.
void add_engine_flags(Options& options, FlagSet& flags) {
    flags.add(
        "load-format", &options.load_format, "auto; or null: load no weights and compute nothing"
    );
    flags.add(
        "ignore-extra-tensors",
        &options.ignores_extra_tensors,
        "skip tensors of a checkpoint or update that the model does not have"
    );
    flags.add(
        "compute",
        &options.compute,
        "precision of activations and KV: bf16, or fp32 as the reference for comparisons"
    );
    flags.add(
        "expert-weights",
        &options.expert_weights,
        "fp32; or bf16: round the weights of a token's experts before the sum"
    );
    flags.add(
        "isa", &options.isa, "scalar, avx2, avx512 or avx512bf16; empty: the best of this machine"
    );
    flags.add("threads", &options.threads, "threads of this rank; 0: an equal share of the cores");
    flags.add("page-size", &options.engine.page_size, "tokens per KV page");
    flags.add(
        "max-total-tokens",
        &options.engine.max_total_tokens,
        "tokens of KV; 0: chosen from --kv-share, on a GPU from --mem-fraction"
    );
    flags.add(
        "kv-share",
        &options.engine.kv_share,
        "without --max-total-tokens: share of the machine's memory for the KV of all ranks, in (0, "
        "1]"
    );
    flags.add(
        "context-len",
        &options.engine.context_len,
        "maximum number of positions of a request; 0: the model's"
    );
    flags.add(
        "max-adapter-rank",
        &options.engine.adapter_rank_max,
        "the highest accepted rank of an adapter; 0: no adapters"
    );
    flags.add(
        "adapter-memory",
        &options.engine.adapter_memory,
        "bytes for adapters in this rank; above it the scheduler evicts adapters to files; 0: no "
        "limit"
    );
    flags.add(
        "max-running-requests",
        &options.engine.num_slots,
        "maximum number of requests that run at once"
    );
    flags.add(
        "state-checkpoints",
        &options.engine.num_checkpoints,
        "places for copies of requests' recurrent states; 0: as many as a part of --kv-share holds"
    );
    flags.add(
        "chunked-prefill-size",
        &options.chunked_prefill_size,
        "maximum number of prompt tokens in a step, besides one token per running request"
    );
}

// Flags for the worker's waits for other processes, and for the processor time of stages.
void add_wait_flags(Options& options, FlagSet& flags) {
    flags.add(
        "attach-timeout-ms",
        &options.attach_timeout_ms,
        "milliseconds to wait until all ranks have started"
    );
    flags.add(
        "peer-timeout-ms",
        &options.peer_timeout_ms,
        "milliseconds that a rank waits for another rank"
    );
    flags.add(
        "step-timeout-s",
        &options.step_timeout_s,
        "seconds after which the scheduler gives up a pass; with cuda this rank waits less for its "
        "GPU"
    );
    flags.add(
        "stage-share",
        &options.stage_share,
        "share of a core's time that staging weights may take while passes run, in (0, 1]"
    );
}

// Flags for the version that the worker begins with, and for keeping later versions.
void add_version_flags(Options& options, FlagSet& flags) {
    flags.add("epoch", &options.epoch, "epoch of the loaded weights, 1 or more");
    flags.add(
        "keep-committed",
        &options.keep_committed,
        "directory where the ranks of this replica together write each committed version"
    );
    flags.add("log-level", &options.log_level, "trace, debug, info, warning, error or off");
}

Error refuse_with_nodes(std::string_view flag, std::string_view why) {
    return make_error(ErrorCode::kInvalidArgument, "--nodes with {}: {}", flag, why);
}

Result<> check_place_flags(const Options& options) {
    const auto bad = [](std::string_view flag, std::string_view accepted) {
        return make_error(ErrorCode::kInvalidArgument, "--{} takes {}", flag, accepted);
    };
    if (options.run_dir.empty()) return bad("run-dir", "the tree's directory, and is required");
    if (options.engine.model_dir.empty()) return bad("model", "a directory, and is required");
    if (options.tp < 1 || options.tp > kTpMax) return bad("tp", fmt::format("1 to {}", kTpMax));
    if (options.rank < 0 || options.rank >= options.tp) return bad("rank", "0 to tp - 1");
    if (options.engine.ep < 1 || options.tp % options.engine.ep != 0)
        return bad("ep", fmt::format("a divisor of --tp {}", options.tp));
    if (options.replica < 0 || options.replica >= options.num_replicas)
        return bad("replica", "0 to replicas - 1");
    return Ok{};
}

Result<> check_node_flags(const Options& options) {
    const auto bad = [](std::string_view flag, std::string_view accepted) {
        return make_error(ErrorCode::kInvalidArgument, "--{} takes {}", flag, accepted);
    };
    if (options.nodes < 1 || options.nodes > messages::kNodesMax)
        return bad("nodes", fmt::format("1 to {}", messages::kNodesMax));
    if (options.tp % options.nodes != 0) return bad("nodes", "a number that divides --tp");
    const int num_on_machine = options.tp / options.nodes;
    if (options.node < 0 || options.node >= options.nodes)
        return bad("node-rank", fmt::format("0 to {}", options.nodes - 1));
    if (options.rank / num_on_machine != options.node) {
        return bad(
            "rank", fmt::format("the ranks of node {}: {} each", options.node, num_on_machine)
        );
    }
    if ((options.node > 0) != !options.head.empty() ||
        options.head.empty() != options.node_key.empty())
        return bad("head and --node-key", "a value on every node except node 0");
    return Ok{};
}

// Refuses what only works on one machine. REQUIRES: the device is parsed.
Result<> check_across_nodes(const Options& options) {
    if (options.nodes == 1) return Ok{};
    const DeviceKind device = options.engine.device;
    if (device == DeviceKind::kAuto) {
        return refuse_with_nodes(
            "--device auto", "each machine would choose separately; accepted are cuda and cpu"
        );
    }
    if (!options.keep_committed.empty()) {
        return refuse_with_nodes(
            "--keep-committed", "the ranks of one machine cannot write to another's directory"
        );
    }
    if (device == DeviceKind::kCpu) return Ok{};
    if (options.is_deterministic) {
        return refuse_with_nodes(
            "--deterministic",
            "NCCL sums between machines, and the order of its sums depends on their size"
        );
    }
    if (options.all_reduce == "own") {
        return refuse_with_nodes(
            "--all-reduce own",
            "our kernels cannot read another machine's memory; accepted are auto and nccl"
        );
    }
    return Ok{};
}

// REQUIRES: the device is parsed.
Result<SumPath> choose_sums(const Options& options) {
    ASSIGN_OR_RETURN(const SumPath sums, parse_sum_path(options.all_reduce));
    if (sums != SumPath::kNccl) return sums;
    const auto refuse = [](std::string_view with, std::string_view why) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "--all-reduce nccl with {}: {}; accepted are auto and own",
            with,
            why
        );
    };
    if (options.is_deterministic)
        return refuse("--deterministic", "the order of NCCL's sums depends on their size");
    if (options.tp == 1) return refuse("--tp 1", "there are no ranks to sum over");
    if (options.engine.device == DeviceKind::kCpu)
        return refuse("--device cpu", "NCCL sums over GPUs");
    return sums;
}

// Names the weights that a machine of several loads. The ranks of one machine read the same files.
std::string weights_of(const Options& options) {
    const EngineOptions& engine = options.engine;
    if (options.nodes == 1 || engine.awaits_weights || options.load_format == "null") return "any";
    const Result<std::string> sample = checkpoint::sample_weights(
        engine.weights_dir.empty() ? engine.model_dir : engine.weights_dir
    );
    return sample ? *sample : sample.error().message;
}

}  // namespace

void add_flags(Options& options, FlagSet& flags) {
    add_place_flags(options, flags);
    add_node_flags(options, flags);
    add_device_flags(options, flags);
    add_engine_flags(options, flags);
    add_wait_flags(options, flags);
    add_version_flags(options, flags);
}

Result<> check_options(Options& options) {
    const auto bad = [](std::string_view flag, std::string_view accepted) {
        return make_error(ErrorCode::kInvalidArgument, "--{} takes {}", flag, accepted);
    };
    RETURN_IF_ERROR(check_place_flags(options));
    RETURN_IF_ERROR(check_node_flags(options));
    if (options.epoch < 1) return bad("epoch", "1 or more");
    constexpr int kGpusMax = 1 << 20;  // more than any machine has; kGpusMax + 1 is still an int
    if (options.engine.gpu < 0 || options.engine.gpu >= kGpusMax)
        return bad("gpu", fmt::format("0 to {}", kGpusMax - 1));
    if (options.num_gpus < 1 || options.num_gpus > kGpusMax)
        return bad("num-gpus", fmt::format("1 to {}", kGpusMax));
    if (options.threads < 0 || options.threads > 1024) return bad("threads", "0 to 1024");
    if (options.engine.adapter_rank_max < 0 ||
        options.engine.adapter_rank_max > kernels::LowRankArgs::kRankMax)
        return bad("max-adapter-rank", fmt::format("0 to {}", kernels::LowRankArgs::kRankMax));
    if (options.engine.adapter_memory < 0) return bad("adapter-memory", "0 or more");
    if (options.load_format != "auto" && options.load_format != "null") {
        return bad("load-format", "auto or null");
    }
    if (options.compute != "bf16" && options.compute != "fp32")
        return bad("compute", "bf16 or fp32");
    if (options.expert_weights != "fp32" && options.expert_weights != "bf16")
        return bad("expert-weights", "fp32 or bf16");
    if (options.attach_timeout_ms < 1 || options.peer_timeout_ms < 1) {
        return bad("attach-timeout-ms and --peer-timeout-ms", "1 or more");
    }
    if (!(options.stage_share > 0 && options.stage_share <= 1)) {
        return bad("stage-share", "a number in (0, 1]");
    }
    if (!(options.step_timeout_s > 0 && options.step_timeout_s < 1e6))
        return bad("step-timeout-s", "more than 0 seconds");
    // chunked_prefill_size and num_slots are added below, so each is bounded first.
    constexpr auto kTokensMax = static_cast<std::int64_t>(messages::StepPlan::kTokensMax);
    if (options.chunked_prefill_size < 1 || options.chunked_prefill_size > kTokensMax)
        return bad("chunked-prefill-size", fmt::format("1 to {}", kTokensMax));
    constexpr auto kRowsMax = static_cast<std::int64_t>(messages::StepPlan::kRowsMax);
    if (options.engine.num_slots < 1 || options.engine.num_slots > kRowsMax)
        return bad("max-running-requests", fmt::format("1 to {}", kRowsMax));
    constexpr std::int64_t kCheckpointsMax = 65536;
    if (options.engine.num_checkpoints < 0 || options.engine.num_checkpoints > kCheckpointsMax)
        return bad("state-checkpoints", fmt::format("0 to {}", kCheckpointsMax));
    EngineOptions& engine = options.engine;
    if (options.load_format == "null") engine.load_format = LoadFormat::kNull;
    if (options.compute == "fp32") engine.compute = Compute::kFp32;
    engine.rounds_expert_weights = options.expert_weights == "bf16";
    ASSIGN_OR_RETURN(engine.device, parse_device_kind(options.device));
    ASSIGN_OR_RETURN(engine.update_room, parse_update_room(options.update_mode));
    ASSIGN_OR_RETURN(engine.sums, choose_sums(options));
    RETURN_IF_ERROR(check_across_nodes(options));
    if (options.ignores_extra_tensors) engine.extra_tensors = ExtraTensors::kIgnore;
    engine.has_graphs = !options.has_no_graphs;
    if (options.is_deterministic) engine.determinism = Determinism::kBatchInvariant;
    engine.tokens_per_step_max = options.chunked_prefill_size + engine.num_slots;
    // Ends before the scheduler's deadline for the same pass, because the worker knows the cause.
    constexpr double kOfStepTimeout = 0.8;
    engine.step_timeout = duration_of(kOfStepTimeout * options.step_timeout_s);
    // The wait for another rank ends even earlier: the waiting rank knows which one is missing.
    constexpr double kOfDeviceWait = 0.75;
    engine.exchange_limit = std::min(
        Duration(std::chrono::milliseconds(options.peer_timeout_ms)),
        std::chrono::duration_cast<Duration>(kOfDeviceWait * engine.step_timeout)
    );
    ASSIGN_OR_RETURN(engine.isa, choose_isa(options.isa));
    return Ok{};
}

std::string worker_name(const Options& options) {
    return fmt::format("tp_worker[{}.{}]", options.replica, options.rank);
}

std::vector<std::string> settings_of(const Options& options) {
    const EngineOptions& engine = options.engine;
    const Result<std::string> config =
        MappedFile::read(engine.model_dir + "/config.json", kConfigBytesMax);
    return {
        fmt::format("--device={}", options.device),
        fmt::format("--compute={}", options.compute),
        fmt::format("--expert-weights={}", options.expert_weights),
        fmt::format("--ep={}", engine.ep),
        fmt::format("--deterministic={}", options.is_deterministic),
        fmt::format("--load-format={}", options.load_format),
        fmt::format("--page-size={}", engine.page_size),
        fmt::format("--max-total-tokens={}", engine.max_total_tokens),
        fmt::format("--chunked-prefill-size={}", options.chunked_prefill_size),
        fmt::format("--max-running-requests={}", engine.num_slots),
        fmt::format("--state-checkpoints={}", engine.num_checkpoints),
        fmt::format("--context-len={}", engine.context_len),
        fmt::format("--update-mode={}", options.update_mode),
        fmt::format("--all-reduce={}", options.all_reduce),
        fmt::format("--step-timeout-s={}", options.step_timeout_s),
        fmt::format("--epoch={}", options.epoch),
        fmt::format("--wait-for-initial-weights={}", engine.awaits_weights),
        fmt::format("--ignore-extra-tensors={}", options.ignores_extra_tensors),
        fmt::format("config.json={}", config ? to_hex(digest_of(*config)) : config.error().message),
        fmt::format("weights={}", weights_of(options)),
    };
}

int choose_threads(const Options& options) {
    if (options.threads > 0) return options.threads;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    return std::max(1, cores * options.nodes / options.tp);
}

}  // namespace pitstop::tp_worker
