// The state of the tree, of each replica and of each rank.
#pragma once

#include "base/ids.h"
#include "messages/adapters.h"
#include "messages/cache_status.h"
#include "messages/drafts.h"
#include "messages/fields.h"
#include "messages/generation.h"
#include "messages/memory.h"
#include "messages/not_finite.h"
#include "messages/routes.h"
#include "messages/update_status.h"
#include "messages/verdict.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

struct Status {
    static constexpr std::string_view kType = "status";
    static constexpr std::string_view kAbout =
        "client -> admin door -> every scheduler_proc: always answered at once, by "
        "`status_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms",
          timeout_ms,
          "after this time the call fails and names the replicas that have not answered; 0: the "
          "default");
    }
};

struct WorkerStatus {
    Rank rank{};
    std::int64_t pid = 0;
    std::string device{};
    std::string device_uuid{};
    std::string device_why{};
    std::vector<std::string> libraries{};
    std::int64_t weight_bytes = 0;
    std::int64_t kv_bytes = 0;
    std::int64_t graph_bytes = 0;
    std::int64_t graph_bytes_max = 0;
    std::string update_mode{};
    std::string update_mode_why{};
    int node = 0;
    std::string host{};
    std::string address{};
    std::int64_t state_bytes = 0;
    std::int64_t num_checkpoints = 0;
    int ep = 1;

    template <class F>
    void fields(F&& f) {
        f("rank", rank, "tensor-parallel rank");
        f("pid", pid, "process id, on its machine");
        f("device", device, "the device that the rank runs on");
        f("device_uuid", device_uuid, "its name in an ipc source's handles: GPU-..., CPU-...");
        f("device_why",
          device_why,
          "the reason of --device auto for this device; empty: it was chosen by name");
        f("libraries",
          libraries,
          "on a GPU: NVIDIA's libraries that were found, with version and file");
        f("weight_bytes", weight_bytes, "bytes of weights");
        f("kv_bytes", kv_bytes, "bytes of KV");
        f("graph_bytes",
          graph_bytes,
          "bytes of the rank's GPU for graphs of steps, measured when they were made");
        f("graph_bytes_max",
          graph_bytes_max,
          "bytes reserved for them, which KV does not get; 0: no graphs are made");
        f("update_mode",
          update_mode,
          "how updates are staged: staged (a second copy on the device), host (in page-locked "
          "host memory, uploaded by the commit), lend (a second copy in the memory of KV) or "
          "direct (no second copy)");
        f("update_mode_why", update_mode_why, "the reason, with the byte counts that decided it");
        f("node", node, "its machine's number in the replica, from 0: the head");
        f("host", host, "that machine's name; empty: the replica is on one machine");
        f("address", address, "the address of its connection to the head; empty: the head's own");
        f("state_bytes",
          state_bytes,
          "bytes of one request's recurrent state; 0: the model has none");
        f("num_checkpoints", num_checkpoints, "places for copies of such a state");
        f("ep", ep, "groups of ranks over which experts are divided (--ep)");
    }
    friend bool operator==(const WorkerStatus&, const WorkerStatus&) = default;
};

struct FinishCount {
    FinishReason reason = FinishReason::kStop;
    std::int64_t requests = 0;

    template <class F>
    void fields(F&& f) {
        f("reason", reason, "stop, length, abort or error");
        f("requests", requests, "requests that ended for this reason");
    }
    friend bool operator==(const FinishCount&, const FinishCount&) = default;
};

// The state of a replica. If several states apply, the first one is reported.
enum class ReplicaState : std::uint8_t {
    kLoading,
    kTorn,
    kReleased,
    kAwaitingWeights,
    kPaused,
    kPausing,
    kUpdating,
    kRunning,
};
template <>
struct EnumNames<ReplicaState> {
    static constexpr std::array<std::string_view, 8> kNames{
        "loading",
        "torn",
        "released",
        "awaiting_weights",
        "paused",
        "pausing",
        "updating",
        "running"};
};

