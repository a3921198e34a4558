// pitstop_stall measures what weight updates, pauses and status calls cost the requests
// being served.
//
// Starts a tree on a model (made for the run if none is given), lets streams decode, pushes new
// versions with and without running streams, pauses and continues, and asks for status during one
// long forward pass. All figures come from one run, so they can be compared.
#include "bench/checkpoint_writer.h"
#include "bench/digest_cost.h"
#include "bench/machine.h"
#include "bench/program.h"
#include "bench/push_command.h"
#include "bench/stall_report.h"
#include "bench/step_limits.h"
#include "bench/streams.h"
#include "bench/tree.h"
#include "client/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace pitstop::bench {
namespace {

constexpr std::int64_t kPassTokensMax = 8192;  // the long pass's tokens, and the tree's chunk limit
// a prompt that is timed to predict the long pass's length
constexpr std::int64_t kProbeTokens = 256;
constexpr double kLongPassSeconds = 2.5;
constexpr std::chrono::milliseconds kTokensTimeout{300'000};
constexpr std::chrono::milliseconds kUpdateTimeout{600'000};
constexpr double kCopyBytesMax = 1 << 30;  // far more than caches hold

struct Options {
    std::string shape = "qwen3-0.6b";
    std::string model{};
    std::string next{};
    std::string launcher = root_dir() + "/launch/pitstop";
    std::vector<std::string> serve{};
    int streams = 4;
    std::int64_t prompt_len = 64;
    std::int64_t quiet_tokens = 48;
    int updates = 4;
    int pauses = 20;
    std::string source = "disk";
    std::string json{};
};

void add_flags(FlagSet& flags, Options& o) {
    flags.add(
        "shape",
        &o.shape,
        "shape of the model with random weights that is made for the run, without --model"
    );
    flags.add("model", &o.model, "a model directory to serve; empty: make a model");
    flags.add(
        "next",
        &o.next,
        "with --model: directory of another checkpoint of the same shape, to update to"
    );
    flags.add("launcher", &o.launcher, "path of the launcher that starts the tree");
    flags.add("streams", &o.streams, "number of requests that decode at once");
    flags.add("prompt-len", &o.prompt_len, "tokens per prompt");
    flags.add("quiet-tokens", &o.quiet_tokens, "output tokens of each stream between two updates");
    flags.add("updates", &o.updates, "number of updates during decoding, and as many while idle");
    flags.add("pauses", &o.pauses, "number of pauses with streams, and as many without");
    flags.add("source", &o.source, "source of the updates: disk, push or push-adopt");
    flags.add("json", &o.json, "file to which the figures are also written");
}

Result<> check(const FlagSet& flags, Options& o) {
    o.serve = flags.positional();
    if (o.model.empty() != o.next.empty()) {
        return make_error(ErrorCode::kInvalidArgument, "give both --model and --next, or neither");
    }
    if (o.streams < 1 || o.prompt_len < 1 || o.quiet_tokens < 1 || o.updates < 1 || o.pauses < 1) {
        return make_error(ErrorCode::kInvalidArgument, "every count must be 1 or more");
    }
    if (o.source != "disk" && o.source != "push" && o.source != "push-adopt") {
        return make_error(ErrorCode::kInvalidArgument, "--source must be disk, push or push-adopt");
    }
    return Ok{};
}

// Owns the two checkpoints; removes them at the end if this program made them.
class Checkpoints {
  public:
    static Result<Checkpoints> get(const Options& o) {
        Checkpoints made;
        made.paths_ = {o.model, o.next};
        if (!o.model.empty()) return made;
        ASSIGN_OR_RETURN(const ModelShape shape, find_shape(o.shape));
        if (const auto problem = invalid(shape)) {
            return make_error(ErrorCode::kInvalidArgument, "shape {}: {}", o.shape, *problem);
        }
        std::string pattern = std::filesystem::temp_directory_path() / "pitstop-stall-XXXXXX";
        if (::mkdtemp(pattern.data()) == nullptr) {
            return make_error(ErrorCode::kUnavailable, "cannot make {}", pattern);
        }
        made.root_ = pattern;
        CheckpointArgs args{.shape = shape, .threads = this_machine().cores};
        for (std::size_t i = 0; i < made.paths_.size(); ++i) {
            args.directory = made.root_ + "/" + o.shape + (i == 0 ? "" : "-next");
            if (i == 1) args.perturbation = Perturbation{.seed = 1, .scale = 0.01};
            RETURN_IF_ERROR(write_checkpoint(args));
            made.paths_[i] = args.directory;
        }
        return made;
    }
    Checkpoints(Checkpoints&& other) noexcept
        : root_(std::exchange(other.root_, {})), paths_(std::move(other.paths_)) {}
    Checkpoints& operator=(Checkpoints&&) = delete;
    ~Checkpoints() {
        std::error_code error;
        if (!root_.empty()) std::filesystem::remove_all(root_, error);
    }
    [[nodiscard]] const std::string& first() const { return paths_[0]; }
    // Returns the checkpoint that is not being served.
    [[nodiscard]] const std::string& next() {
        served_ = 1 - served_;
        return paths_[served_];
    }

  private:
    Checkpoints() = default;
    std::string root_{};
    std::array<std::string, 2> paths_{};
    std::size_t served_ = 0;
};

Result<UpdateWaterfall> update_from_disk(Client& client, const std::string& path) {
    messages::UpdateWeights request;
    request.update.source.path = path;
    request.update.mode = messages::UpdateMode::kStaged;
    request.update.kv_policy = messages::KvPolicy::kKeep;
    request.update.label = std::filesystem::path(path).filename();
    const TimePoint begin = Clock::now();
    ASSIGN_OR_RETURN(
        const messages::UpdateReply reply, client.call(std::move(request), kUpdateTimeout)
    );
    if (!reply.ok) {
        return make_error(
            ErrorCode::kUnavailable,
            "update with {}: {} {}",
            path,
            reply.verdict.code_name(),
            reply.verdict.message
        );
    }
    return UpdateWaterfall{
        .call_s = seconds_since(begin),
        .seconds = reply.seconds,
        .bytes = static_cast<double>(reply.bytes),
    };
}

// Updates from disk, or by a separate process that pushes.
struct Updater {
    const Options& options;
    Client& client;
    std::string run_dir{};

    Result<UpdateWaterfall> update(const std::string& path) const {
        if (options.source == "disk") return update_from_disk(client, path);
        PushCommand push{.launcher = options.launcher, .run_dir = run_dir, .checkpoint = path};
        if (options.source == "push-adopt") push.flags.emplace_back("--adopt");
        return run_push(push);
    }
};

// Pauses in place and continues; returns the milliseconds of both.
Result<double> pause_and_continue(Client& client) {
    messages::PauseGeneration pause;
    pause.mode = messages::PauseMode::kInPlace;
    const TimePoint begin = Clock::now();
    ASSIGN_OR_RETURN(const messages::PauseReply paused, client.call(pause));
    ASSIGN_OR_RETURN(
        const messages::ContinueReply continued, client.call(messages::ContinueGeneration{})
    );
    const double took_ms = seconds_since(begin) * 1e3;
    if (!paused.ok || !continued.ok) {
        return make_error(
            ErrorCode::kUnavailable,
            "pause: {}; continue: {}",
            paused.verdict.message,
            continued.verdict.message
        );
    }
    return took_ms;
}

// Streams decode while updates run, each preceded and followed by a quiet time of the same length.
Result<> measure_updates(const Updater& updater, Checkpoints& checkpoints, StallReport& r) {
    const Options& o = updater.options;
    Client& client = updater.client;
    const std::int64_t room = client.hello().context_len - o.prompt_len;
    ASSIGN_OR_RETURN(
        Streams streams,
        Streams::start(
            {.client = &client,
             .count = o.streams,
             .prompt_len = o.prompt_len,
             .output_len = room,
             .seed = 1}
        )
    );
    RETURN_IF_ERROR(streams.wait_tokens(8, kTokensTimeout));  // the prompts' steps have ended
    const std::int64_t steady_ns = streams.now_ns();
    std::vector<TimeWindow> windows;
    for (int i = 0; i < o.updates; ++i) {
        RETURN_IF_ERROR(streams.wait_tokens(o.quiet_tokens, kTokensTimeout));
        TimeWindow window{.begin_ns = streams.now_ns()};
        ASSIGN_OR_RETURN(const UpdateWaterfall done, updater.update(checkpoints.next()));
        window.end_ns = streams.now_ns();
        windows.push_back(window);
        r.updates.push_back(done);
    }
    RETURN_IF_ERROR(streams.wait_tokens(o.quiet_tokens, kTokensTimeout));
    const std::int64_t updates_end_ns = streams.now_ns();

    std::vector<TimeWindow> pauses;
    std::vector<double> pause_ms;
    for (int i = 0; i < o.pauses; ++i) {
        RETURN_IF_ERROR(streams.wait_tokens(4, kTokensTimeout));
        TimeWindow window{.begin_ns = streams.now_ns()};
        ASSIGN_OR_RETURN(const double took_ms, pause_and_continue(client));
        window.end_ns = streams.now_ns();
        pauses.push_back(window);
        pause_ms.push_back(took_ms);
    }
    RETURN_IF_ERROR(streams.wait_tokens(4, kTokensTimeout));
    RETURN_IF_ERROR(streams.stop());

    std::vector<ChunkEvent> chunks = streams.chunks();
    std::erase_if(chunks, [&](const ChunkEvent& chunk) { return chunk.at_ns < steady_ns; });
    r.pause_gap_ms = summarize(split_gaps(chunks, pauses).inside_ms);
    r.pause_streams_ms = summarize(std::move(pause_ms));
    std::erase_if(chunks, [&](const ChunkEvent& chunk) { return chunk.at_ns > updates_end_ns; });
    SplitGaps gaps = split_gaps(chunks, windows);
    r.gap_ms = summarize(std::move(gaps.outside_ms));
    r.gap_update_ms = summarize(std::move(gaps.inside_ms));
    return Ok{};
}

Result<> measure_idle(const Updater& updater, Checkpoints& checkpoints, StallReport& r) {
    const Options& o = updater.options;
    Client& client = updater.client;
    for (int i = 0; i < o.updates; ++i) {
        ASSIGN_OR_RETURN(const UpdateWaterfall done, updater.update(checkpoints.next()));
        r.idle_updates.push_back(done);
    }
    std::vector<double> pause_ms;
    for (int i = 0; i < o.pauses; ++i) {
        ASSIGN_OR_RETURN(const double took_ms, pause_and_continue(client));
        pause_ms.push_back(took_ms);
    }
    r.pause_idle_ms = summarize(std::move(pause_ms));
    return Ok{};
}

// Sends a prompt whose step takes some seconds, and calls status repeatedly while it runs.
Result<> measure_status(Client& client, StallReport& r) {
    const messages::HelloReply hello = client.hello();
    Random random(11);
    const TimePoint probe_begin = Clock::now();
    RETURN_IF_ERROR(
        client.generate_blocking(random_request(random, kProbeTokens, 1, hello.vocab_size))
    );
    const double tokens_per_s = static_cast<double>(kProbeTokens) / seconds_since(probe_begin);
    const std::int64_t tokens = std::min(
        static_cast<std::int64_t>(kLongPassSeconds * tokens_per_s),
        std::min(kPassTokensMax, hello.context_len - 1)
    );
    Stream stream = client.generate(
        random_request(random, std::max<std::int64_t>(tokens, 1), 1, hello.vocab_size)
    );
    std::vector<double> status_ms;
    while (!stream.next(std::chrono::milliseconds(2))) {
        const TimePoint begin = Clock::now();
        ASSIGN_OR_RETURN(const messages::StatusReply status, client.status());
        const double took_ms = seconds_since(begin) * 1e3;
        for (const messages::ReplicaStatus& replica : status.replicas) {
            if (replica.steps_in_flight == 0) continue;
            status_ms.push_back(took_ms);
            r.long_pass_s = std::max(r.long_pass_s, replica.step_age_s);
        }
    }
    r.status_ms = summarize(std::move(status_ms));
    return Ok{};
}

Result<StallReport> measure(const Options& o) {
    ASSIGN_OR_RETURN(Checkpoints checkpoints, Checkpoints::get(o));
    std::vector<std::string> serve{
        "--model", checkpoints.first(), "--chunked-prefill-size", std::to_string(kPassTokensMax)};
    serve.insert(serve.end(), o.serve.begin(), o.serve.end());
    ASSIGN_OR_RETURN(Tree tree, Tree::start({.launcher = o.launcher, .serve = serve}));
    ASSIGN_OR_RETURN(
        const std::unique_ptr<Client> client,
        Client::connect({.run_dir = tree.run_dir(), .name = "pitstop_stall"})
    );
    const messages::HelloReply hello = client->hello();
    StallReport report{
        .model = hello.model, .tp = static_cast<int>(hello.tp), .num_streams = o.streams};
    ASSIGN_OR_RETURN(const messages::StatusReply status, client->status());
    if (!status.replicas.empty() && !status.replicas[0].workers.empty()) {
        report.device = status.replicas[0].workers[0].device;
    }
    const Updater updater{.options = o, .client = *client, .run_dir = tree.run_dir()};
    // from here on both checkpoints are in the page cache
    RETURN_IF_ERROR(updater.update(checkpoints.next()));
    RETURN_IF_ERROR(updater.update(checkpoints.next()));
    RETURN_IF_ERROR(measure_updates(updater, checkpoints, report));
    RETURN_IF_ERROR(measure_idle(updater, checkpoints, report));
    RETURN_IF_ERROR(measure_status(*client, report));
    tree.stop();
    ASSIGN_OR_RETURN(
        const DigestCost cost, measure_digest_cost(checkpoints.first(), this_machine().cores)
    );
    report.copy_s = cost.copy_s;
    report.digested_copy_s = cost.digested_s;
    const double bytes = std::min(report.idle_updates[0].bytes, kCopyBytesMax);
    report.copy_rate = measure_step_limits(static_cast<std::int64_t>(bytes)).copy_bytes_per_s;
    return report;
}

Result<int> run(const Options& o, const std::vector<std::string>& command) {
    ASSIGN_OR_RETURN(StallReport report, measure(o));
    report.command = command;
    fmt::print("{}", stall_table(report));
    RETURN_IF_ERROR(write_report(o.json, stall_json(report)));
    return 0;
}

}  // namespace
}  // namespace pitstop::bench

int main(int argc, char** argv) {
    using namespace pitstop::bench;
    return run_program<Options>(
        {.name = "pitstop_stall",
         .about = "[flags] [-- flags of pitstop serve]: what updates and pauses cost running "
                  "requests.",
         .add_flags = add_flags,
         .check = check,
         .run = run},
        argc,
        argv
    );
}
