// tp_worker: one rank of one replica. The loop: take a plan, run it, send the result.
//
// Everything the scheduler sends comes over one socket, in order, and is done in that order; so
// what stands between two plans takes effect between two forward passes, on every rank the same two
// (P1).
#include "base/fault_point.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/supervision.h"
#include "bus/poller.h"
#include "bus/run_dir.h"
#include "bus/socket.h"
#include "kernels/cuda_device.h"
#include "messages/codec.h"
#include "messages/steps.h"
#include "tp_worker/groups/shm_communicator.h"
#include "tp_worker/model/engine.h"
#include "tp_worker/update/memory_tags.h"
#include "tp_worker/update/updater.h"
#include "tp_worker/weights/pace.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace pitstop::tp_worker {
namespace {

struct Options {
    std::string run_dir{};
    std::string log_level = "info";
    std::string load_format = "auto";
    std::string compute = "bf16";
    std::string device = "cpu";
    std::string update_mode = "auto";
    bool is_deterministic = false;
    bool ignores_extra_tensors = false;
    std::string isa{};
    int replica = 0;
    int rank = 0;
    int tp = 1;
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

void add_flags(Options& options, FlagSet& flags) {
    flags.add("run-dir", &options.run_dir, "the tree's private directory");
    flags.add("replica", &options.replica, "the replica this rank belongs to, from 0");
    flags.add("rank", &options.rank, "this rank, from 0");
    flags.add("tp", &options.tp, "ranks of the replica");
    flags.add("model", &options.engine.model_dir, "checkpoint directory");
    flags.add(
        "weights",
        &options.engine.weights_dir,
        "load this checkpoint of the same shape; empty: the model's own"
    );
    flags.add(
        "wait-for-initial-weights",
        &options.engine.awaits_weights,
        "load no weights: the first complete update brings them"
    );
    flags.add("device", &options.device, "auto, cpu, or cuda: one GPU per replica, --tp 1");
    flags.add("gpu", &options.engine.gpu, "with cuda: which, as the driver counts");
    flags.add(
        "mem-fraction",
        &options.engine.mem_fraction,
        "with cuda: of the GPU's free memory, what weights, activations and KV may take, in (0, 1]"
    );
    flags.add(
        "update-mode",
        &options.update_mode,
        "with cuda: staged leaves room for a second copy of the weights, direct gives it to KV, "
        "auto "
        "leaves it where a request of the whole context still fits"
    );
    flags.add(
        "deterministic",
        &options.is_deterministic,
        "with cuda: no result depends on what else is in the batch, as it never does on a CPU"
    );
    flags.add(
        "tuning-dir",
        &options.engine.tuning_dir,
        "with cuda: products are timed at the start, and this directory keeps which algorithm is "
        "fastest; empty: the library's first guess"
    );
    flags.add("load-format", &options.load_format, "auto, or null: compute nothing");
    flags.add(
        "ignore-extra-tensors",
        &options.ignores_extra_tensors,
        "leave out tensors of a checkpoint or an update that the model does not have"
    );
    flags.add("compute", &options.compute, "bf16, or fp32: the truth mode");
    flags.add("isa", &options.isa, "scalar, avx2, avx512, avx512bf16; empty: the best there is");
    flags.add("threads", &options.threads, "threads of this rank; 0: an even share of the cores");
    flags.add("page-size", &options.engine.page_size, "tokens per KV page");
    flags.add(
        "max-total-tokens",
        &options.engine.max_total_tokens,
        "tokens of KV; 0: 1 GiB, on a GPU by --mem-fraction"
    );
    flags.add("context-len", &options.engine.context_len, "positions of a request; 0: the model's");
    flags.add("max-running-requests", &options.engine.num_slots, "requests that may run at once");
    flags.add(
        "chunked-prefill-size",
        &options.chunked_prefill_size,
        "prompt tokens in a step, at most; a token of every running request comes on top"
    );
    flags.add("attach-timeout-ms", &options.attach_timeout_ms, "for all ranks to start");
    flags.add("peer-timeout-ms", &options.peer_timeout_ms, "for a rank to wait for another");
    flags.add(
        "step-timeout-s",
        &options.step_timeout_s,
        "with cuda: seconds the scheduler gives a pass; the wait for the GPU ends before that"
    );
    flags.add(
        "stage-share",
        &options.stage_share,
        "of a core's time that staging weights may take while passes run, in (0, 1]"
    );
    flags.add("epoch", &options.epoch, "of the weights that are loaded; larger after a restart");
    flags.add(
        "keep-committed",
        &options.keep_committed,
        "write what is committed to this directory, with the other ranks of this replica"
    );
    flags.add("log-level", &options.log_level, "trace, debug, info, warning, error, off");
}

Result<> check_options(Options& options) {
    const auto bad = [](std::string_view flag, std::string_view accepted) {
        return make_error(ErrorCode::kInvalidArgument, "--{} takes {}", flag, accepted);
    };
    if (options.run_dir.empty()) return bad("run-dir", "the tree's directory, and is required");
    if (options.engine.model_dir.empty()) return bad("model", "a directory, and is required");
    if (options.tp < 1 || options.tp > kTpMax) return bad("tp", fmt::format("1 to {}", kTpMax));
    if (options.rank < 0 || options.rank >= options.tp) return bad("rank", "0 to tp - 1");
    if (options.replica < 0) return bad("replica", "0 or more");
    if (options.epoch < 1) return bad("epoch", "1 or more");
    if (options.threads < 0 || options.threads > 1024) return bad("threads", "0 to 1024");
    if (options.load_format != "auto" && options.load_format != "null") {
        return bad("load-format", "auto or null");
    }
    if (options.compute != "bf16" && options.compute != "fp32")
        return bad("compute", "bf16 or fp32");
    if (options.attach_timeout_ms < 1 || options.peer_timeout_ms < 1) {
        return bad("attach-timeout-ms and --peer-timeout-ms", "1 or more");
    }
    if (!(options.stage_share > 0 && options.stage_share <= 1)) {
        return bad("stage-share", "a number in (0, 1]");
    }
    if (!(options.step_timeout_s > 0 && options.step_timeout_s < 1e6))
        return bad("step-timeout-s", "seconds, more than 0");
    // A step has room for both; each is bounded before they are added up.
    constexpr auto kTokensMax = static_cast<std::int64_t>(messages::StepPlan::kTokensMax);
    if (options.chunked_prefill_size < 1 || options.chunked_prefill_size > kTokensMax)
        return bad("chunked-prefill-size", fmt::format("1 to {}", kTokensMax));
    constexpr auto kRowsMax = static_cast<std::int64_t>(messages::StepPlan::kRowsMax);
    if (options.engine.num_slots < 1 || options.engine.num_slots > kRowsMax)
        return bad("max-running-requests", fmt::format("1 to {}", kRowsMax));
    EngineOptions& engine = options.engine;
    if (options.load_format == "null") engine.load_format = LoadFormat::kNull;
    if (options.compute == "fp32") engine.compute = Compute::kFp32;
    ASSIGN_OR_RETURN(engine.device, parse_device_kind(options.device));
    ASSIGN_OR_RETURN(engine.update_room, parse_update_room(options.update_mode));
    if (options.ignores_extra_tensors) engine.extra_tensors = ExtraTensors::kIgnore;
    if (options.is_deterministic) engine.determinism = Determinism::kBatchInvariant;
    engine.tokens_per_step_max = options.chunked_prefill_size + engine.num_slots;
    // Before the scheduler's clock for the same pass runs out: the worker knows what stands still.
    constexpr double kOfStepTimeout = 0.8;
    engine.step_timeout = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(kOfStepTimeout * options.step_timeout_s)
    );
    ASSIGN_OR_RETURN(engine.isa, choose_isa(options.isa));
    return Ok{};
}

std::string worker_name(const Options& options) {
    return fmt::format("tp_worker[{}.{}]", options.replica, options.rank);
}

int choose_threads(const Options& options) {
    if (options.threads > 0) return options.threads;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    return std::max(1, cores / options.tp);
}

Result<std::unique_ptr<Communicator>> join_peers(
    const Options& options, const bus::RunDir& run_dir
) {
    if (options.tp == 1) return make_solo_communicator();
    return attach_shm_communicator({
        .path = fmt::format("{}/ranks-{}", run_dir.path(), options.replica),
        .rank = static_cast<Rank>(options.rank),
        .size = options.tp,
        .attach_timeout = std::chrono::milliseconds(options.attach_timeout_ms),
        .peer_timeout = std::chrono::milliseconds(options.peer_timeout_ms),
    });
}

class Worker {
  public:
    struct Args {
        Engine& engine;
        Updater& updater;
        Pace& pace;
        bus::Socket& scheduler;
        Supervision& supervision;
    };
    explicit Worker(const Args& args)
        : engine_(args.engine),
          updater_(args.updater),
          pace_(args.pace),
          scheduler_(args.scheduler),
          supervision_(args.supervision) {}

