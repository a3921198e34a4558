// The main of scheduler_proc is the thin loop around the scheduler. A turn gathers the messages
// that have arrived, makes decisions and sends them. The loop waits only in Poller::wait, never for
// a worker.
#include "base/flags.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/supervision.h"
#include "base/time.h"
#include "bus/poller.h"
#include "bus/run_dir.h"
#include "scheduler_proc/adapters.h"
#include "scheduler_proc/ports.h"
#include "scheduler_proc/scheduler.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace pitstop::scheduler {
namespace {

// The longest wait while nothing is due; a message or the launcher wakes the loop at once.
constexpr std::chrono::seconds kIdleWait{10};
// The wait while messages are held for a slow receiver.
constexpr std::chrono::milliseconds kHeldWait{1};

// Returns whether the launcher has ordered a stop. Errors: the launcher ended without one.
Result<bool> is_asked_to_stop(Supervision& supervision) {
    bool is_asked = false;
    for (const std::string& line : supervision.read_lines()) is_asked = is_asked || line == "stop";
    if (!is_asked && supervision.is_over())
        return make_error(ErrorCode::kUnavailable, "the launcher is gone");
    return is_asked;
}

// Logs the outcome of a replica's part of a call, and each value that differs from the default.
template <class Part>
void log_part(Part part) {
    std::string said;
    part.fields([&](std::string_view name, const auto& value, std::string_view) {
        using Value = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_arithmetic_v<Value> || std::is_same_v<Value, std::string>) {
            if (value != Value{}) said += fmt::format(", {} {}", name, value);
        }
    });
    const std::string_view came = part.verdict.is_done() ? "done" : part.verdict.code_name();
    spdlog::info("{}: {}{}", Part::kType, came, said);
}

// Logs the turning points that an operator looks for, not steps.
void log_turn(const TurnOutput& out) {
    for (const ToTokenizer& message : out.tokenizer) {
        if (const auto* hello = std::get_if<messages::SchedulerHello>(&message)) {
            spdlog::info(
                "{} is loaded: context {}, pool {} tokens, digest {}",
                hello->model_type,
                hello->context_len,
                hello->pool_tokens,
                hello->digest
            );
        } else if (const auto* part = std::get_if<messages::UpdatePart>(&message)) {
            spdlog::log(
                part->ok ? spdlog::level::info : spdlog::level::warn,
                "update {}: {} {}{}{}; {} epoch {}{}, digest {}",
                static_cast<std::uint64_t>(part->update),
                name_of(part->order),
                part->ok ? "done" : "failed",
                part->verdict.message.empty() ? "" : ": ",
                part->verdict.message,
                name_of(part->state),
                raw(part->epoch),
                part->label.empty() ? "" : fmt::format(" ({})", part->label),
                part->digest.empty() ? "unknown" : part->digest
            );
        } else {
            const auto log = [](const auto& answer) {
                if constexpr (requires { answer.kReplyType; }) log_part(answer);
            };
            std::visit(log, message);
        }
    }
}

// Logs requests that end for infinite or NaN numbers. A model that has diverged ends every request:
// the first one has a line of its own. Later lines, at most one per kBetween, count requests.
class NotFiniteLog {
  public:
    void note(const TurnOutput& out) {
        if (!out.batch) return;
        for (const messages::OutputChunk& chunk : out.batch->chunks) {
            if (chunk.finish && chunk.finish->verdict.code == ErrorCode::kNotFinite)
                note(chunk.key, chunk.finish->verdict.message);
        }
    }

  private:
    static constexpr std::chrono::seconds kBetween{10};

    void note(RequestKey key, const std::string& message) {
        ++num_unsaid_;
        const TimePoint now = Clock::now();
        if (now < next_) return;
        spdlog::warn(
            "request {}: {}; such requests since the last line: {}", raw(key), message, num_unsaid_
        );
        next_ = now + kBetween;
        num_unsaid_ = 0;
    }

    std::int64_t num_unsaid_ = 0;
    TimePoint next_{};
};

// Called before plans are sent, so that the launcher knows a version before a worker serves it.
void tell_adapters(const TurnOutput& out, Supervision& supervision) {
    for (const AdapterNews& news : out.adapters) {
        if (news.line.empty()) {
            supervision.say_no_adapter(news.name);
        } else {
            supervision.say_adapter(news.line);
        }
    }
}

