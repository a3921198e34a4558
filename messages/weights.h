// The update of weights: stage, verify, vote, commit (design section 5).
//
// One update is one transaction over all ranks of all replicas. The admin door drives it:
//
//   stage   door -> schedulers -> workers: bytes go into the shadow copy, and are checked and
//           digested, while generation continues (direct: into the live copy, under a pause)
//   ready   door -> schedulers: stop work so that the swap can happen at once (drain: first finish
//           running requests)
//   commit  door -> schedulers: sent only when all are staged and ready. Each scheduler sends the
//           commit between two plans to all its workers, so all ranks swap at one step boundary
//   drop    in place of the commit, if any rank failed, vanished or was late: the old version
//           continues to serve
//
// An update of several calls is a session: begin, then buckets, then commit (or drop). A call with
// all tensors is an update without a session. A session without calls is dropped at its deadline;
// another trainer may replace an idle session.
//
// Each call of a session has the session's number. Trainers whose protocol has no such number mark
// their calls as unnamed. Such calls belong to the session that was begun for unnamed calls, if
// there is one. If that session is lost, later unnamed calls are refused, with the reason.
//
// This header has the messages from and to callers; update_orders.h has those inside the tree.
//
// Order: first in, first out per socket. Loss: a process that dies ends the tree. A rank that does
// not answer is named at the deadline.
#pragma once

#include "base/ids.h"
#include "messages/adapters.h"
#include "messages/control_call.h"
#include "messages/fields.h"
#include "messages/update_phase.h"
#include "messages/update_seconds.h"
#include "messages/verdict.h"
#include "messages/weight_source.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

inline constexpr std::size_t kLabelBytesMax = 256;
// low enough that epochs counted from it never overflow
inline constexpr Epoch kEpochMax{std::int64_t{1} << 62};
inline constexpr std::size_t kManifestMax = 1 << 20;
inline constexpr std::size_t kProblemsMax = 64;  // listed problems; further ones are only counted

// Identifies an update, from its first stage to its commit or drop; the door counts from 1.
enum class UpdateId : std::uint64_t {};

enum class UpdateMode : std::uint8_t {
    kStaged,  // into the shadow copy; needs room for two copies
    kDirect,  // over the live copy, under a pause; a failure half-way leaves the engine torn
};
template <>
struct EnumNames<UpdateMode> {
    static constexpr std::array<std::string_view, 2> kNames{"staged", "direct"};
};

// The effect of the commit on running requests and their KV.
enum class KvPolicy : std::uint8_t {
    kKeep,       // continue, and keep their KV
    kRecompute,  // are retracted, then prefilled again under the new weights
    kDrain,      // finish first under the old weights; new requests wait
    kAbort,      // end with their output so far
};
template <>
struct EnumNames<KvPolicy> {
    static constexpr std::array<std::string_view, 4> kNames{"keep", "recompute", "drain", "abort"};
};

// Describes an update; a part of update_weights, stage_weights and the workers' orders.
struct UpdateSpec {
    WeightSource source{};
    UpdateMode mode = UpdateMode::kStaged;
    KvPolicy kv_policy = KvPolicy::kKeep;
    std::string label{};
    std::optional<Epoch> epoch{};
    std::vector<TensorInfo> manifest{};
    std::string digest{};
    std::string base_digest{};
    bool partial = false;
    bool allow_nonfinite = false;
    std::string adapter{};
    std::string adapter_config{};
    AdapterPolicy adapter_policy = AdapterPolicy::kFinish;
    std::string adapter_config_digest{};
    bool adapter_pinned = false;