    // Until the launcher says stop or is gone. An error: this rank cannot go on.
    Result<> loop() {
        bus::Poller poller;
        const std::size_t orders = poller.add(scheduler_);
        const std::size_t answers = poller.add_fd(updater_.fd());
        if (supervision_.fd() >= 0) poller.add_fd(supervision_.fd());
        while (true) {
            updater_.meter().measure_if_due(Clock::now());
            TimePoint deadline = Clock::now() + kIdle;
            if (const auto due = updater_.meter().due()) deadline = std::min(deadline, *due);
            poller.wait(deadline);  // the only place this process waits for work
            if (is_over()) return Ok{};
            if (poller.is_ready(answers)) RETURN_IF_ERROR(send_all(updater_.take_answers()));
            if (!poller.is_ready(orders)) continue;
            for (int i = 0; i < bus::kMessagesPerTurnMax; ++i) {
                const std::optional<bus::Received> received = scheduler_.receive();
                if (!received) break;
                Result<> handled = handle(*received);
                if (is_over()) return Ok{};  // also what a peer's orderly end looks like
                RETURN_IF_ERROR(std::move(handled));
                // Under load the next plan is here already: a vote does not wait for the last.
                RETURN_IF_ERROR(send_all(updater_.take_answers()));
            }
        }
    }