// An address where a door listens.
struct ListenerStatus {
    std::string door{};
    std::string endpoint{};
    std::int64_t connections = 0;
    std::int64_t connections_max = 0;
    std::int64_t accepted_total = 0;
    std::int64_t refused_total = 0;
    std::int64_t handshakes_failed_total = 0;
    std::int64_t keys_refused_total = 0;

    template <class F>
    void fields(F&& f) {
        f("door", door, "data, admin or nodes");
        f("endpoint", endpoint, "ipc:///path or tcp://address:port");
        f("connections", connections, "connections that are open now, greeted or not");
        f("connections_max", connections_max, "a connection beyond this many is closed at once");
        f("accepted_total", accepted_total, "connections that were accepted");
        f("refused_total", refused_total, "connections beyond the limit");
        f("handshakes_failed_total",
          handshakes_failed_total,
          "connections that ended before their first accepted message: garbage, silence, and at "
          "a tcp door no key or a wrong one");
        f("keys_refused_total", keys_refused_total, "tcp: keys that are not allowed at this door");
    }
    friend bool operator==(const ListenerStatus&, const ListenerStatus&) = default;
};

// One replica's state.
struct ReplicaStatus {
    static constexpr std::string_view kType = "replica_status";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: one replica's part of a status.";
    CallId call{};
    ReplicaId replica{};
    ReplicaState state{};
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::int64_t num_waiting = 0;
    std::int64_t num_running = 0;
    std::int64_t num_steps = 0;
    std::int64_t steps_in_flight = 0;
    double step_age_s = 0;
    std::int64_t pages_total = 0;
    std::int64_t pages_free = 0;
    std::int64_t pages_cached = 0;
    std::int64_t pages_held = 0;
    std::int64_t page_size = 0;
    std::int64_t prompt_tokens_total = 0;
    std::int64_t cached_tokens_total = 0;
    std::int64_t output_tokens_total = 0;
    std::int64_t requests_total = 0;
    std::int64_t retractions_total = 0;
    std::int64_t refused_total = 0;
    std::vector<WorkerStatus> workers{};
    bool has_weights = true;
    std::string pause_mode{};
    double paused_s = 0;
    std::int64_t pauses_total = 0;
    double paused_s_total = 0;
    std::vector<TagMemory> memory{};
    std::int64_t num_retracted = 0;
    std::int64_t running_max = 0;
    std::int64_t queue_len_max = 0;
    double output_tokens_per_s = 0;
    std::int64_t recomputed_tokens_total = 0;
    std::int64_t spanning_requests_total = 0;
    std::vector<CacheHits> cache_hits{};
    std::vector<FinishCount> finished{};
    std::vector<NotFiniteCount> not_finite{};
    std::string pause_expiry{};
    std::vector<ListenerStatus> listeners{};
    std::vector<AdapterStatus> adapters{};
    std::vector<LostAdapter> lost_adapters{};
    std::optional<ExpertLoad> expert_load{};
    std::optional<CheckpointStatus> checkpoints{};
    std::optional<DraftCounts> drafts{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the tokenizer's number for the call; 0 outside the tree");
        f("replica", replica, "the sender");
        f("state", state, "the replica's state; released: some memory is released");
        f("epoch", epoch, "weight version that serves");
        f("label", label, "its label");
        f("digest", digest, "its digest");
        f("num_waiting", num_waiting, "requests that hold no pages");
        f("num_running", num_running, "requests in prefill or decode");
        f("num_steps", num_steps, "steps finished");
        f("steps_in_flight", steps_in_flight, "plans sent and not answered");
        f("step_age_s", step_age_s, "seconds since the oldest plan in flight was sent");
        f("pages_total", pages_total, "KV pages");
        f("pages_free", pages_free, "free pages among pages_total");
        f("pages_cached", pages_cached, "pages that only the prefix cache holds");
        f("pages_held", pages_held, "cached pages of conversations between turns, once for each");
        f("page_size", page_size, "tokens per page");
        f("prompt_tokens_total", prompt_tokens_total, "prompt tokens of admitted requests");
        f("cached_tokens_total", cached_tokens_total, "prompt tokens found in the prefix cache");
        f("output_tokens_total", output_tokens_total, "tokens emitted");
        f("requests_total", requests_total, "requests received");
        f("retractions_total", retractions_total, "retractions");
        f("refused_total", refused_total, "messages refused without an answer to their sender");
        f("workers", workers, "one per rank");
        f("has_weights",
          has_weights,
          "false: nothing is generated until the next complete update (none has arrived yet, the "
          "weights were released and not kept, or they are torn)");
        f("pause_mode", pause_mode, "abort, in_place, retract or wait; empty: not paused");
        f("paused_s", paused_s, "seconds of the pause so far; 0: not paused");
        f("pauses_total", pauses_total, "pauses begun");
        f("paused_s_total", paused_s_total, "seconds paused, this pause included");
        f("memory", memory, "by tag, summed over the ranks");
        f("num_retracted", num_retracted, "waiting requests that ran before and were retracted");
        f("running_max", running_max, "requests that may run at once");
        f("queue_len_max", queue_len_max, "requests that may wait");
        f("output_tokens_per_s", output_tokens_per_s, "over about a second; 0 while paused");
        f("recomputed_tokens_total",
          recomputed_tokens_total,
          "tokens of retracted requests that were prefilled again");
        f("spanning_requests_total",
          spanning_requests_total,
          "requests whose output was sampled under more than one version or label");
        f("cache_hits", cache_hits, "by lag, ascending, without lags that had no hits");
        f("finished", finished, "one per reason");
        f("not_finite", not_finite, "requests that ended because of infinities or NaNs, by kind");
        f("pause_expiry",
          pause_expiry,
          "the result of the latest pause's max_pause_s once it has passed: generation "
          "continued, or why it stays paused (it continues when it may); empty: it has not passed");
        f("listeners", listeners, "its door for ranks of other machines, if it has one");
        f("adapters", adapters, "the loaded adapters, by name");
        f("lost_adapters", lost_adapters, "lost in a restart, and neither loaded nor unloaded since"
        );
        f("expert_load",
          expert_load,
          "tokens per expert, at most a second old while steps run; absent: for the reasons "
          "given in StatusReply, which has the sum instead of each replica's");
        f("checkpoints",
          checkpoints,
          "of requests' recurrent state; absent: a request has no such state");
        f("drafts", drafts, "the drafts of all requests; absent: speculation is off");
    }
};

