// pitstop_http_hold holds thousands of streams open at once over HTTP, and checks each for foreign
// output, while it calls control routes and pauses and continues generation (http_hold.h).
//
// Exits with 1 if a stream was lost or mixed.
#include "base/time.h"
#include "bench/http_hold.h"
#include "bench/json_report.h"
#include "bench/machine.h"
#include "bench/percentiles.h"
#include "bench/program.h"
#include "bench/tree.h"

#include <fmt/format.h>

#include <string>
#include <sys/resource.h>
#include <vector>

namespace pitstop::bench {
namespace {

struct Options {
    std::string launcher = root_dir() + "/launch/pitstop";
    int streams = 2000;
    double seconds = 60;
    double pause_every_s = 5;
    int prompts = 64;
    std::int64_t output_len = 64;
    std::string json{};
    std::vector<std::string> serve{};
};

// The memory of each process at one time.
struct Memory {
    double seconds = 0;
    std::vector<ProcessUse> processes{};
};

void print(const char* what, const Summary& summary) {
    fmt::print(
        "  {:<44} {:>6} calls  p50 {:>8.2f}  p99 {:>8.2f}  max {:>8.2f} ms\n",
        what,
        summary.count,
        summary.p50,
        summary.p99,
        summary.max
    );
}

void print(const std::vector<Memory>& marks) {
    for (const Memory& mark : marks) {
        fmt::print("resident after {:.0f} s:", mark.seconds);
        for (const ProcessUse& process : mark.processes)
            fmt::print("  {} {} MiB", process.name, process.resident_bytes >> 20);
        fmt::print("\n");
    }
}

Json json_of(const std::vector<Memory>& marks) {
    Json list = Json::array();
    for (const Memory& mark : marks) {
        Json bytes = Json::object();
        for (const ProcessUse& process : mark.processes)
            bytes[process.name] = process.resident_bytes;
        list.push_back({{"seconds", mark.seconds}, {"resident_bytes", bytes}});
    }
    return list;
}

// Each connection uses a descriptor; the soft limit is often 1024.
void raise_descriptor_limit() {
    ::rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

Result<HttpHoldResult> hold_open(const Options& options, std::vector<Memory>& marks) {
    const auto milliseconds = [](double seconds) {
        return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
    };
    Tree::Args args{.launcher = options.launcher, .serve = {"--port", "0"}};
    args.serve.insert(args.serve.end(), options.serve.begin(), options.serve.end());
    ASSIGN_OR_RETURN(Tree tree, Tree::start(args));
    HttpHold hold;
    ASSIGN_OR_RETURN(hold.server, http_address_of(tree.run_dir()));
    hold.streams = options.streams;
    hold.prompts = options.prompts;
    hold.output_len = options.output_len;
    hold.duration = milliseconds(options.seconds);
    hold.pause_every = milliseconds(options.pause_every_s);
    hold.at_memory_mark = [&](std::chrono::milliseconds since_begin) {
        auto processes = processes_of(tree.run_dir());
        if (processes) marks.push_back({pitstop::seconds(since_begin), *std::move(processes)});
    };
    return hold_streams(hold);
}

Result<> report(
    const Options& options,
    const HttpHoldResult& result,
    const std::vector<Memory>& marks,
    const std::vector<std::string>& command
) {
    const Summary poll = summarize(result.poll_ms);
    const Summary pause = summarize(result.pause_ms);
    const Summary go_on = summarize(result.continue_ms);
    const double tokens_per_s = static_cast<double>(result.output_tokens) / result.seconds;
    fmt::print(
        "{} streams of {} tokens held for {:.1f} s (never fewer than {} open), {:.0f} tokens/s\n"
        "  whole and as their prompts give alone {}   lost {}   mixed {}   (target: none)\n",
        options.streams,
        options.output_len,
        result.seconds,
        result.open_min,
        tokens_per_s,
        result.finished,
        result.lost,
        result.mixed
    );
    if (!result.first_problem.empty()) fmt::print("  first: {}\n", result.first_problem);
    fmt::print("control routes meanwhile (target: p99 at most 50 ms)\n");
    print("is_paused, get_weight_version, health", poll);
    print("pause_generation (ends the step in flight)", pause);
    print("continue_generation", go_on);
    print(marks);
    Json report = report_head("pitstop_http_hold", command);
    report.update(Json{
        {"streams", options.streams},
        {"output_len", options.output_len},
        {"seconds", result.seconds},
        {"open_min", result.open_min},
        {"finished", result.finished},
        {"lost", result.lost},
        {"mixed", result.mixed},
        {"tokens_per_s", tokens_per_s},
        {"poll_ms", json_of(poll)},
        {"pause_ms", json_of(pause)},
        {"continue_ms", json_of(go_on)},
        {"memory", json_of(marks)}});
    return write_report(options.json, report);
}

Result<int> run(const Options& options, const std::vector<std::string>& command) {
    raise_descriptor_limit();
    std::vector<Memory> marks;
    ASSIGN_OR_RETURN(const HttpHoldResult result, hold_open(options, marks));
    RETURN_IF_ERROR(report(options, result, marks, command));
    return result.lost + result.mixed == 0 ? 0 : 1;
}

void add_flags(FlagSet& flags, Options& o) {
    flags.add("launcher", &o.launcher, "path of the launcher that starts the tree");
    flags.add("streams", &o.streams, "number of streams open at once");
    flags.add("seconds", &o.seconds, "seconds to measure with all streams open");
    flags.add(
        "pause-every-s", &o.pause_every_s, "seconds from one pause of generation to the next"
    );
    flags.add("prompts", &o.prompts, "number of different prompts");
    flags.add("output-len", &o.output_len, "output tokens per stream");
    flags.add("json", &o.json, "file to which the figures are also written");
}

Result<> check(const FlagSet& flags, Options& o) {
    o.serve = flags.positional();
    if (o.streams < 1 || o.prompts < 1 || o.output_len < 1 || !(o.seconds > 0) ||
        !(o.pause_every_s > 0))
        return make_error(ErrorCode::kInvalidArgument, "every number must be more than 0");
    return Ok{};
}

}  // namespace
}  // namespace pitstop::bench

int main(int argc, char** argv) {
    using namespace pitstop::bench;
    return run_program<Options>(
        {.name = "pitstop_http_hold",
         .about = "Streams held open over HTTP, checked. After --: flags of serve.",
         .add_flags = add_flags,
         .check = check,
         .run = run},
        argc,
        argv
    );
}
