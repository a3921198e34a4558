// The parts of messages about adapters (LoRA): small named sets of weights in addition to the
// model's. An update whose spec names an adapter loads or replaces it (weights.h): the adapter is
// staged, verified, voted on and committed like the model's weights. The update names the version.
//
// The adapter's name is resolved when a request arrives. The request keeps that version to its end,
// unless an update of the adapter asks for something else (AdapterPolicy).
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "messages/control_call.h"
#include "messages/fields.h"
#include "messages/grammars.h"
#include "messages/verdict.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

inline constexpr std::size_t kAdapterNameBytesMax = 256;
inline constexpr std::size_t kAdapterConfigTextMax = std::size_t{1} << 20;

// Identifies a loaded version of an adapter within a tree: the number of the update that loaded it.
// Numbers are never reused, so cached KV cannot be mistaken for another version's. 0: none.
enum class AdapterId : std::uint64_t {};

// Names a version of an adapter.
struct AdapterVersion {
    std::string name{};
    Epoch version{};
    std::string label{};
    std::string digest{};

    template <class F>
    void fields(F&& f) {
        f("name", name, "the adapter's name");
        f("version",
          version,
          "the number of the update that loaded it; later updates have "
          "larger numbers");
        f("label", label, "its label");
        f("digest", digest, "the digest of its resident tensors, 32 hex digits");
    }
    friend bool operator==(const AdapterVersion&, const AdapterVersion&) = default;
};

// The effect of a commit on open requests that use the replaced version.
enum class AdapterPolicy : std::uint8_t {
    kFinish,     // finish with the old version
    kKeep,       // continue with the new version, and keep their KV
    kRecompute,  // are retracted, then prefilled again with the new version
};
template <>
struct EnumNames<AdapterPolicy> {
    static constexpr std::array<std::string_view, 3> kNames{"finish", "keep", "recompute"};
};

struct AdapterStatus {
    AdapterVersion adapter{};
    std::string path{};
    std::int64_t num_requests = 0;
    std::int64_t num_older = 0;
    std::int64_t bytes = 0;
    std::int64_t loads_total = 0;
    std::int64_t requests_total = 0;
    std::int64_t output_tokens_total = 0;
    bool pinned = false;
    bool evicted = false;
    std::int64_t evictions_total = 0;
    std::optional<AdapterVersion> previous{};
    std::string config_digest{};

    template <class F>
    void fields(F&& f) {
        f("adapter", adapter, "the version that new requests get");
        f("path", path, "the directory that it was loaded from; empty: its tensors were sent");
        f("num_requests", num_requests, "open requests that have this version");
        f("num_older", num_older, "open requests that have an older version of the adapter");
        f("bytes",
          bytes,
          "bytes of the adapter's resident tensors on all ranks: of this version, the previous one "
          "and those that open requests have");
        f("loads_total", loads_total, "versions loaded under this name since it was last unloaded");
        f("requests_total",
          requests_total,
          "requests that named the adapter since it was last unloaded");
        f("output_tokens_total",
          output_tokens_total,
          "output tokens so far of the requests in requests_total");
        f("pinned", pinned, "it is never evicted");
        f("evicted",
          evicted,
          "with --adapter-memory: this version is in files of the workers until a request starts");
        f("evictions_total",
          evictions_total,
          "evictions of versions under this name since it was last unloaded");
        f("previous",
          previous,
          "the version to which a rollback returns, until the next stage of the name begins; "
          "absent: none is retained");
        f("config_digest",
          config_digest,
          "the digest of its configuration's text, 32 hex digits; the adapter's digest is of its "
          "tensors alone");
    }
    friend bool operator==(const AdapterStatus&, const AdapterStatus&) = default;
};

// An adapter that is no longer loaded, because the tree was restarted, or because its bytes could
// not be restored after an eviction.
struct LostAdapter {
    AdapterVersion adapter{};
    std::string path{};
    std::string config_digest{};
    bool pinned = false;

    template <class F>
    void fields(F&& f) {
        f("adapter", adapter, "the version that new requests got");
        f("path", path, "the directory that it came from; empty: its tensors were sent");
        f("config_digest", config_digest, "the digest of its configuration's text");
        f("pinned", pinned, "it was never evicted");
    }
    friend bool operator==(const LostAdapter&, const LostAdapter&) = default;
};