// The version that served last before a restart and could not be restored.
struct LostVersion {
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::string path{};
    std::string why{};

    template <class F>
    void fields(F&& f) {
        f("epoch", epoch, "its epoch; the next update's must be newer");
        f("label", label, "its label");
        f("digest", digest, "its digest");
        f("path", path, "the directory that it came from; empty: no directory had all of it");
        f("why", why, "why it could not be loaded again");
    }
    friend bool operator==(const LostVersion&, const LostVersion&) = default;
};

enum class KeepState : std::uint8_t { kIdle, kWriting, kKept, kFailed };
template <>
struct EnumNames<KeepState> {
    static constexpr std::array<std::string_view, 4> kNames{"idle", "writing", "kept", "failed"};
};

// The progress of --keep-committed.
struct KeepStatus {
    KeepState state{};
    Epoch epoch{};
    std::string digest{};
    double age_s = 0;
    std::string path{};
    std::string path_digest{};
    std::string message{};
    std::int64_t kept_total = 0;
    std::int64_t failed_total = 0;
    std::int64_t superseded_total = 0;

    template <class F>
    void fields(F&& f) {
        f("state", state, "the latest committed version's copy on disk; idle: no commit yet");
        f("epoch", epoch, "that version's epoch");
        f("digest", digest, "its digest");
        f("age_s", age_s, "seconds since `state` began");
        f("path", path, "the newest version that is complete on the disk; empty: none yet");
        f("path_digest", path_digest, "its digest");
        f("message", message, "failed: what went wrong");
        f("kept_total", kept_total, "versions that were kept");
        f("failed_total", failed_total, "versions that could not be written");
        f("superseded_total",
          superseded_total,
          "versions abandoned because a newer one was committed");
    }
    friend bool operator==(const KeepStatus&, const KeepStatus&) = default;
};