    Result<> send(const messages::Frames& frames) {
        if (scheduler_.send(frames) == bus::Sent::kSent) return Ok{};
        return make_error(
            ErrorCode::kUnavailable, "the scheduler does not take a '{}'", frames.type
        );
    }

  private:
    static constexpr auto kIdle = std::chrono::seconds(60);

    bool is_over() {
        for (const std::string& line : supervision_.read_lines()) {
            if (line == "stop") return true;
        }
        return supervision_.is_over();
    }

    Result<> handle(const bus::Received& received) {
        if (received.refused) return drop(*received.refused);
        if (Updater::takes(received.frames.type)) {
            ASSIGN_OR_RETURN(
                const std::vector<messages::Frames> replies, updater_.obey(received.frames)
            );
            return send_all(replies);
        }
        if (received.frames.type != messages::StepPlan::kType) {
            return drop(make_error(
                ErrorCode::kUnknownMessage, "'{}' is no message for a worker", received.frames.type
            ));
        }
        ASSIGN_OR_RETURN(
            const messages::StepPlan plan,
            decode<messages::StepPlan>(received.frames, messages::UnknownFields::kIgnore)
        );
        pace_.begin_pass();
        Result<messages::StepResult> result = engine_.run(plan);
        pace_.end_pass();
        updater_.meter().touch();
        if (!result) return result.error();
        return send(encode(*result));
    }

    // What is no order to this worker changes nothing here and has nobody to answer. A plan that
    // cannot be read is another matter: its peers run it, so this rank must end.
    Result<> drop(const Error& error) {
        ++num_dropped_;
        spdlog::warn("message {} dropped: {}", num_dropped_, error.message);
        return Ok{};
    }

    Result<> send_all(const std::vector<messages::Frames>& all) {
        for (const messages::Frames& frames : all) RETURN_IF_ERROR(send(frames));
        return Ok{};
    }