struct UnloadAdapter {
    static constexpr std::string_view kType = "unload_adapter";
    static constexpr std::string_view kAbout =
        "client -> admin door -> schedulers: no new request gets this adapter; its memory is "
        "freed when its last request ends. Waits for updates in progress, and is refused while a "
        "session is open, a stage is held or calls are collected. Answered by `adapter_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::string name{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("name", name, "the adapter's name");
    }
};

struct AdapterPart {
    static constexpr std::string_view kType = "adapter_part";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: a replica's part of unload_adapter.";
    static constexpr std::string_view kReplyType = "adapter_reply";
    static constexpr std::string_view kReplyAbout =
        "admin door -> client: the adapter is unloaded on every replica, or which replica "
        "refused.";
    CallId call{};
    ReplicaId replica{};
    Verdict verdict{};
    AdapterVersion adapter{};
    std::int64_t num_requests = 0;
    bool was_lost = false;

    template <class F>
    void fields(F&& f) {
        part_fields(f, *this);
        f("adapter",
          adapter,
          "the version that was unloaded, or given up as lost; if there was none, only the name");
        f("num_requests", num_requests, "open requests that continue with it");
        f("was_lost",
          was_lost,
          "the replica had lost the adapter, and has given it up; an error unless another replica "
          "has unloaded it");
    }
};

using AdapterReply = ReplyOf<AdapterPart>;

struct WorkerForget {
    static constexpr std::string_view kType = "worker_forget";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker, between two plans: no later plan names these versions of "
        "adapters and these grammars. Not answered.";
    std::vector<AdapterId> adapters{};
    std::vector<GrammarId> grammars{};

    template <class F>
    void fields(F&& f) {
        f("adapters", adapters, "the updates that loaded them");
        f("grammars", grammars, "their numbers");
    }
};

struct WorkerAdapters {
    static constexpr std::string_view kType = "worker_adapters";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker, between two plans: evict versions of adapters, then restore "
        "others. Until an evicted one is restored, no later plan names it. Each rank answers with "
        "`worker_restored` for each that it restores.";
    std::uint64_t order = 0;
    std::vector<AdapterId> evict{};
    std::vector<AdapterId> restore{};

    template <class F>
    void fields(F&& f) {
        f("order", order, "its number, counted from 1");
        f("evict", evict, "the updates that loaded them: their bytes go to files");
        f("restore", restore, "the updates that loaded them: their bytes come from files");
    }
};

struct WorkerRestored {
    static constexpr std::string_view kType = "worker_restored";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: plans may name the version again, which has the same bytes "
        "as before its eviction; or why no plan may.";
    Rank rank{};
    std::uint64_t order = 0;
    AdapterId id{};
    Verdict verdict{};
    std::int64_t elapsed_us = 0;

    template <class F>
    void fields(F&& f) {
        f("rank", rank, "the sender");
        f("order", order, "the order's number");
        f("id", id, "the update that loaded it");
        verdict.fields_in(
            f, "why the version is not restored, absent: it is; data_loss: it never will be"
        );
        f("elapsed_us", elapsed_us, "microseconds from the order to this answer");
    }
};

// Reads the lines about loaded adapters that the launcher kept for a restart. Errors:
// kInvalidArgument, with the line.
[[nodiscard]] Result<std::vector<LostAdapter>> lost_adapters_of(std::string_view lines);
// Returns the line about one adapter, without a line end.
[[nodiscard]] std::string line_of(const LostAdapter& lost);

// Each returns what is wrong with its argument, or nothing.
std::optional<std::string> invalid_adapter_name(std::string_view name);
// `served`: the model's names. A request that names one gets the model, and one that names
// "SERVED:NAME" gets the adapter NAME, so no adapter may have such a name.
std::optional<std::string> invalid_adapter_name(
    std::string_view name, const std::vector<std::string>& served
);
std::optional<std::string> invalid(const UnloadAdapter& message);

}  // namespace pitstop::messages
