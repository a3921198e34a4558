// A complete external checkpoint engine in one command: maps a checkpoint, pushes it into a running
// tree, and prints where the time went.
#include "base/flags.h"
#include "checkpoint/safetensors.h"
#include "client/command/cli.h"
#include "client/command/cli_place.h"
#include "client/command/cli_print.h"
#include "client/json_text.h"
#include "client/weight_pusher.h"
#include "messages/enum_named.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <unistd.h>

namespace pitstop {
namespace {

constexpr int kBarCells = 40;

struct PushFlags {
    CliPlace place{};
    std::string label{};
    std::string kv_policy = "keep";
    std::int64_t bucket_mib = 0;
    int workers = 0;
    bool adopt = false;
    bool no_digest = false;
    bool partial = false;
    bool json = false;
    double timeout_s = 600;

    void add_to(FlagSet& flags) {
        place.add_to(flags);
        flags.add("label", &label, "label of the new version");
        flags.add("kv-policy", &kv_policy, "running requests: keep, recompute, drain or abort");
        flags.add(
            "bucket-size",
            &bucket_mib,
            "MiB per bucket, up to 1048576; the workers share four buckets; 0: 4 MiB, for GPUs 32 "
            "MiB"
        );
        flags.add(
            "workers",
            &workers,
            "threads that fill buckets; 0: a quarter of the cores (1 to 4), for GPUs half (1 to 16)"
        );
        flags.add("adopt", &adopt, "the workers compute from the pushed memory, without a copy");
        flags.add("no-digest", &no_digest, "commit without declaring a digest");
        flags.add(
            "partial",
            &partial,
            "the checkpoint has only some tensors; all other tensors stay unchanged"
        );
        flags.add("json", &json, "print the whole answer as one JSON object");
        flags.add("timeout-s", &timeout_s, "seconds for the whole push, more than 0");
    }

    Result<PushOptions> read() const {
        const auto bad = [](std::string_view flag, std::string_view accepted) {
            return make_error(ErrorCode::kInvalidArgument, "--{} takes {}", flag, accepted);
        };
        PushOptions options;
        RETURN_IF_ERROR(place.check(CliPlace::Needs::kAdminDoor));
        if (bucket_mib < 0 || bucket_mib > (1 << 20)) return bad("bucket-size", "0 to 1048576 MiB");
        if (workers < 0 || workers > 1024) return bad("workers", "0 to 1024");
        if (!(timeout_s > 0 && timeout_s < 1e6)) return bad("timeout-s", "more than 0 seconds");
        const auto policy = messages::enum_named<messages::KvPolicy>(kv_policy);
        if (!policy) return bad("kv-policy", "keep, recompute, drain or abort");
        options.kv_policy = *policy;
        options.label = label;
        options.bucket_bytes = bucket_mib << 20;
        options.num_threads = workers;
        options.adopt = adopt;
        options.declare_digest = !no_digest;
        options.partial = partial;
        options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000));
        return options;
    }
};

// Draws a progress bar on a terminal; nothing elsewhere.
void draw_bar(const PushProgress& progress) {
    static int last_cells = -1;
    const double share = static_cast<double>(progress.bytes_sent) /
                         static_cast<double>(std::max<std::int64_t>(1, progress.bytes_total));
    const int cells = static_cast<int>(share * kBarCells);
    if (cells == last_cells) return;
    last_cells = cells;
    fmt::print(
        stderr,
        "\r[{:<{}}] {:5.1f} % of {:.1f} MiB",
        std::string(static_cast<std::size_t>(cells), '#'),
        kBarCells,
        share * 100,
        static_cast<double>(progress.bytes_total) / (1 << 20)
    );
    if (progress.bytes_sent == progress.bytes_total) fmt::print(stderr, "\n");
    std::fflush(stderr);
}

void print_report(const PushReport& report) {
    const double mib = static_cast<double>(report.bytes) / (1 << 20);
    fmt::print(
        "{}: {}, digest {}{}\n",
        name_of(report.reply.state),
        version_text(report.reply.epoch, report.reply.label),
        report.reply.digest,
        report.digest.empty() ? "" : ", as declared"
    );
    fmt::print(
        "  {:.1f} MiB to {} workers in {} buckets: {:.3f} s, {:.0f} MiB/s\n",
        mib,
        report.num_workers,
        report.num_buckets,
        report.push_s,
        mib / std::max(report.push_s, 1e-9)
    );
    fmt::print(
        "  here: fill {:.3f} s, wait {:.3f} s; there: {}, vote {:.3f} ms, pause {:.3f} ms, commit "
        "{:.3f} ms; {:.3f} s in all\n",
        report.fill_s,
        report.wait_s,
        text_of(report.reply.seconds.stage),
        report.reply.seconds.vote_s * 1000,
        report.reply.seconds.pause_s * 1000,
        report.reply.seconds.commit_s * 1000,
        report.total_s
    );
    for (const messages::ReplicaOutcome& replica : report.reply.replicas) {
        for (const messages::RankOutcome& rank : replica.ranks) {
            fmt::print(
                "  replica {} rank {}: {:.1f} MiB, {}, commit {:.3f} ms\n",
                raw(replica.replica),
                raw(rank.rank),
                static_cast<double>(rank.bytes) / (1 << 20),
                text_of(rank.stage),
                rank.commit_s * 1000
            );
        }
    }
}

Result<int> push(const PushFlags& flags, const PushOptions& options, const std::string& directory) {
    ASSIGN_OR_RETURN(
        const checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::open(directory)
    );
    std::vector<TensorToPush> tensors;
    for (const checkpoint::StoredTensor& stored : checkpoint.tensors()) {
        tensors.push_back({
            .name = stored.spec.name,
            .dtype = std::string(name_of(stored.spec.dtype)),
            .shape = stored.spec.shape,
            .read = [&checkpoint, &stored](
                        std::int64_t begin, std::span<std::byte> out
                    ) { return checkpoint.read(stored, begin, out); },
            .data = checkpoint.mapped(stored).data(),
            .is_whole = [&checkpoint, &stored] { return checkpoint.is_whole(stored); },
        });
    }
    ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, flags.place.connect(options.timeout));
    ASSIGN_OR_RETURN(const PushReport report, WeightPusher(*client, options).push(tensors));
    if (flags.json) {
        fmt::print("{}\n", json_text::to_json(report).dump());
    } else {
        print_report(report);
    }
    return 0;
}

}  // namespace

int cli_push(int argc, char** argv) {
    FlagSet flags("pitstop push DIR", "Pushes a checkpoint into a tree while it generates.");
    PushFlags options;
    options.add_to(flags);
    if (const auto code = flags.read(argc, argv)) return *code;
    if (flags.positional().size() != 1)
        return flags.fail({ErrorCode::kInvalidArgument, "name one checkpoint directory"});
    Result<PushOptions> push_options = options.read();
    if (!push_options) return flags.fail(push_options.error());
    if (::isatty(STDERR_FILENO) == 1) push_options->on_progress = draw_bar;
    const Result<int> pushed = push(options, *push_options, flags.positional().front());
    return pushed ? *pushed : cli_fail(pushed.error());
}

}  // namespace pitstop
