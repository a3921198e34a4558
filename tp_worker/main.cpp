// tp_worker is one rank of one replica. Starts and ends here; worker_loop.h has its work.
#include "base/fault_point.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/supervision.h"
#include "base/time.h"
#include "bus/curve_keys.h"
#include "bus/run_dir.h"
#include "bus/socket.h"
#include "grammar/trial.h"
#include "kernels/runtime/cuda_device.h"
#include "messages/codec.h"
#include "messages/steps.h"
#include "tp_worker/model/engine.h"
#include "tp_worker/options.h"
#include "tp_worker/priority.h"
#include "tp_worker/ranks/bus_communicator.h"
#include "tp_worker/ranks/shm_communicator.h"
#include "tp_worker/update/memory_tags.h"
#include "tp_worker/update/updater.h"
#include "tp_worker/weights/pace.h"
#include "tp_worker/worker_loop.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>

namespace pitstop::tp_worker {
namespace {

// --device auto means cpu if a machine has fewer GPUs than the tree has ranks. All ranks see the
// same GPUs, so all decide the same, before any rank waits for another. If there are enough GPUs,
// each rank tries its own, and a replica's ranks agree afterwards (Engine::open_device).
void settle_auto(Options& options) {
    EngineOptions& engine = options.engine;
    if (engine.device != DeviceKind::kAuto) return;
    const Result<int> num = kernels::num_cuda_devices();
    const int num_needed = std::max(options.num_gpus, engine.gpu + 1);
    if (num && *num >= num_needed) return;
    engine.device = DeviceKind::kCpu;
    engine.device_why = "the driver shows no GPU";
    if (!num) {
        engine.device_why = num.error().message;
    } else if (*num > 0) {
        engine.device_why =
            fmt::format("too few GPUs: the driver shows {}, the ranks need {}", *num, num_needed);
        spdlog::warn("{}", engine.device_why);
    }
}

// How this rank reaches the other ranks: host() always exists, `bus` uses the scheduler.
struct Ranks {
    std::unique_ptr<BusCommunicator> bus{};
    std::unique_ptr<Communicator> apart{};  // null: only `bus` exists