    template <class F>
    void fields(F&& f) {
        f("source", source, "the source of the bytes");
        f("mode", mode, "staged or direct");
        f("kv_policy",
          kv_policy,
          "what happens to running requests at the commit: keep, recompute, drain or abort");
        f("label",
          label,
          "the new version's label, at most 256 bytes without control characters; empty: it has "
          "none");
        f("epoch",
          epoch,
          "the new version's epoch, which must be newer than the current one; absent: the next");
        f("manifest",
          manifest,
          "the tensors that must have arrived: names, shapes, dtypes, digests in resident form "
          "(BF16)");
        f("digest",
          digest,
          "the digest that the version must have, 32 hex digits; empty: not declared");
        f("base_digest",
          base_digest,
          "the digest that the serving version (for an adapter: its own) must have when the update "
          "begins; required for sparse sources; empty: any");
        f("partial",
          partial,
          "true: the tensors that are not sent stay as they are; false: all tensors must arrive");
        f("allow_nonfinite", allow_nonfinite, "accept infinities and NaNs in the weights");
        f("adapter",
          adapter,
          "the weights are those of the adapter of this name (one line of at most 256 bytes), "
          "which is loaded or replaced; label and digest are the adapter's; empty: of the model");
        f("adapter_config",
          adapter_config,
          "for an adapter: PEFT's adapter_config.json as text, at most 1 MiB; empty: the file in "
          "the source's directory; with partial, the version's own");
        f("adapter_policy",
          adapter_policy,
          "for an adapter: what happens to open requests that have the replaced version: finish, "
          "keep or recompute");
        f("adapter_config_digest",
          adapter_config_digest,
          "for an adapter: the digest that its configuration's text must have, 32 hex digits; "
          "empty: any");
        f("adapter_pinned",
          adapter_pinned,
          "for an adapter: with --adapter-memory, it is never evicted");
    }
    friend bool operator==(const UpdateSpec&, const UpdateSpec&) = default;
};

struct UpdateWeights {
    static constexpr std::string_view kType = "update_weights";
    static constexpr std::string_view kAbout =
        "client -> admin door: stage, verify, vote and commit in one call. Answered by "
        "`update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    bool unnamed = false;
    UpdateSpec update{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("unnamed",
          unnamed,
          "true: the trainer names no session. The call is a bucket of the session that was begun "
          "as unnamed, and is refused if that session was lost. If there was no such session, the "
          "call is an update by itself");
        f("update", update, "what to do");
    }
};

struct RefusedPart {
    static constexpr std::string_view kType = "refused_part";
    static constexpr std::string_view kAbout =
        "front end -> admin door: the front end refused a call that brings weights and that may "
        "belong to a version whose calls name no session. The door drops the calls collected for "
        "that version, and refuses its trainer's next continue once. Answered by `update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::string why{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("why", why, "the call and why it was refused: one line of 1 to 256 bytes");
    }
};

struct StageWeights {
    static constexpr std::string_view kType = "stage_weights";
    static constexpr std::string_view kAbout =
        "client -> admin door: the first half of update_weights (mode staged only). Answered by "
        "`update_reply`; the stage then waits for commit_weights or drop_stage.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    UpdateSpec update{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("update", update, "what to do");
    }
};

struct BeginUpdate {
    static constexpr std::string_view kType = "begin_update";
    static constexpr std::string_view kAbout =
        "client -> admin door: open a session (mode staged only): update_bucket sends tensors, "
        "commit_weights verifies and commits, drop_stage discards. Answered by `update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::int64_t idle_timeout_ms = 0;
    bool take_over = false;
    bool unnamed = false;
    std::string holder{};
    UpdateSpec update{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("idle_timeout_ms",
          idle_timeout_ms,
          "milliseconds without a call after which the session is dropped; 0: 5 minutes");
        f("take_over",
          take_over,
          "first drop an open session or stage that has no call in progress; the reply's message "
          "describes it. From then on, calls that name no session are refused, because they might "
          "belong to the dropped session");
        f("unnamed", unnamed, "calls that are marked unnamed belong to this session");
        f("holder",
          holder,
          "the caller's name, at most 256 bytes, quoted when another caller is refused");
        f("update", update, "what to do; source.kind is buckets");
    }
};

struct UpdateBucket {
    static constexpr std::string_view kType = "update_bucket";
    static constexpr std::string_view kAbout =
        "client -> admin door: some of the tensors of the open session. If a bucket fails, the "
        "session is dropped. Answered by `update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::uint64_t session = 0;
    std::string label{};
    WeightSource source{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("session",
          session,
          "the number in begin_update's reply; 0: the open session, refused if that one took over "
          "from another");
        f("label", label, "the version's label, used if commit_weights gives none");
        f("source", source, "the source of this bucket's bytes");
    }
};

