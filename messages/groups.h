// Groups receive broadcasts from a trainer: every worker joins a group before an update names the
// group as its source (weight_source.h). Joining and leaving have deadlines. If a group fails,
// every rank forgets it, and the next group can be joined at once.
//
// The trainer is rank 0 of the group. A worker's rank is rank_offset + replica * tp + rank.
#pragma once

#include "base/ids.h"
#include "messages/control_call.h"
#include "messages/fields.h"
#include "messages/verdict.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

enum class GroupBackend : std::uint8_t {
    kNccl,  // NCCL's broadcast
    kHost,  // pitstop's own broadcast, over TCP; the client library has the trainer's side
};
template <>
struct EnumNames<GroupBackend> {
    static constexpr std::array<std::string_view, 2> kNames{"nccl", "host"};
};

// The source of an NCCL group's unique id, for each worker.
enum class Rendezvous : std::uint8_t {
    kSglang,  // from torch's TCPStore, key /G/G//cuda//0, before the first broadcast
    // at once from torch's TCPStore, key /broadcast_from/0/0, or in the call; then all ranks sum
    // one float, as vLLM's ranks do
    kVllm,
    kDirect,  // in the call
};
template <>
struct EnumNames<Rendezvous> {
    static constexpr std::array<std::string_view, 3> kNames{"sglang", "vllm", "direct"};
};

struct GroupSpec {
    std::string group{};
    GroupBackend backend = GroupBackend::kNccl;
    Rendezvous rendezvous = Rendezvous::kSglang;
    std::string address{};
    std::int64_t port = 0;
    std::int64_t store_version = 2;
    std::int64_t rank_offset = 1;
    std::int64_t world_size = 0;
    RawArray<std::uint8_t> unique_id{};

    template <class F>
    void fields(F&& f) {
        f("group", group, "its name");
        f("backend", backend, "nccl or host");
        f("rendezvous", rendezvous, "nccl: sglang, vllm or direct");
        f("address", address, "the trainer's host");
        f("port", port, "the trainer's port");
        f("store_version",
          store_version,
          "sglang, vllm: the TCPStore's protocol: 2 (torch 2.x), or 1 (torch 1.x)");
        f("rank_offset", rank_offset, "the first worker's rank in the group");
        f("world_size", world_size, "ranks of the group, the trainer's among them");
        f("unique_id", unique_id, "direct; vllm, in place of a store: NCCL's 128 bytes");
    }
    friend bool operator==(const GroupSpec&, const GroupSpec&) = default;
};

struct InitGroup {
    static constexpr std::string_view kType = "init_group";
    static constexpr std::string_view kAbout =
        "client -> admin door: every worker joins the trainer's group. Answered by `group_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    GroupSpec spec{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("spec", spec, "the group");
    }
};

struct DestroyGroup {
    static constexpr std::string_view kType = "destroy_group";
    static constexpr std::string_view kAbout =
        "client -> admin door: every worker leaves the group. Answered by `group_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::string group{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("group", group, "its name");
    }
};

enum class GroupAction : std::uint8_t { kInit, kDestroy };
template <>
struct EnumNames<GroupAction> {
    static constexpr std::array<std::string_view, 2> kNames{"init", "destroy"};
};

struct WorkerGroup {
    static constexpr std::string_view kType = "worker_group";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc -> tp_worker: join or leave a group, in the "
        "background. Answered by `worker_grouped`.";
    CallId call{};
    GroupAction action = GroupAction::kInit;
    GroupSpec spec{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call");
        f("action", action, "init or destroy");
        f("spec", spec, "the group; destroy: its name");
        f("timeout_ms", timeout_ms, "after this time a rank gives up by itself");
    }
};

struct WorkerGrouped {
    static constexpr std::string_view kType = "worker_grouped";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc -> tokenizer_proc: this rank has joined or left the group, "
        "or why not.";
    CallId call{};
    ReplicaId replica{};
    Rank rank{};
    Verdict verdict{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("replica", replica, "set by the scheduler");
        f("rank", rank, "the sender");
        verdict.fields_in(f, "error code; absent: done", "what went wrong, in which phase");
    }
    friend bool operator==(const WorkerGrouped&, const WorkerGrouped&) = default;
};

struct GroupReply {
    static constexpr std::string_view kType = "group_reply";
    static constexpr std::string_view kAbout =
        "admin door -> client: every rank of every replica has joined or left the group, or which "
        "ranks have not, and why.";
    CallId call{};
    bool ok = false;
    Verdict verdict{};
    std::vector<WorkerGrouped> ranks{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("ok", ok, "on every rank");
        verdict.fields_in(f, "error code; absent: done", "which ranks failed, and why");
        f("ranks", ranks, "every rank's answer");
    }
};

std::optional<std::string> invalid(const InitGroup& message);
std::optional<std::string> invalid(const DestroyGroup& message);

}  // namespace pitstop::messages