    [[nodiscard]] Communicator& host() const { return apart ? *apart : *bus; }
};

// How long a rank waits for another on the host. If a GPU or another machine takes part in a step,
// the waiting rank must name the missing rank before the scheduler's deadline. The scheduler only
// knows that the step does not end.
Duration host_patience(const Options& options) {
    if (options.engine.device != DeviceKind::kCpu || options.nodes > 1)
        return options.engine.exchange_limit;
    return std::chrono::milliseconds(options.peer_timeout_ms);
}

// The socket where the scheduler's workers connect, and the key for it.
struct SchedulerDoor {
    zmq::context_t& context;
    std::string endpoint{};
    std::optional<bus::ClientKey> key{};
};

Result<std::optional<bus::ClientKey>> read_node_key(const Options& options) {
    if (options.node_key.empty()) return std::optional<bus::ClientKey>{};
    ASSIGN_OR_RETURN(bus::ClientKey key, bus::read_client_key(options.node_key));
    return std::optional(std::move(key));
}

Result<std::unique_ptr<BusCommunicator>> join_bus(
    const Options& options, const SchedulerDoor& door
) {
    BusCommunicatorArgs args{
        .endpoint = door.endpoint,
        .key = door.key,
        .join_limit = std::chrono::milliseconds(options.attach_timeout_ms),
        .peer_limit = options.nodes > 1 ? host_patience(options)
                                        : std::chrono::milliseconds(options.attach_timeout_ms),
    };
    std::array<char, HOST_NAME_MAX + 1> host{};
    static_cast<void>(::gethostname(host.data(), HOST_NAME_MAX));
    args.join.build = "pitstop " PITSTOP_VERSION;
    args.join.rank = static_cast<Rank>(options.rank);
    args.join.tp = options.tp;
    args.join.node = options.node;
    args.join.nodes = options.nodes;
    args.join.host = host.data();
    args.join.pid = ::getpid();
    args.join.settings = settings_of(options);
    return BusCommunicator::join(door.context, std::move(args));
}

std::string scheduler_endpoint(const Options& options, const bus::RunDir& run_dir) {
    if (!options.head.empty()) return "tcp://" + options.head;
    return run_dir.workers(static_cast<ReplicaId>(options.replica));
}

Result<std::unique_ptr<Communicator>> join_on_machine(
    const Options& options, const bus::RunDir& run_dir
) {
    return attach_shm_communicator({
        .path = fmt::format("{}/ranks-{}", run_dir.path(), options.replica),
        .rank = static_cast<Rank>(options.rank),
        .size = options.tp,
        .attach_timeout = std::chrono::milliseconds(options.attach_timeout_ms),
        .peer_timeout = host_patience(options),
    });
}

Result<Ranks> join_peers(
    const Options& options, const bus::RunDir& run_dir, const SchedulerDoor& door
) {
    Ranks ranks;
    if (options.tp == 1) {
        ranks.apart = make_solo_communicator();
        return ranks;
    }
    // On GPUs the bus carries the id of NCCL's communicator.
    if (options.nodes > 1 || options.engine.device != DeviceKind::kCpu) {
        ASSIGN_OR_RETURN(ranks.bus, join_bus(options, door));
    }
    if (options.nodes == 1) {
        ASSIGN_OR_RETURN(ranks.apart, join_on_machine(options, run_dir));
    } else {
        // A long limit is acceptable: machines are started by hand, one after the other, and
        // nothing serves yet.
        const auto limit = std::chrono::milliseconds(options.attach_timeout_ms);
        RETURN_IF_ERROR(ranks.bus->barrier_within(limit));
    }
    return ranks;
}

Result<std::unique_ptr<Engine>> load_engine(
    const Options& options, kernels::ThreadPool& threads, Communicator& communicator
) {
    const TimePoint begin = Clock::now();
    ASSIGN_OR_RETURN(
        std::unique_ptr<Engine> engine, Engine::load(options.engine, threads, communicator)
    );
    engine->set_epoch(Epoch{options.epoch});
    const messages::WorkerHello hello = engine->describe();
    spdlog::info(
        "loaded {} in {} ms: {} bytes of weights, {} KV pages of {} tokens, {}, {}, {} thread(s)",
        options.engine.model_dir,
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count(),
        hello.weight_bytes,
        hello.num_pages,
        hello.page_size,
        hello.device,
        hello.compute,
        threads.num_threads()
    );
    if (const std::string& why = engine->device().why(); !why.empty())
        spdlog::info("--device auto took {}: {}", engine->device().name(), why);
    return engine;
}

// Has the updater write committed versions to the directory of --keep-committed.
Result<> keep_committed(const Options& options, Engine& engine, Pace& pace, Updater& updater) {
    Keeper::Args keeper{
        .directory = options.keep_committed,
        .model_dir = options.engine.model_dir,
        .rank = engine.rank(),
        .layout = engine.layout(),
        .add_run = engine.device().add_run(),
        .pace = pace,
        .fault_point = FaultPoint(worker_name(options)),
    };
    if (options.rank == 0) {
        ASSIGN_OR_RETURN(keeper.files, read_small_files(options.engine.model_dir));
    }
    updater.keep_in(std::move(keeper));
    updater.adapters().keep_in({
        .directory = options.keep_committed,
        .rank = engine.rank(),
        .tp = engine.tp(),
        .pace = pace,
        .fault_point = FaultPoint(worker_name(options)),
    });
    return Ok{};
}

// Announces this rank, then works until its end. The scheduler learns of an error in the loop.
Result<> serve(
    const Options& options,
    const Engine& engine,
    WorkerLoop& loop,
    bus::Socket& scheduler,
    Supervision& supervision
) {
    messages::WorkerHello hello = engine.describe();
    hello.device_uuid = device_uuid(
        engine.device(), static_cast<ReplicaId>(options.replica), static_cast<Rank>(options.rank)
    );
    RETURN_IF_ERROR(loop.send(encode(hello)));
    RETURN_IF_ERROR(loop.send(encode(measure_memory(engine))));
    supervision.say_ready(fmt::format("rank {}", options.rank));
    Result<> result = loop.run();
    if (!result) {
        constexpr int kLingerMs = 1000;  // so that the scheduler learns why
        scheduler.set_linger_ms(kLingerMs);
        messages::WorkerError error;
        error.rank = static_cast<Rank>(options.rank);
        error.error = result.error();
        static_cast<void>(loop.send(encode(error)));
    }
    return result;
}

Result<> load_and_serve(
    const Options& options, const Ranks& ranks, bus::Socket& scheduler, Supervision& supervision
) {
    kernels::ThreadPool threads(choose_threads(options));
    ASSIGN_OR_RETURN(
        const std::unique_ptr<Engine> engine, load_engine(options, threads, ranks.host())
    );
    Pace pace(options.stage_share);
    FaultPoint fault_point(worker_name(options));
    Updater updater(
        *engine,
        pace,
        fault_point,
        ReplicaPlace{
            .replica = static_cast<ReplicaId>(options.replica),
            .num_replicas = options.num_replicas,
        },
        options.engine.model_dir
    );
    updater.adapters().limit(
        {.bytes_max = options.engine.adapter_memory, .directory = options.run_dir}
    );
    if (!options.keep_committed.empty())
        RETURN_IF_ERROR(keep_committed(options, *engine, pace, updater));
    WorkerLoop loop({
        .engine = *engine,
        .updater = updater,
        .pace = pace,
        .scheduler = scheduler,
        .supervision = supervision,
        .communicator = ranks.host(),
        .head = options.head.empty() ? nullptr : ranks.bus.get(),
    });
    RETURN_IF_ERROR(serve(options, *engine, loop, scheduler, supervision));
    engine->leave();
    return Ok{};
}

Result<> run(Options& options, Supervision& supervision) {
    yield_to_others();  // before other threads exist, which inherit the priority
    ASSIGN_OR_RETURN(const bus::RunDir run_dir, bus::RunDir::open(options.run_dir));
    const std::string endpoint = scheduler_endpoint(options, run_dir);
    ASSIGN_OR_RETURN(const std::optional<bus::ClientKey> key, read_node_key(options));
    zmq::context_t context(1);
    ASSIGN_OR_RETURN(const Ranks ranks, join_peers(options, run_dir, {context, endpoint, key}));
    ASSIGN_OR_RETURN(
        bus::Socket scheduler,
        bus::Socket::connect(context, bus::SocketKind::kDealer, endpoint, bus::kInnerLimits, key)
    );
    options.engine.bus = ranks.bus.get();
    Result<> served = load_and_serve(options, ranks, scheduler, supervision);
    if (!served && options.nodes > 1) ranks.bus->say_why(served.error());
    return served;
}

// Notified before the process exits on a failed CUDA call.
Supervision* told_of_cuda_failure = nullptr;

// May run on any thread, while others log. The GPU's contents are lost, so nothing needs cleaning
// up. Tells the launcher which call failed, and the launcher ends the tree. The line is flushed.
void end_by_failed_call(const std::string& line) {
    spdlog::critical("a CUDA call failed: {}", line);
    if (told_of_cuda_failure != nullptr) told_of_cuda_failure->say_failed(line);
    std::_Exit(1);
}

int main(int argc, char** argv) {
    Options options;
    Supervision supervision;
    FlagSet flags(
        "pitstop_tp_worker", "One tensor-parallel rank: weights, KV memory, forward pass."
    );
    add_flags(options, flags);
    supervision.add_flags(flags);
    if (const auto code = flags.read(argc, argv)) return *code;
    if (Result<> checked = check_options(options); !checked) return flags.fail(checked.error());
    const std::string name = worker_name(options);
    if (Result<> logging = init_logging(name, options.log_level); !logging) {
        return flags.fail(logging.error());
    }
    told_of_cuda_failure = &supervision;
    kernels::set_cuda_failure_handler(end_by_failed_call);
    options.engine.weights_are_lost = [&](const Error& error) {
        supervision.say_lost(error.message);
    };
    settle_auto(options);
    Result<> result = supervision.attach();
    if (result) result = run(options, supervision);
    return result ? 0 : supervision.fail(result.error());
}

}  // namespace
}  // namespace pitstop::tp_worker

int main(int argc, char** argv) {
    if (argc == 3 && argv[1] == pitstop::grammar::Trials::kArgument)
        return pitstop::grammar::serve_trials(std::atoi(argv[2]));
    // Only xgrammar writes to std::cerr: warnings about requests' grammars. Clients could fill the
    // log with them.
    std::cerr.setstate(std::ios_base::failbit);
    try {
        return pitstop::tp_worker::main(argc, argv);
    } catch (const std::exception& error) {  // only start-up may throw
        std::fprintf(stderr, "pitstop_tp_worker: %s\n", error.what());
        return 1;
    }
}