Result<> run(Scheduler& scheduler, Ports& ports, Supervision& supervision) {
    NotFiniteLog not_finite_log;
    bus::Poller poller;
    ports.add_to(poller);
    if (supervision.fd() >= 0) poller.add_fd(supervision.fd());
    bool was_ready = false;
    for (;;) {
        ASSIGN_OR_RETURN(const bool is_asked, is_asked_to_stop(supervision));
        if (is_asked) return Ok{};
        TurnInput in = ports.receive();
        if (ports.loss()) return *ports.loss();
        TurnOutput out = scheduler.turn(std::move(in));
        log_turn(out);
        not_finite_log.note(out);
        tell_adapters(out, supervision);
        const std::optional<Error> fatal = std::move(out.fatal);
        const std::optional<TimePoint> wake_at = out.wake_at;
        if (auto sent = ports.send(std::move(out)); !sent) return sent.error();
        if (fatal) return *fatal;
        if (scheduler.is_ready() && !was_ready) {
            was_ready = true;
            supervision.say_ready("all workers are loaded");
        }
        TimePoint deadline = Clock::now() + kIdleWait;
        if (wake_at) deadline = std::min(deadline, *wake_at);
        if (const auto at = ports.deadline()) deadline = std::min(deadline, *at);
        if (ports.has_held()) deadline = std::min(deadline, Clock::now() + kHeldWait);
        poller.wait(deadline);
    }
}

Result<std::vector<messages::LostAdapter>> read_lost_adapters(const std::string& path) {
    constexpr std::size_t kBytesMax = std::size_t{64} << 20;
    ASSIGN_OR_RETURN(const std::string lines, MappedFile::read(path, kBytesMax));
    return messages::lost_adapters_of(lines);
}

struct Flags {
    SchedulerConfig config{};
    std::string run_dir_path{};
    std::string log_level = "info";
    std::string scheduling = "fair";
    std::string speculate = "off";
    std::string lost_adapters{};
    std::string node_door{};
    std::string door_keys{};
    int replica = 0;
    std::int64_t epoch = raw(config.epoch);
    double step_timeout_s = seconds(config.step_timeout);
};

void add_flags(FlagSet& flags, Flags& values) {
    flags.add("run-dir", &values.run_dir_path, "the tree's run directory, where its sockets are");
    flags.add("replica", &values.replica, "number of this data-parallel replica, from 0");
    flags.add("tp", &values.config.tp, "number of tensor-parallel ranks of this replica");
    flags.add("nodes", &values.config.nodes, "machines that share the ranks equally");
    flags.add("node-door", &values.node_door, "HOST:PORT where ranks of other machines connect");
    flags.add(
        "door-keys", &values.door_keys, "directory of the node door's keys, made by pitstop keygen"
    );
    flags.add(
        "page-size", &values.config.page_size, "tokens per KV page; the workers need the same value"
    );
    flags.add(
        "chunked-prefill-size",
        &values.config.tokens_per_step_max,
        "maximum number of tokens in a step; longer prompts are prefilled in chunks"
    );
    flags.add("max-running-requests", &values.config.running_max, "maximum of running requests");
    flags.add(
        "state-checkpoint-tokens",
        &values.config.spare_tokens,
        "tokens of a long prompt between checkpoints of its recurrent state, in whole pages"
    );
    flags.add(
        "speculate",
        &values.speculate,
        "off, auto, or maximum number of drafts per row that a pass verifies"
    );
    flags.add(
        "draft-memory",
        &values.config.draft_memory,
        "with --speculate: bytes for outputs of ended requests, the source of drafts"
    );
    flags.add(
        "session-memory",
        &values.config.session_memory,
        "share of the KV pool that conversations hold between their turns, 0 to 1"
    );
    flags.add("max-adapters", &values.config.adapters_max, "maximum number of loaded adapters");
    flags.add(
        "adapter-memory",
        &values.config.adapter_memory,
        "bytes for adapters in each worker; above it adapters are evicted to files; 0: no limit"
    );
    flags.add(
        "lost-adapters",
        &values.lost_adapters,
        "file that lists the adapters loaded before a restart; written by the launcher"
    );
    flags.add(
        "max-queued-requests", &values.config.queue_len_max, "maximum number of requests that wait"
    );
    flags.add("scheduling", &values.scheduling, kSchedulingHelp);
    flags.add(
        "step-timeout-s",
        &values.step_timeout_s,
        "seconds that a pass may take; after them this process ends"
    );
    flags.add("epoch", &values.epoch, "epoch of the loaded weights, 1 or more");
    flags.add("label", &values.config.label, "label of the loaded weights");
    flags.add(
        "digest",
        &values.config.digest,
        "required digest of the loaded weights, or this process ends; empty: any"
    );
    flags.add("log-level", &values.log_level, "trace, debug, info, warning, error or off");
}

