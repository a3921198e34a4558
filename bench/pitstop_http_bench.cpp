// pitstop_http_bench measures what HTTP costs over the client library, on workers that
// compute nothing.
//
// One tree serves the same requests over HTTP and over the library in alternating rounds, so that a
// drift of the machine's speed hardly affects the ratios. Throughput is measured by many streams at
// once, latency by one request of one token after the other.
#include "bench/drive.h"
#include "bench/http_load.h"
#include "bench/json_report.h"
#include "bench/machine.h"
#include "bench/metrics.h"
#include "bench/program.h"
#include "bench/tree.h"
#include "client/client.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pitstop::bench {
namespace {

struct Options {
    std::string launcher = root_dir() + "/launch/pitstop";
    std::vector<std::string> serve{};
    int streams = 64;
    int requests = 512;
    std::int64_t output_len = 128;
    int probes = 1000;
    int rounds = 3;
    std::string json{};
};

const std::vector<TokenId> kPrompt{TokenId{1}, TokenId{2}, TokenId{3}, TokenId{4}};

struct Figures {
    std::vector<double> tokens_per_s{};  // of each round
    std::vector<double> latency_ms{};    // of every probe
    // The CPU time per token of each round: of the tree and of the library or http_proc, without
    // the HTTP client.
    std::vector<double> cpu_us{};
    std::vector<double> own_cpu_us{};   // of the library with its caller; of http_proc alone
    std::vector<double> load_cpu_us{};  // of the HTTP client
};

messages::Generate request_of(std::int64_t output_len, bool is_streamed) {
    messages::Generate request;
    request.input_ids = kPrompt;
    request.sampling.max_new_tokens = output_len;
    request.sampling.ignore_eos = true;
    request.stream = is_streamed;
    return request;
}

std::string body_of(std::int64_t output_len, bool is_streamed) {
    const nlohmann::json body{
        {"input_ids", {1, 2, 3, 4}},
        {"stream", is_streamed},
        {"incremental_streaming_output", is_streamed},  // deltas, as the library gives them
        {"sampling_params", {{"max_new_tokens", output_len}, {"ignore_eos", true}}}};
    return body.dump();
}

// Keeps `streams` requests open until `requests` have ended.
DriveResult drive_client(std::span<const std::unique_ptr<Client>> clients, const Options& options) {
    const auto num_requests = static_cast<std::size_t>(options.requests);
    const PlannedRequest each{.prompt = kPrompt, .output_len = options.output_len};
    const Workload workload{
        .requests = std::vector<PlannedRequest>(num_requests, each),
        .output_tokens = options.requests * options.output_len};
    return drive(
        {.clients = clients,
         .workload = &workload,
         .pattern = request_of(options.output_len, true),
         .concurrency_max = options.streams}
    );
}

Result<double> tokens_per_s_of(const DriveResult& driven) {
    const Metrics metrics = metrics_of(driven);
    if (!metrics.errors.empty()) return Error{ErrorCode::kInternal, metrics.errors.begin()->first};
    return static_cast<double>(metrics.output_tokens) / metrics.seconds;
}

Result<> client_latency(Client& client, const Options& options, std::vector<double>& latency_ms) {
    for (int i = 0; i < options.probes; ++i) {
        const TimePoint begin = Clock::now();
        RETURN_IF_ERROR(client.generate_blocking(request_of(1, false)));
        latency_ms.push_back(1e3 * seconds_since(begin));
    }
    return Ok{};
}

// The measured tree, reachable in both ways.
struct Served {
    std::string run_dir{};
    std::vector<std::unique_ptr<Client>> clients{};  // has one element
    HttpLoad server{};
};

// CPU seconds so far, or microseconds per token between two times.
struct CpuTimes {
    double http = 0;    // http_proc
    double others = 0;  // the tree's other processes in total
    double own = 0;     // this process: its clients
};

Result<CpuTimes> cpu_times_of(const std::string& run_dir) {
    ASSIGN_OR_RETURN(const std::vector<ProcessUse> processes, processes_of(run_dir));
    CpuTimes times{.own = cpu_seconds(0).value_or(0)};
    for (const ProcessUse& process : processes) {
        if (process.name == "launcher") continue;
        (process.name == "http_proc" ? times.http : times.others) += process.cpu_s;
    }
    return times;
}

CpuTimes cost_of(const CpuTimes& begin, const CpuTimes& end, double num_tokens) {
    const double each = 1e6 / num_tokens;
    return {
        .http = each * (end.http - begin.http),
        .others = each * (end.others - begin.others),
        .own = each * (end.own - begin.own)};
}

Result<> run_round(const Served& served, const Options& options, Figures& bus, Figures& http) {
    const double num_tokens =
        static_cast<double>(options.requests) * static_cast<double>(options.output_len);
    ASSIGN_OR_RETURN(const CpuTimes at_begin, cpu_times_of(served.run_dir));
    const DriveResult driven = drive_client(served.clients, options);
    ASSIGN_OR_RETURN(const CpuTimes after_bus, cpu_times_of(served.run_dir));
    ASSIGN_OR_RETURN(const double tokens_per_s, tokens_per_s_of(driven));
    bus.tokens_per_s.push_back(tokens_per_s);
    HttpLoad load = served.server;
    load.connections = options.streams;
    load.requests = options.requests;
    load.body = body_of(options.output_len, true);
    ASSIGN_OR_RETURN(const CpuTimes before_http, cpu_times_of(served.run_dir));
    ASSIGN_OR_RETURN(const HttpLoadResult many, run_http_load(load));
    ASSIGN_OR_RETURN(const CpuTimes at_end, cpu_times_of(served.run_dir));
    http.tokens_per_s.push_back(static_cast<double>(many.output_tokens) / many.seconds);
    const CpuTimes by_bus = cost_of(at_begin, after_bus, num_tokens);
    const CpuTimes by_http = cost_of(before_http, at_end, num_tokens);
    bus.cpu_us.push_back(by_bus.others + by_bus.own);
    bus.own_cpu_us.push_back(by_bus.own);
    http.cpu_us.push_back(by_http.others + by_http.http);
    http.own_cpu_us.push_back(by_http.http);
    http.load_cpu_us.push_back(by_http.own);
    RETURN_IF_ERROR(client_latency(*served.clients[0], options, bus.latency_ms));
    load.connections = 1;
    load.requests = options.probes;
    load.body = body_of(1, false);
    ASSIGN_OR_RETURN(const HttpLoadResult one, run_http_load(load));
    http.latency_ms.insert(http.latency_ms.end(), one.latencies_ms.begin(), one.latencies_ms.end());
    return Ok{};
}

double median(std::vector<double> values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
}

// The cost of HTTP compared with the library.
struct Added {
    double time_share = 0;
    double cpu_share = 0;
    double latency_ms = 0;
};

Added added_by(const Figures& http, const Figures& bus) {
    return {
        .time_share = median(bus.tokens_per_s) / median(http.tokens_per_s) - 1,
        .cpu_share = median(http.cpu_us) / median(bus.cpu_us) - 1,
        .latency_ms = median(http.latency_ms) - median(bus.latency_ms)};
}

void print_figures(const Options& options, const Figures& bus, const Figures& http) {
    const Added added = added_by(http, bus);
    fmt::print(
        "throughput, {} streams of {} tokens (median of {} rounds)\n",
        options.streams,
        options.output_len,
        options.rounds
    );
    fmt::print("  client library  {:>10.0f} tokens/s\n", median(bus.tokens_per_s));
    fmt::print(
        "  HTTP            {:>10.0f} tokens/s   {:+.1f} % time (target: at most +15 %)\n",
        median(http.tokens_per_s),
        100 * added.time_share
    );
    fmt::print("CPU time per token, all processes but the HTTP client (median of the rounds)\n");
    fmt::print(
        "  client library  {:>10.2f} us: {:.2f} the tree, {:.2f} the library and its caller\n",
        median(bus.cpu_us),
        median(bus.cpu_us) - median(bus.own_cpu_us),
        median(bus.own_cpu_us)
    );
    fmt::print(
        "  HTTP            {:>10.2f} us: {:.2f} the tree, {:.2f} http_proc   {:+.1f} % (target: at "
        "most +15 %)\n",
        median(http.cpu_us),
        median(http.cpu_us) - median(http.own_cpu_us),
        median(http.own_cpu_us),
        100 * added.cpu_share
    );
    fmt::print("  the HTTP client {:>10.2f} us besides\n", median(http.load_cpu_us));
    fmt::print("latency of a request of one token (median of {})\n", bus.latency_ms.size());
    fmt::print("  client library  {:>10.3f} ms\n", median(bus.latency_ms));
    fmt::print(
        "  HTTP            {:>10.3f} ms         {:+.3f} ms (target: at most +0.3 ms)\n",
        median(http.latency_ms),
        added.latency_ms
    );
}

Result<> write_figures(
    const Options& options,
    const std::vector<std::string>& command,
    const Figures& bus,
    const Figures& http
) {
    const Added added = added_by(http, bus);
    Json report = report_head("pitstop_http_bench", command);
    report.update(Json{
        {"streams", options.streams},
        {"output_len", options.output_len},
        {"client_tokens_per_s", bus.tokens_per_s},
        {"http_tokens_per_s", http.tokens_per_s},
        {"client_cpu_us", bus.cpu_us},
        {"client_library_cpu_us", bus.own_cpu_us},
        {"http_cpu_us", http.cpu_us},
        {"http_proc_cpu_us", http.own_cpu_us},
        {"http_client_cpu_us", http.load_cpu_us},
        {"added_cpu_share", added.cpu_share},
        {"client_latency_ms", median(bus.latency_ms)},
        {"http_latency_ms", median(http.latency_ms)},
        {"added_time_share", added.time_share},
        {"added_latency_ms", added.latency_ms}});
    return write_report(options.json, report);
}

Result<int> run(const Options& options, const std::vector<std::string>& command) {
    Tree::Args args{
        .launcher = options.launcher, .serve = {"--load-format", "null", "--port", "0"}};
    args.serve.insert(args.serve.end(), options.serve.begin(), options.serve.end());
    ASSIGN_OR_RETURN(Tree tree, Tree::start(args));
    ASSIGN_OR_RETURN(auto client, Client::connect({.run_dir = tree.run_dir()}));
    Served served{.run_dir = tree.run_dir()};
    served.clients.push_back(std::move(client));
    ASSIGN_OR_RETURN(served.server.server, http_address_of(tree.run_dir()));
    Figures bus;
    Figures http;
    Options warm = options;
    warm.requests = options.streams;
    warm.probes = 100;
    Figures unused;
    RETURN_IF_ERROR(run_round(served, warm, unused, unused));
    for (int round = 0; round < options.rounds; ++round)
        RETURN_IF_ERROR(run_round(served, options, bus, http));

    print_figures(options, bus, http);
    RETURN_IF_ERROR(write_figures(options, command, bus, http));
    return 0;
}

void add_flags(FlagSet& flags, Options& o) {
    flags.add("launcher", &o.launcher, "path of the launcher that starts the tree");
    flags.add("streams", &o.streams, "number of streams open at once");
    flags.add("requests", &o.requests, "number of streamed requests per round");
    flags.add("output-len", &o.output_len, "output tokens per streamed request");
    flags.add(
        "probes",
        &o.probes,
        "number of requests of one token per round, one after the other, to measure latency"
    );
    flags.add(
        "rounds", &o.rounds, "number of rounds over HTTP, and as many over the client library"
    );
    flags.add("json", &o.json, "file to which the figures are also written");
}

Result<> check(const FlagSet& flags, Options& o) {
    o.serve = flags.positional();
    if (o.streams < 1 || o.requests < 1 || o.output_len < 1 || o.probes < 1 || o.rounds < 1)
        return make_error(ErrorCode::kInvalidArgument, "every number must be 1 or more");
    return Ok{};
}

}  // namespace
}  // namespace pitstop::bench

int main(int argc, char** argv) {
    using namespace pitstop::bench;
    return run_program<Options>(
        {.name = "pitstop_http_bench",
         .about = "What HTTP costs over the client library. After --: flags of serve.",
         .add_flags = add_flags,
         .check = check,
         .run = run},
        argc,
        argv
    );
}
