// pitstop_bench offline|serving|stream drives a tree as clients do and prints the results.
//
//   offline   all requests at once (or --concurrency at a time): throughput
//   serving   Poisson arrivals at --rate: latency under load
//   stream    one request after the other: latency alone
//
// Starts a tree with launch/pitstop, or drives the one in --run-dir.
#include "bench/drive.h"
#include "bench/machine.h"
#include "bench/metrics.h"
#include "bench/program.h"
#include "bench/report.h"
#include "bench/tree.h"
#include "bench/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::bench {
namespace {

constexpr int kClientsMax = 1024;
constexpr double kReadBytesMax = 1 << 30;  // far more than caches hold

struct Options {
    std::string mode{};
    std::string model = "stories";
    std::string run_dir{};
    std::string launcher = root_dir() + "/launch/pitstop";
    std::string load_format = "auto";
    std::vector<std::string> serve{};
    std::int64_t num_requests = 0;
    std::int64_t num_warmup = 1;
    std::string prompt_len = "128";
    std::string output_len = "128";
    std::int64_t shared_prefix = 0;
    std::int64_t prefix_groups = 1;
    double rate = 0;
    std::int64_t concurrency = 0;
    int clients = 1;
    std::int64_t seed = 1;
    double temperature = 0;
    bool logprobs = false;
    bool no_text = false;
    std::string adapter{};
    std::int64_t timeout_s = 600;
    std::string json{};
};

void add_flags(FlagSet& flags, Options& o) {
    flags.add(
        "model",
        &o.model,
        "model of the tree to start: a model directory or the name of a bundled model"
    );
    flags.add("run-dir", &o.run_dir, "run directory of a running tree to drive; empty: start one");
    flags.add("launcher", &o.launcher, "path of the launcher that starts the tree");
    flags.add(
        "load-format",
        &o.load_format,
        "load format of the tree to start: auto; null: its workers compute nothing"
    );
    flags.add("num-requests", &o.num_requests, "number of measured requests; 0: 32 (stream: 4)");
    flags.add(
        "warmup", &o.num_warmup, "number of requests of the same lengths before the measured ones"
    );
    flags.add(
        "prompt-len",
        &o.prompt_len,
        "tokens per prompt: N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA or file:PATH"
    );
    flags.add(
        "output-len", &o.output_len, "output tokens per request, in the same forms as --prompt-len"
    );
    flags.add(
        "shared-prefix",
        &o.shared_prefix,
        "tokens at the start of each prompt that are the same in its group"
    );
    flags.add(
        "prefix-groups",
        &o.prefix_groups,
        "number of groups of prompts, each with its own shared prefix"
    );
    flags.add("rate", &o.rate, "serving: mean number of requests per second, more than 0");
    flags.add("concurrency", &o.concurrency, "offline: maximum number of open requests; 0: all");
    flags.add("clients", &o.clients, "number of connections that share the requests, 1 to 1024");
    flags.add("seed", &o.seed, "seed of prompts, lengths, arrivals and sampling");
    flags.add("temperature", &o.temperature, "sampling temperature; 0: greedy");
    flags.add("logprobs", &o.logprobs, "ask for the logprob of every output token");
    flags.add("no-text", &o.no_text, "return tokens only, without detokenization");
    flags.add(
        "adapter", &o.adapter, "name of a loaded adapter for every request; empty: the base model"
    );
    flags.add("timeout-s", &o.timeout_s, "seconds that a request may take, 1 or more");
    flags.add("json", &o.json, "file to which the figures are also written");
}

Error usage_error(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

Result<> check(const FlagSet& flags, Options& o) {
    if (flags.positional().empty()) return usage_error("takes a mode: offline, serving or stream");
    o.mode = flags.positional()[0];
    o.serve.assign(flags.positional().begin() + 1, flags.positional().end());
    if (o.mode != "offline" && o.mode != "serving" && o.mode != "stream") {
        return usage_error(fmt::format("mode '{}' is not offline, serving or stream", o.mode));
    }
    if (!o.run_dir.empty() && (!o.serve.empty() || o.load_format != "auto")) {
        return usage_error(
            "--run-dir names a tree that runs already; leave out --load-format and the flags of "
            "serve"
        );
    }
    if ((o.mode == "serving") != (o.rate > 0)) return usage_error("serving takes a --rate over 0");
    if (o.clients < 1 || o.clients > kClientsMax) {
        return usage_error(fmt::format("--clients takes 1 to {}", kClientsMax));
    }
    if (o.num_requests == 0) o.num_requests = o.mode == "stream" ? 4 : 32;
    if (o.mode == "stream") o.concurrency = 1;
    if (o.num_warmup < 0 || o.concurrency < 0 || o.timeout_s < 1) {
        return usage_error("--warmup and --concurrency take 0 or more, --timeout-s 1 or more");
    }
    return Ok{};
}

Result<WorkloadArgs> workload_args(const Options& o, const messages::HelloReply& hello) {
    ASSIGN_OR_RETURN(LengthDistribution prompt_len, LengthDistribution::parse(o.prompt_len));
    ASSIGN_OR_RETURN(LengthDistribution output_len, LengthDistribution::parse(o.output_len));
    return WorkloadArgs{
        .num_requests = o.num_requests,
        .prompt_len = std::move(prompt_len),
        .output_len = std::move(output_len),
        .shared_prefix_len = o.shared_prefix,
        .prefix_groups = o.prefix_groups,
        .rate = o.rate > 0 ? std::optional(o.rate) : std::nullopt,
        .seed = static_cast<std::uint64_t>(o.seed),
        .vocab = hello.vocab_size,
        .context_len = hello.context_len,
    };
}

messages::Generate request_pattern(const Options& o) {
    messages::Generate request;
    request.sampling.temperature = o.temperature;
    request.sampling.ignore_eos = true;
    request.sampling.seed = static_cast<std::uint64_t>(o.seed);
    request.logprobs.enabled = o.logprobs;
    request.text_output = !o.no_text;
    request.adapter = o.adapter;
    return request;
}

struct Session {
    std::optional<Tree> tree{};  // none: the tree was already running
    std::string run_dir{};
    std::optional<StartUp> start_up{};
    std::vector<std::unique_ptr<Client>> clients{};
};

Result<Session> open_session(const Options& o) {
    Session session{.run_dir = o.run_dir};
    const TimePoint begin = Clock::now();
    double ready_s = 0;
    if (o.run_dir.empty()) {
        std::vector<std::string> serve{"--model", o.model};
        if (o.load_format != "auto") serve.insert(serve.end(), {"--load-format", o.load_format});
        serve.insert(serve.end(), o.serve.begin(), o.serve.end());
        ASSIGN_OR_RETURN(Tree tree, Tree::start({.launcher = o.launcher, .serve = serve}));
        ready_s = seconds_since(begin);
        session.run_dir = tree.run_dir();
        session.tree.emplace(std::move(tree));
    }
    for (int i = 0; i < o.clients; ++i) {
        ASSIGN_OR_RETURN(
            std::unique_ptr<Client> client,
            Client::connect(
                {.run_dir = session.run_dir, .name = fmt::format("pitstop_bench[{}]", i)}
            )
        );
        session.clients.push_back(std::move(client));
        if (i == 0 && session.tree) {
            messages::Generate first;
            first.text = "Once upon a time";
            first.sampling.max_new_tokens = 1;
            RETURN_IF_ERROR(session.clients[0]->generate_blocking(std::move(first)));
            session.start_up = StartUp{.ready_s = ready_s, .first_token_s = seconds_since(begin)};
        }
    }
    return session;
}

std::int64_t num_steps(const messages::StatusReply& status) {
    std::int64_t steps = 0;
    for (const messages::ReplicaStatus& replica : status.replicas) steps += replica.num_steps;
    return steps;
}

std::vector<ProcessReport> use_between(
    const std::vector<ProcessUse>& before, const std::vector<ProcessUse>& after
) {
    std::vector<ProcessReport> used;
    for (const ProcessUse& process : after) {
        const auto earlier =
            std::find_if(before.begin(), before.end(), [&](const ProcessUse& other) {
                return other.pid == process.pid;
            });
        const double cpu_before = earlier == before.end() ? 0 : earlier->cpu_s;
        used.push_back({process.name, process.cpu_s - cpu_before, process.peak_bytes});
    }
    return used;
}

// Sends requests of the measured lengths but with other tokens, so that the prefix cache has none
// of the measured prompts.
Result<> warm_up(const Options& o, WorkloadArgs args, const DriveArgs& pattern) {
    if (o.num_warmup == 0) return Ok{};
    args.num_requests = o.num_warmup;
    args.seed = ~args.seed;
    args.rate = std::nullopt;
    ASSIGN_OR_RETURN(const Workload workload, make_workload(args));
    DriveArgs drive_args = pattern;
    drive_args.workload = &workload;
    for (const RequestRecord& record : drive(drive_args).requests) {
        if (!record.error.empty()) {
            return make_error(
                ErrorCode::kUnavailable, "a warm-up request ended with {}", record.error
            );
        }
    }
    return Ok{};
}

Result<Report> measure(const Options& o, Session& session) {
    Client& client = *session.clients[0];
    const messages::HelloReply hello = client.hello();
    ASSIGN_OR_RETURN(const WorkloadArgs args, workload_args(o, hello));
    ASSIGN_OR_RETURN(const Workload workload, make_workload(args));
    const DriveArgs drive_args{
        .clients = session.clients,
        .workload = &workload,
        .pattern = request_pattern(o),
        .concurrency_max = o.concurrency,
        .request_timeout = std::chrono::seconds(o.timeout_s),
    };
    RETURN_IF_ERROR(warm_up(o, args, drive_args));

    ASSIGN_OR_RETURN(const messages::StatusReply status_before, client.status());
    ASSIGN_OR_RETURN(const std::vector<ProcessUse> use_before, processes_of(session.run_dir));
    const DriveResult result = drive(drive_args);
    ASSIGN_OR_RETURN(const std::vector<ProcessUse> use_after, processes_of(session.run_dir));
    ASSIGN_OR_RETURN(const messages::StatusReply status_after, client.status());

    Report report{
        .mode = o.mode,
        .model = hello.model,
        .replicas = hello.replicas,
        .tp = hello.tp,
        .metrics = metrics_of(result),
        .steps = num_steps(status_after) - num_steps(status_before),
        .start_up = session.start_up,
        .processes = use_between(use_before, use_after),
    };
    const auto& replicas = status_after.replicas;
    if (!replicas.empty() && !replicas[0].workers.empty()) {
        report.device = replicas[0].workers[0].device;
    }
    report.workload = {
        {"requests", fmt::format("{}", o.num_requests)},
        {"prompts", o.prompt_len},
        {"outputs", o.output_len},
        {"clients", fmt::format("{}", o.clients)},
    };
    if (o.rate > 0) report.workload.emplace_back("rate", fmt::format("{}/s", o.rate));
    if (o.concurrency > 0) {
        report.workload.emplace_back("concurrency", fmt::format("{}", o.concurrency));
    }
    if (o.shared_prefix > 0) {
        report.workload.emplace_back(
            "shared prefix", fmt::format("{} in {} groups", o.shared_prefix, o.prefix_groups)
        );
    }
    if (workload.num_cut > 0) {
        report.workload.emplace_back(
            "cut to the context", fmt::format("{} requests", workload.num_cut)
        );
    }
    if (o.load_format != "null") {
        const Result<ModelShape> shape = read_shape(hello.model_path);
        if (shape) report.cost = cost_of(*shape);
    }
    return report;
}

Result<int> run_bench(const Options& o, const std::vector<std::string>& command) {
    ASSIGN_OR_RETURN(Session session, open_session(o));
    ASSIGN_OR_RETURN(Report report, measure(o, session));
    report.command = command;
    session.clients.clear();
    if (session.tree) session.tree->stop();  // the limits are those of an idle machine
    if (report.cost && report.device.starts_with("cpu")) {
        // The limit is measured by reading as many bytes as a step reads: a model that fits the
        // caches has the caches' limit.
        const double bytes = std::min(report.cost->weights_read(1), kReadBytesMax);
        report.limits = measure_step_limits(static_cast<std::int64_t>(bytes));
    }
    fmt::print("{}", report_table(report));
    RETURN_IF_ERROR(write_report(o.json, report_json(report)));
    return report.metrics.errors.empty() ? 0 : 1;
}

}  // namespace
}  // namespace pitstop::bench

int main(int argc, char** argv) {
    using namespace pitstop::bench;
    return run_program<Options>(
        {.name = "pitstop_bench",
         .about = "offline|serving|stream [flags] [-- flags of pitstop serve]: drives a tree, "
                  "prints figures.",
         .add_flags = add_flags,
         .check = check,
         .run = run_bench},
        argc,
        argv
    );
}