struct StatusReply {
    static constexpr std::string_view kType = "status_reply";
    static constexpr std::string_view kAbout = "admin door -> client: the whole tree.";
    CallId call{};
    std::string server{};
    std::string model{};
    double uptime_s = 0;
    std::int64_t clients = 0;
    std::int64_t open_requests = 0;
    std::int64_t refused_total = 0;
    std::vector<ReplicaStatus> replicas{};
    bool is_ready = false;
    std::string weights_path{};
    std::vector<UpdateRecord> updates{};
    std::int64_t updates_total = 0;
    std::int64_t updates_failed_total = 0;
    std::vector<ListenerStatus> listeners{};
    std::optional<LostVersion> lost{};
    std::optional<KeepStatus> keep{};
    std::optional<CollectingStatus> collecting{};
    std::optional<SessionStatus> session{};
    std::optional<LostCalls> lost_calls{};
    std::optional<ExpertLoad> expert_load{};
    std::vector<UpdateRecord> adapter_updates{};
    std::int64_t adapter_updates_total = 0;
    std::int64_t adapter_updates_failed_total = 0;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("server", server, "pitstop and its version");
        f("model", model, "the served model's name");
        f("uptime_s", uptime_s, "seconds since the tree was ready");
        f("clients", clients, "clients with open requests");
        f("open_requests", open_requests, "requests not yet answered in full");
        f("refused_total", refused_total, "messages refused at the doors");
        f("replicas", replicas, "one per replica");
        f("is_ready",
          is_ready,
          "true from the first weights on: at once, or with --wait-for-initial-weights (and "
          "after a restart that lost its version) from the first complete update on. Stays true "
          "while paused, released or torn");
        f("weights_path",
          weights_path,
          "the checkpoint directory that serves; empty: no single directory has all of it");
        f("updates", updates, "the latest 16 updates of the model's weights, oldest first");
        f("updates_total",
          updates_total,
          "updates, rollbacks and commits of the model's weights that took effect");
        f("updates_failed_total",
          updates_failed_total,
          "failed updates, rollbacks and commits of the model's weights");
        f("listeners", listeners, "one per place where a door listens");
        f("lost",
          lost,
          "the version that a restart could not restore: the tree awaits weights. Absent: none, "
          "or a complete update has arrived since");
        f("keep", keep, "what --keep-committed has done; absent: it is off");
        f("collecting", collecting, "the update that calls without a session make; absent: none");
        f("session", session, "the current session or stage; absent: none");
        f("lost_calls",
          lost_calls,
          "calls without a session that take no effect: the next call that lets generation "
          "continue is refused once, unless every tensor has arrived since; absent: none");
        f("expert_load",
          expert_load,
          "tokens per expert, summed over replicas, at most a second old while steps run; absent: "
          "no step has run, the model has no experts, or more than 65,536 of them in all layers");
        f("adapter_updates",
          adapter_updates,
          "the latest 16 loads, rollbacks and unloads of adapters, oldest first");
        f("adapter_updates_total",
          adapter_updates_total,
          "loads, rollbacks and unloads of adapters that took effect");
        f("adapter_updates_failed_total",
          adapter_updates_failed_total,
          "failed and refused loads, rollbacks and unloads of adapters");
    }
};

// Returns the adapters that every replica has, by name, with the first replica's counts. An adapter
// that a replica has lost is not among them: requests there do not get it.
[[nodiscard]] std::vector<AdapterStatus> loaded_adapters(const StatusReply& status);

}  // namespace pitstop::messages