    Engine& engine_;
    Updater& updater_;
    Pace& pace_;
    bus::Socket& scheduler_;
    Supervision& supervision_;
    std::int64_t num_dropped_ = 0;
};

// Where the kernel shares cores among sessions (autogroup), priorities count inside a session
// alone, and the launcher gives each process one of its own: so the session is given one, too.
// Source: sched(7), "The autogroup feature".
void yield_session(int nice) {
    if (::getsid(0) != ::getpid()) return;  // somebody's shell, started by hand
    const int fd = ::open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;  // a kernel without them
    const std::string text = std::to_string(nice);
    // The kernel takes ten of these a second, of all processes together.
    constexpr int kTriesMax = 20;
    constexpr auto kRest = std::chrono::milliseconds(110);
    bool is_done = false;
    for (int i = 0; i < kTriesMax && !is_done; ++i) {
        if (i > 0) std::this_thread::sleep_for(kRest);
        is_done = ::write(fd, text.data(), text.size()) >= 0;
        if (!is_done && errno != EAGAIN) break;
    }
    if (!is_done) spdlog::warn("cannot lower the session's priority: {}", std::strerror(errno));
    ::close(fd);
}

// A pass keeps every core busy for as long as it takes. The processes that answer between its ops
// (scheduler, detokenizer, front ends) want a core for microseconds, and get it sooner if their
// priority is higher.
void yield_to_others() {
    constexpr int kNice = 5;  // more than the others have, whatever that is
    const int inherited = ::getpriority(PRIO_PROCESS, 0);
    if (::setpriority(PRIO_PROCESS, 0, inherited + kNice) != 0)  // 19 at most
        spdlog::warn("cannot lower the priority: {}", std::strerror(errno));
    yield_session(kNice);
}

Result<> run(const Options& options, Supervision& supervision) {
    yield_to_others();  // before there are other threads, which inherit it
    ASSIGN_OR_RETURN(const bus::RunDir run_dir, bus::RunDir::open(options.run_dir));
    kernels::ThreadPool threads(choose_threads(options));
    ASSIGN_OR_RETURN(
        const std::unique_ptr<Communicator> communicator, join_peers(options, run_dir)
    );
    const TimePoint begin = Clock::now();
    ASSIGN_OR_RETURN(
        const std::unique_ptr<Engine> engine, Engine::load(options.engine, threads, *communicator)
    );
    engine->set_epoch(Epoch{options.epoch});
    messages::WorkerHello hello = engine->describe();
    hello.device_uuid = device_uuid(
        engine->device(), static_cast<ReplicaId>(options.replica), static_cast<Rank>(options.rank)
    );
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
    zmq::context_t context(1);
    ASSIGN_OR_RETURN(
        bus::Socket scheduler,
        bus::Socket::connect(
            context,
            bus::SocketKind::kDealer,
            run_dir.workers(static_cast<ReplicaId>(options.replica)),
            bus::kInnerLimits
        )
    );
    Pace pace(options.stage_share);
    FaultPoint fault_point(worker_name(options));
    const auto replica = static_cast<ReplicaId>(options.replica);
    Updater updater(*engine, pace, fault_point, replica);
    if (!options.keep_committed.empty()) {
        Keeper::Args keeper{
            .directory = options.keep_committed,
            .model_dir = options.engine.model_dir,
            .rank = engine->rank(),
            .layout = engine->layout(),
            .is_on_gpu = engine->device().is_cuda(),
            .add_run = engine->device().add_run(),
            .pace = pace,
            .fault_point = FaultPoint(worker_name(options)),
        };
        if (options.rank == 0) {
            ASSIGN_OR_RETURN(keeper.files, read_small_files(options.engine.model_dir));
        }
        updater.keep_in(std::move(keeper));
    }
    Worker worker({
        .engine = *engine,
        .updater = updater,
        .pace = pace,
        .scheduler = scheduler,
        .supervision = supervision,
    });
    RETURN_IF_ERROR(worker.send(encode(hello)));
    RETURN_IF_ERROR(worker.send(encode(measure_memory(*engine))));
    supervision.say_ready(fmt::format("rank {}", options.rank));
    Result<> result = worker.loop();
    if (!result) {
        constexpr int kLingerMs = 1000;  // so that the scheduler learns why
        scheduler.set_linger_ms(kLingerMs);
        messages::WorkerError error;
        error.rank = static_cast<Rank>(options.rank);
        error.error = result.error();
        static_cast<void>(worker.send(encode(error)));
    }
    return result;
}

// Who hears of a CUDA call that failed.
Supervision* told_of_cuda_failure = nullptr;

// On any thread. What the GPU holds is lost, so there is nothing to put in order: the launcher is
// told which call it was, and ends the tree.
void end_by_failed_call(const std::string& line) {
    spdlog::critical("a CUDA call failed: {}", line);
    if (told_of_cuda_failure != nullptr) told_of_cuda_failure->say_failed(line);
    spdlog::shutdown();
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
    if (Result<> parsed = flags.parse(argc, argv); !parsed) return flags.fail(parsed.error());
    if (flags.help_asked()) {
        std::fputs(flags.help().c_str(), stdout);
        return 0;
    }
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
    Result<> result = supervision.attach();
    if (result) result = run(options, supervision);
    if (result) return 0;
    // One line per problem: a launcher prints what it is told.
    if (supervision.fd() < 0) {
        spdlog::error("{}: {}", name_of(result.error().code), result.error().message);
    }
    supervision.say_failed(result.error().message);
    return 1;
}

}  // namespace
}  // namespace pitstop::tp_worker

int main(int argc, char** argv) {
    try {
        return pitstop::tp_worker::main(argc, argv);
    } catch (const std::exception& error) {  // start-up alone may throw
        std::fprintf(stderr, "pitstop_tp_worker: %s\n", error.what());
        return 1;
    }
}