struct CommitWeights {
    static constexpr std::string_view kType = "commit_weights";
    static constexpr std::string_view kAbout =
        "client -> admin door: commit the stage or the session: all ranks swap between the same "
        "two steps. Answered by `update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::optional<KvPolicy> kv_policy{};
    std::uint64_t session = 0;
    bool unnamed = false;
    std::string label{};
    std::string digest{};

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("kv_policy", kv_policy, "replaces the policy of the stage");
        f("session",
          session,
          "the number of the session or stage; 0: the current one, refused if it took over from "
          "another");
        f("unnamed", unnamed, "with session 0: only a session that was begun as unnamed");
        f("label", label, "for a session: the version's label, instead of begin_update's");
        f("digest",
          digest,
          "for a session: the digest that the version must have; empty: as "
          "begun");
    }
};

struct DropStage {
    static constexpr std::string_view kType = "drop_stage";
    static constexpr std::string_view kAbout =
        "client -> admin door: discard the stage or the session. Answered by `update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::uint64_t session = 0;
    bool unnamed = false;

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("session", session, "the number of the session or stage; 0: the current one");
        f("unnamed",
          unnamed,
          "with session 0: drop only a session that was begun as unnamed; the call succeeds if "
          "there is none");
    }
};

struct RollbackWeights {
    static constexpr std::string_view kType = "rollback_weights";
    static constexpr std::string_view kAbout =
        "client -> admin door: return to the version before the last commit, while its copy is "
        "retained (until the next stage begins). Counts as a commit: a new epoch, the old label "
        "and digest. With a name, that adapter returns to its previous version, which is retained "
        "until the next stage of the name begins. Answered by `update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    KvPolicy kv_policy = KvPolicy::kKeep;
    std::string adapter{};
    AdapterPolicy adapter_policy = AdapterPolicy::kFinish;

    template <class F>
    void fields(F&& f) {
        call_fields(f, *this);
        f("kv_policy", kv_policy, "what happens to running requests at the swap");
        f("adapter", adapter, "the adapter that returns; empty: the model's weights do");
        f("adapter_policy",
          adapter_policy,
          "for an adapter: what happens to open requests that have the version that serves now: "
          "finish, keep or recompute");
    }
};

// A reply names at most this many of the tensors that a session still waits for.
inline constexpr std::size_t kMissingShownMax = 16;

// One rank's part of an update.
struct RankOutcome {
    Rank rank{};
    bool ok = false;
    UpdatePhase phase = UpdatePhase::kIdle;
    std::optional<ErrorCode> code{};
    std::vector<std::string> problems{};
    std::int64_t num_problems = 0;
    std::int64_t bytes = 0;
    std::int64_t tensors = 0;
    std::vector<std::string> missing{};
    std::int64_t num_missing = 0;
    StageSeconds stage{};
    double commit_s = 0;

    template <class F>
    void fields(F&& f) {
        f("rank", rank, "tensor-parallel rank");
        f("ok", ok, "the rank has done its part");
        f("phase",
          phase,
          "the phase that it reached: idle (nothing was written), stage, prepared, committed, "
          "dropped");
        f("code", code, "why the rank has not done its part; absent: it has");
        f("problems", problems, "this rank's problems, at most the first 64");
        f("num_problems", num_problems, "the number of all problems of this rank");
        f("bytes", bytes, "bytes written on this rank");
        f("tensors", tensors, "tensors that arrived");
        f("missing", missing, "for a complete session: missing tensors, at most the first 16");
        f("num_missing", num_missing, "the number of all missing tensors");
        stage.fields_in(f);
        f("commit_s", commit_s, "seconds of the swap");
    }
    friend bool operator==(const RankOutcome&, const RankOutcome&) = default;
};