int main_with(int argc, char** argv) {
    Flags values;
    SchedulerConfig& config = values.config;
    Supervision supervision;
    FlagSet flags("scheduler_proc", "The scheduler of one replica: requests, KV pages, updates.");
    add_flags(flags, values);
    supervision.add_flags(flags);
    if (const auto code = flags.read(argc, argv)) return *code;
    const Result<Fairness> fairness = fairness_of(values.scheduling);
    if (!fairness) return flags.fail(fairness.error());
    config.fairness = *fairness;
    if (const auto set = set_speculation(values.speculate, config); !set)
        return flags.fail(set.error());
    config.replica = static_cast<ReplicaId>(values.replica);
    config.epoch = Epoch{values.epoch};
    if (!(values.step_timeout_s > 0 && values.step_timeout_s < 1e6)) {
        return flags.fail(
            {ErrorCode::kInvalidArgument, "--step-timeout-s takes more than 0 seconds"}
        );
    }
    config.step_timeout = duration_of(values.step_timeout_s);
    if (!values.lost_adapters.empty()) {
        auto lost = read_lost_adapters(values.lost_adapters);
        if (!lost) return flags.fail(lost.error());
        config.lost_adapters = *std::move(lost);
    }
    if (const auto problem = problem_of(config)) return flags.fail(*problem);
    if ((config.nodes > 1) != !values.node_door.empty() ||
        values.node_door.empty() != values.door_keys.empty()) {
        return flags.fail(
            {ErrorCode::kInvalidArgument,
             "--nodes of more than 1 needs --node-door and --door-keys; neither is accepted "
             "without --nodes"}
        );
    }
    if (auto logging =
            init_logging(fmt::format("scheduler_proc[{}]", values.replica), values.log_level);
        !logging)
        return flags.fail(logging.error());

    const auto fail = [&](const Error& error) {
        // The workers loaded other weights than asked for, or not the same on all ranks.
        if (!config.digest.empty() && error.code == ErrorCode::kDataLoss)
            supervision.say_lost(error.message);
        return supervision.fail(error);
    };
    if (auto attached = supervision.attach(); !attached) return fail(attached.error());
    Result<bus::RunDir> run_dir = bus::RunDir::open(values.run_dir_path);
    if (!run_dir) return fail(run_dir.error());
    zmq::context_t context;
    Result<Ports> ports = Ports::open(
        context,
        *run_dir,
        {.replica = config.replica,
         .ranks = {.tp = config.tp, .nodes = config.nodes, .build = "pitstop " PITSTOP_VERSION},
         .node_door = values.node_door,
         .door_keys = values.door_keys}
    );
    if (!ports) return fail(ports.error());
    if (!values.node_door.empty()) supervision.say_door("nodes", ports->node_endpoint());
    Scheduler scheduler(config);
    const Result<> ran = run(scheduler, *ports, supervision);
    // The launcher ends when its whole machine is lost; ranks on other machines learn that from
    // their connections. A message now would reach only some ranks.
    if (ran || !supervision.is_over())
        ports->end(ran ? messages::Verdict{} : messages::Verdict(ran.error()));
    return ran ? 0 : fail(ran.error());
}

}  // namespace
}  // namespace pitstop::scheduler

int main(int argc, char** argv) {
    try {
        return pitstop::scheduler::main_with(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "scheduler_proc: %s\n", error.what());
        return 1;
    }
}
