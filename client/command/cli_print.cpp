#include "client/command/cli_print.h"

#include "client/command/cli.h"

#include <algorithm>
#include <cstdio>

namespace pitstop {

std::string version_text(Epoch epoch, const std::string& label) {
    return label.empty() ? fmt::format("epoch {}", raw(epoch))
                         : fmt::format("version {} ({})", raw(epoch), label);
}

std::string adapter_text(const messages::AdapterVersion& adapter) {
    return fmt::format(
        "adapter '{}' {}", adapter.name, version_text(adapter.version, adapter.label)
    );
}

void print_collected(const std::optional<messages::CollectedVersion>& update) {
    if (!update) return;
    fmt::print(
        "the collected update took effect: {}, digest {}, {} calls, {} bytes\n",
        version_text(update->epoch, update->label),
        update->digest,
        update->calls,
        update->bytes
    );
}

namespace {

// Prints the first problems of each rank. The answer's message is shortened; --json
// prints all of it.
void print_problems(const messages::UpdateReply& reply) {
    constexpr std::size_t kShownMax = 8;
    for (const messages::ReplicaOutcome& replica : reply.replicas) {
        for (const messages::RankOutcome& rank : replica.ranks) {
            for (std::size_t i = 0; i < std::min(rank.problems.size(), kShownMax); ++i)
                fmt::print("    rank {}: {}\n", raw(rank.rank), rank.problems[i]);
            if (rank.problems.size() > kShownMax) {
                fmt::print(
                    "    rank {}: and {} more\n", raw(rank.rank), rank.problems.size() - kShownMax
                );
            }
        }
    }
}

// Prints the times of an update. If a call of its own staged the version, the time between the two
// calls is not counted.
void print_times(const messages::UpdateReply& reply) {
    const messages::UpdateSeconds& spent = reply.seconds;
    const double mib = static_cast<double>(reply.bytes) / (1 << 20);
    const bool is_staged = reply.state == messages::UpdateState::kStaged;
    const bool was_staged_before = !is_staged && spent.vote_s > spent.total_s;
    fmt::print("  {:.1f} MiB; {}", mib, text_of(spent.stage));
    if (was_staged_before) fmt::print("; staged {:.3f} s before this commit", spent.vote_s);
    if (!is_staged && !was_staged_before) fmt::print(", vote {:.3f} ms", spent.vote_s * 1000);
    if (!is_staged) {
        fmt::print(
            ", pause {:.3f} ms, commit {:.3f} ms", spent.pause_s * 1000, spent.commit_s * 1000
        );
    }
    fmt::print("; {:.3f} s in {}\n", spent.total_s, was_staged_before ? "this call" : "all");
}

}  // namespace

void print_update(const messages::UpdateReply& reply) {
    const std::string version =
        reply.adapter.empty()
            ? version_text(reply.epoch, reply.label)
            : adapter_text({.name = reply.adapter, .version = reply.epoch, .label = reply.label});
    if (!reply.ok) {  // the update did not happen, so there are no times and counts
        const bool serves = reply.state == messages::UpdateState::kServing ||
                            reply.state == messages::UpdateState::kStaged;
        const std::string state = serves ? "serves on" : std::string(name_of(reply.state));
        if (reply.adapter.empty()) {
            fmt::print("not done: {} {}, digest {}\n", version, state, reply.digest);
        } else {  // the reply's version is the model's
            fmt::print(
                "not done: adapter '{}' {}\n", reply.adapter, serves ? "stays as it was" : state
            );
        }
        return print_problems(reply);
    }
    fmt::print("{}: {}, digest {}\n", name_of(reply.state), version, reply.digest);
    print_times(reply);
    if (reply.state == messages::UpdateState::kStaged) return print_problems(reply);
    for (const messages::ReplicaOutcome& replica : reply.replicas) {
        fmt::print(
            "  replica {}: requests: {} kept, {} recomputed, {} drained, {} aborted\n",
            raw(replica.replica),
            replica.num_kept,
            replica.num_recomputed,
            replica.num_drained,
            replica.num_aborted
        );
        if (replica.num_steps > 0) {
            fmt::print(
                "    {} steps meanwhile: {:.3f} ms each, {:.3f} ms before, the longest {:.3f} ms\n",
                replica.num_steps,
                replica.step_s * 1000,
                replica.step_s_before * 1000,
                replica.gap_s * 1000
            );
        }
    }
    print_problems(reply);
}

void print_memory(const messages::MemoryReply& reply) {
    constexpr double kMib = 1 << 20;
    print_collected(reply.update);
    for (const messages::MemoryPart& part : reply.parts) {
        for (const messages::TagMemory& memory : part.tags) {
            const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / kMib; };
            fmt::print(
                "replica {}: {:<8} is {}: {:.1f} MiB in memory{}{}\n",
                raw(part.replica),
                name_of(memory.tag),
                name_of(memory.state),
                mib(memory.resident_bytes),
                memory.freed_bytes == 0
                    ? ""
                    : fmt::format(", {:.1f} MiB went back", mib(memory.freed_bytes)),
                memory.host_bytes == 0
                    ? ""
                    : fmt::format(", {:.1f} MiB kept in host memory", mib(memory.host_bytes))
            );
        }
        if (!part.has_weights)
            fmt::print("replica {}: without weights until the next update\n", raw(part.replica));
    }
}

}  // namespace pitstop