// One replica's part of an update.
struct ReplicaOutcome {
    ReplicaId replica{};
    std::vector<RankOutcome> ranks{};
    double pause_s = 0;
    double commit_s = 0;
    std::int64_t num_kept = 0;
    std::int64_t num_recomputed = 0;
    std::int64_t num_drained = 0;
    std::int64_t num_aborted = 0;
    std::int64_t num_steps = 0;
    double step_s = 0;
    double step_s_before = 0;
    double gap_s = 0;

    template <class F>
    void fields(F&& f) {
        f("replica", replica, "data-parallel replica");
        f("ranks", ranks, "one per rank");
        f("pause_s", pause_s, "seconds in which no step ran because of the update");
        f("commit_s", commit_s, "seconds from the commit order to the last rank's swap");
        f("num_kept", num_kept, "running requests that continued with their KV");
        f("num_recomputed", num_recomputed, "running requests retracted");
        f("num_drained", num_drained, "running requests that finished first");
        f("num_aborted", num_aborted, "requests that the update aborted");
        f("num_steps", num_steps, "steps that ended while the version was staged");
        f("step_s", step_s, "mean seconds of these steps; 0: there was none");
        f("step_s_before",
          step_s_before,
          "mean seconds of the latest steps before the version was staged, at most 64");
        f("gap_s",
          gap_s,
          "seconds of the longest of the num_steps steps: the longest that a stream waited for a "
          "token");
    }
    friend bool operator==(const ReplicaOutcome&, const ReplicaOutcome&) = default;
};

struct UpdateReply {
    static constexpr std::string_view kType = "update_reply";
    static constexpr std::string_view kAbout =
        "admin door -> client: an update, a call of a session or stage, a rollback or a drop took "
        "effect on every replica, or on none. Otherwise `state` is torn.";
    CallId call{};
    bool ok = false;
    Verdict verdict{};
    UpdateState state = UpdateState::kServing;
    std::uint64_t session = 0;
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::int64_t bytes = 0;
    UpdateSeconds seconds{};
    std::vector<ReplicaOutcome> replicas{};
    std::string adapter{};
    std::string config_digest{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("ok",
          ok,
          "in effect on every rank, digest computed and equal to the declared one; in state "
          "open, staged or collecting: received, checked and staged on every rank");
        verdict.fields_in(
            f,
            "error code; absent: done",
            "what failed, on which rank, in which phase; collecting: when it takes effect; "
            "begin_update, drop_stage: what was dropped"
        );
        f("state",
          state,
          "the engine's state now: serving, awaiting_weights (it has none), open (a session), "
          "collecting (calls without a session that become one update), staged, torn, or the "
          "phase of the current update");
        f("session", session, "begin_update: the session's number, for its calls; otherwise 0");
        f("epoch", epoch, "the version that serves now (staged: the future one)");
        f("label", label, "its label");
        f("digest", digest, "its digest: of the resident weights");
        f("bytes", bytes, "bytes written, all ranks");
        seconds.fields_in(f);
        f("replicas", replicas, "every rank's outcome");
        f("adapter",
          adapter,
          "the adapter that the call was for, also if it was refused; empty: the model. Epoch, "
          "label and digest are the adapter's if the call has committed or staged a version of "
          "it, otherwise the model's");
        f("config_digest",
          config_digest,
          "the digest of that version's configuration (adapter_config.json), 32 hex digits; empty: "
          "the call has committed and staged no version of an adapter");
    }
};

// Returns whether any rank of the replica may have overwritten its weights. A rank that failed
// before its first byte reports that, and does not count.
[[nodiscard]] bool may_have_written(const std::vector<RankOutcome>& ranks);

std::optional<std::string> invalid(const UpdateSpec& spec);
std::optional<std::string> invalid(const UpdateWeights& message);
std::optional<std::string> invalid(const RefusedPart& message);
std::optional<std::string> invalid(const StageWeights& message);
std::optional<std::string> invalid(const BeginUpdate& message);
std::optional<std::string> invalid(const UpdateBucket& message);
std::optional<std::string> invalid(const CommitWeights& message);
std::optional<std::string> invalid(const RollbackWeights& message);

}  // namespace pitstop::messages
