#include "base/flags.h"
#include "client/command/cli.h"
#include "client/command/cli_place.h"
#include "client/command/cli_print.h"
#include "client/json_text.h"

namespace pitstop {
namespace {

std::string size_text(std::int64_t bytes) {
    if (bytes < (std::int64_t{1} << 30))
        return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
    return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}

// Returns the memory of a tag on a rank; after a release, how much a resume will take.
std::string memory_text(
    const messages::ReplicaStatus& replica, messages::MemoryTag tag, std::int64_t bytes
) {
    for (const messages::TagMemory& memory : replica.memory) {
        if (memory.tag == tag && memory.state != messages::MemoryState::kResident)
            return fmt::format("{} ({})", size_text(bytes), name_of(memory.state));
    }
    return size_text(bytes);
}

// Returns where a rank of a replica on several machines is: "on node 1 (host, 10.0.0.8), "; empty
// on a single machine.
std::string machine_of(const messages::WorkerStatus& worker) {
    if (worker.host.empty()) return "";
    const std::string at = worker.address.empty() ? "the head" : worker.address;
    return fmt::format("on node {} ({}, {}), ", worker.node, worker.host, at);
}

void print_listener(const messages::ListenerStatus& listener) {
    fmt::print(
        "{:<5} door   {} of {} connections{} at {}\n",
        listener.door,
        listener.connections,
        listener.connections_max,
        listener.refused_total > 0 ? fmt::format(" ({} refused)", listener.refused_total) : "",
        listener.endpoint
    );
}

void print_adapters(const std::vector<messages::AdapterStatus>& adapters) {
    for (const messages::AdapterStatus& each : adapters) {
        fmt::print(
            "  {}, digest {}, {} bytes{}{}, {} requests{}; {} in all, {} output tokens{}\n",
            adapter_text(each.adapter),
            each.adapter.digest.substr(0, 8),
            each.bytes,
            each.pinned ? ", pinned" : "",
            each.evicted ? ", evicted" : "",
            each.num_requests,
            each.num_older == 0 ? "" : fmt::format(", {} with older versions", each.num_older),
            each.requests_total,
            each.output_tokens_total,
            each.evictions_total == 0 ? "" : fmt::format(", {} evictions", each.evictions_total)
        );
    }
}

void print_lost_adapters(const std::vector<messages::LostAdapter>& adapters) {
    for (const messages::LostAdapter& each : adapters) {
        fmt::print(
            "  {}, digest {}, was lost: load it again{}\n",
            adapter_text(each.adapter),
            each.adapter.digest.substr(0, 8),
            each.path.empty() ? "" : fmt::format(" from {}", each.path)
        );
    }
}

// Prints the tokens, the drafts if there are any, and the kept recurrent states if the model has
// states.
void print_tokens(const messages::ReplicaStatus& replica) {
    fmt::print(
        "  tokens     {} prompt ({} cached), {} output\n",
        replica.prompt_tokens_total,
        replica.cached_tokens_total,
        replica.output_tokens_total
    );
    if (const auto& drafts = replica.drafts) {
        fmt::print(
            "  drafts     {} verified, {} right; {} passes of requests\n",
            drafts->drafted,
            drafts->accepted,
            drafts->passes
        );
    }
    const auto& states = replica.checkpoints;
    if (!states) return;
    fmt::print(
        "  states     {} kept, {} free of {} places; {} prompt tokens replayed\n",
        states->places_total - states->places_free,
        states->places_free,
        states->places_total,
        states->replayed_tokens_total
    );
}

void print_replica(const messages::ReplicaStatus& replica) {
    const std::int64_t pages_used = replica.pages_total - replica.pages_free - replica.pages_cached;
    fmt::print(
        "replica {:<3}  {}, {}{}{}\n",
        raw(replica.replica),
        name_of(replica.state),
        replica.has_weights ? "" : "without weights since ",
        version_text(replica.epoch, replica.label),
        replica.digest.empty() ? "" : " digest " + replica.digest.substr(0, 8)
    );
    fmt::print(
        "  requests   {} running, {} waiting, {} received, {} retractions\n",
        replica.num_running,
        replica.num_waiting,
        replica.requests_total,
        replica.retractions_total
    );
    fmt::print(
        "  pages      {} in use, {} cached, {} free of {} ({} tokens each)\n",
        pages_used,
        replica.pages_cached,
        replica.pages_free,
        replica.pages_total,
        replica.page_size
    );
    print_tokens(replica);
    fmt::print(
        "  steps      {} done, {} in flight{}\n",
        replica.num_steps,
        replica.steps_in_flight,
        replica.steps_in_flight > 0 ? fmt::format(", the oldest {:.3f} s ago", replica.step_age_s)
                                    : ""
    );
    print_adapters(replica.adapters);
    print_lost_adapters(replica.lost_adapters);
    if (!replica.pause_mode.empty())
        fmt::print("  paused     {} for {:.1f} s\n", replica.pause_mode, replica.paused_s);
    if (!replica.pause_expiry.empty()) fmt::print("  max_pause  {}\n", replica.pause_expiry);
    for (const messages::TagMemory& memory : replica.memory) {
        if (memory.state == messages::MemoryState::kResident) continue;
        fmt::print("  {:<10} {}\n", name_of(memory.tag), name_of(memory.state));
    }
    for (const messages::WorkerStatus& worker : replica.workers) {
        fmt::print(
            "  rank {:<3}   {}pid {}, {}, weights {}{}, KV {}{}\n",
            raw(worker.rank),
            machine_of(worker),
            worker.pid,
            worker.device,
            memory_text(replica, messages::MemoryTag::kWeights, worker.weight_bytes),
            worker.ep == 1 ? "" : fmt::format(" (experts over {} groups)", worker.ep),
            memory_text(replica, messages::MemoryTag::kKvCache, worker.kv_bytes),
            worker.graph_bytes_max == 0 ? ""
                                        : fmt::format(
                                              ", graphs {} of {}",
                                              size_text(worker.graph_bytes),
                                              size_text(worker.graph_bytes_max)
                                          )
        );
        if (!worker.device_why.empty())
            fmt::print("    device   --device auto: {}\n", worker.device_why);
        if (!worker.update_mode.empty())
            fmt::print("    updates  {}: {}\n", worker.update_mode, worker.update_mode_why);
    }
    for (const messages::ListenerStatus& listener : replica.listeners) print_listener(listener);
}

}  // namespace

int cli_status(int argc, char** argv) {
    FlagSet flags("pitstop status", "Prints the state of a running tree.");
    CliPlace place;
    bool json = false;
    double timeout_s = 5;
    place.add_to(flags);
    flags.add("json", &json, "print one JSON object");
    flags.add("timeout-s", &timeout_s, "seconds to wait, for the connection and for the answer");
    if (const auto code = flags.read(argc, argv)) return *code;
    if (auto checked = place.check(CliPlace::Needs::kAdminDoor); !checked)
        return flags.fail(checked.error());

    const std::chrono::milliseconds timeout(static_cast<std::int64_t>(timeout_s * 1000));
    auto client = place.connect(timeout);
    if (!client) return cli_fail(client.error());
    const Result<messages::StatusReply> status = (*client)->status(timeout);
    if (!status) return cli_fail(status.error());
    if (json) {
        fmt::print("{}\n", json_text::to_json(*status).dump());
        return 0;
    }
    fmt::print(
        "{}  serves {}, up {:.0f} s\n{} open requests of {} clients, {} messages refused\n",
        status->server,
        status->model,
        status->uptime_s,
        status->open_requests,
        status->clients,
        status->refused_total
    );
    for (const messages::ListenerStatus& listener : status->listeners) print_listener(listener);
    if (const auto& lost = status->lost) {
        fmt::print(
            "lost in a restart: {}, digest {}: {}; a complete update is awaited\n",
            version_text(lost->epoch, lost->label),
            lost->digest,
            lost->why
        );
    }
    if (const auto& keep = status->keep) {
        fmt::print(
            "keep-committed: epoch {} {} for {:.0f} s{}{}; whole on the disk: {}\n",
            raw(keep->epoch),
            name_of(keep->state),
            keep->age_s,
            keep->message.empty() ? "" : ": ",
            keep->message,
            keep->path.empty() ? "none" : keep->path
        );
    }
    for (const messages::ReplicaStatus& replica : status->replicas) print_replica(replica);
    return 0;
}

}  // namespace pitstop
