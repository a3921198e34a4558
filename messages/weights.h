// Weights: stage, verify, vote, commit (design section 5).
//
// One update is one transaction over all ranks of all replicas. The admin door drives it:
//
//   stage   door -> schedulers -> workers: bytes into the shadow copy, checked and digested, while
//           generation goes on (direct: into the live copy, under a pause)
//   ready   door -> schedulers: stand so that the swap can happen at once (drain: run out first)
//   commit  door -> schedulers: sent only when all are staged and ready. A scheduler puts the
//   commit
//           between two plans on every worker's socket, so all ranks swap at the same step boundary
//   drop    instead, if any rank failed, vanished or was late: the old version serves on
//
// An update that comes in many calls is a session: begin, then buckets, then commit (or drop). A
// call that brings everything is a session of its own. A session that nobody goes on with is
// dropped by its deadline.
//
// Order: first in, first out per socket. Loss: a process that dies takes the tree down; a rank that
// does not answer is named when the deadline comes.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"
#include "messages/weight_source.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {

inline constexpr std::size_t kLabelBytesMax = 256;
inline constexpr std::size_t kManifestMax = 1 << 20;
inline constexpr std::size_t kProblemsMax = 64;  // listed; further ones are counted

// One update, from its first stage to its commit or drop; the door counts them from 1.
enum class UpdateId : std::uint64_t {};

enum class UpdateMode : std::uint8_t {
    kStaged,  // into the shadow copy; needs room for two
    kDirect,  // over the live copy, under a pause; a failure half-way leaves the engine torn
};
template <>
struct EnumNames<UpdateMode> {
    static constexpr std::array<std::string_view, 2> kNames{"staged", "direct"};
};

// What becomes of running requests and their KV at the commit.
enum class KvPolicy : std::uint8_t {
    kKeep,       // go on with their KV
    kRecompute,  // retracted, then prefilled again under the new weights
    kDrain,      // run out first under the old weights; new ones wait
    kAbort,      // ended with their output so far
};
template <>
struct EnumNames<KvPolicy> {
    static constexpr std::array<std::string_view, 4> kNames{"keep", "recompute", "drain", "abort"};
};

// What an update is. Part of update_weights, stage_weights and the workers' orders.
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

    template <class F>
    void fields(F&& f) {
        f("source", source, "where the bytes come from");
        f("mode", mode, "staged or direct");
        f("kv_policy", kv_policy, "keep, recompute, drain or abort: running requests at the commit"
        );
        f("label", label, "the caller's name for the new version; empty: the old label stays");
        f("epoch",
          epoch,
          "the new version's epoch; refused unless newer than the current one; absent: one more");
        f("manifest",
          manifest,
          "what must have arrived: names, shapes, dtypes, digests of the tensors as they will be "
          "resident (BF16)");
        f("digest",
          digest,
          "the version's digest that must result, 32 hex digits; empty: not declared");
        f("base_digest",
          base_digest,
          "the version's digest that must serve when the update begins; sparse sources need it; "
          "empty: any");
        f("partial", partial, "only some tensors are sent, the others stay; false: all must arrive"
        );
        f("allow_nonfinite", allow_nonfinite, "accept infinities and NaNs in the weights");
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
    UpdateSpec update{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms", timeout_ms, "deadline; 0: the default");
        f("update", update, "what to do");
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
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms", timeout_ms, "deadline; 0: the default");
        f("update", update, "what to do");
    }
};

struct BeginUpdate {
    static constexpr std::string_view kType = "begin_update";
    static constexpr std::string_view kAbout =
        "client -> admin door: open a session (mode staged only): update_bucket brings tensors, "
        "commit_weights verifies and commits, drop_stage forgets. Answered by `update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::int64_t idle_timeout_ms = 0;
    UpdateSpec update{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms", timeout_ms, "deadline; 0: the default");
        f("idle_timeout_ms",
          idle_timeout_ms,
          "the session is dropped if no call comes for so long; 0: 5 minutes");
        f("update", update, "what to do; source.kind is buckets");
    }
};

struct UpdateBucket {
    static constexpr std::string_view kType = "update_bucket";
    static constexpr std::string_view kAbout =
        "client -> admin door: some tensors of the open session. A bucket that fails drops the "
        "session. Answered by `update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::uint64_t session = 0;
    WeightSource source{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms", timeout_ms, "deadline; 0: the default");
        f("session", session, "as begin_update's reply named it; 0: whichever is open");
        f("source", source, "where this bucket's bytes come from");
    }
};

struct CommitWeights {
    static constexpr std::string_view kType = "commit_weights";
    static constexpr std::string_view kAbout =
        "client -> admin door: the second half: all ranks swap at one step boundary. Answered by "
        "`update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::optional<KvPolicy> kv_policy{};
    std::uint64_t session = 0;
    std::string label{};
    std::string digest{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms", timeout_ms, "deadline; 0: the default");
        f("kv_policy", kv_policy, "instead of the one staged with");
        f("session", session, "the session or stage meant; 0: whichever there is");
        f("label", label, "of a session: the version's name, if begin_update gave none");
        f("digest", digest, "of a session: the digest that must result; empty: as begun");
    }
};

struct DropStage {
    static constexpr std::string_view kType = "drop_stage";
    static constexpr std::string_view kAbout =
        "client -> admin door: forget the stage or the session. Answered by `update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::uint64_t session = 0;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms", timeout_ms, "deadline; 0: the default");
        f("session", session, "the session or stage meant; 0: whichever there is");
    }
};

struct RollbackWeights {
    static constexpr std::string_view kType = "rollback_weights";
    static constexpr std::string_view kAbout =
        "client -> admin door: back to the version before the last commit, while its copy is "
        "retained "
        "(until the next stage begins). Counts as a commit: a new epoch, the old label and digest. "
        "Answered by `update_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    KvPolicy kv_policy = KvPolicy::kKeep;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms", timeout_ms, "deadline; 0: the default");
        f("kv_policy", kv_policy, "running requests at the swap");
    }
};

// One rank's part of an update.
struct RankOutcome {
    Rank rank{};
    bool ok = false;
    std::string phase{};
    std::string code{};
    std::vector<std::string> problems{};
    std::int64_t num_problems = 0;
    std::int64_t bytes = 0;
    std::int64_t tensors = 0;
    double receive_s = 0;
    double verify_s = 0;
    double commit_s = 0;

    template <class F>
    void fields(F&& f) {
        f("rank", rank, "tensor-parallel rank");
        f("ok", ok, "it did its part");
        f("phase",
          phase,
          "how far it came: idle, stage, verify, prepared, commit, committed, dropped");
        f("code", code, "error code; empty: none");
        f("problems", problems, "every problem, the first 64");
        f("num_problems", num_problems, "how many there are");
        f("bytes", bytes, "bytes written on this rank");
        f("tensors", tensors, "tensors that arrived");
        f("receive_s", receive_s, "seconds of receiving");
        f("verify_s", verify_s, "seconds of checking and digesting");
        f("commit_s", commit_s, "seconds of the swap");
    }
    friend bool operator==(const RankOutcome&, const RankOutcome&) = default;
};

// One replica's part.
struct ReplicaOutcome {
    ReplicaId replica{};
    std::vector<RankOutcome> ranks{};
    double pause_s = 0;
    double commit_s = 0;
    std::int64_t num_kept = 0;
    std::int64_t num_recomputed = 0;
    std::int64_t num_drained = 0;
    std::int64_t num_aborted = 0;

    template <class F>
    void fields(F&& f) {
        f("replica", replica, "data-parallel replica");
        f("ranks", ranks, "one per rank");
        f("pause_s", pause_s, "seconds in which no step ran because of the update");
        f("commit_s", commit_s, "seconds from the commit order to the last rank's swap");
        f("num_kept", num_kept, "running requests that went on with their KV");
        f("num_recomputed", num_recomputed, "running requests retracted");
        f("num_drained", num_drained, "running requests that ran out first");
        f("num_aborted", num_aborted, "requests ended");
    }
    friend bool operator==(const ReplicaOutcome&, const ReplicaOutcome&) = default;
};

struct UpdateReply {
    static constexpr std::string_view kType = "update_reply";
    static constexpr std::string_view kAbout =
        "admin door -> client: an update, its half, a rollback or a drop is in effect everywhere, "
        "or "
        "nowhere (or the engine is torn, and says so).";
    CallId call{};
    bool ok = false;
    std::string code{};
    std::string message{};
    std::string state{};
    std::uint64_t session = 0;
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::int64_t bytes = 0;
    double receive_s = 0;
    double verify_s = 0;
    double vote_s = 0;
    double pause_s = 0;
    double commit_s = 0;
    double total_s = 0;
    std::vector<ReplicaOutcome> replicas{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("ok", ok, "in effect on every rank, digest computed and equal to the declared one");
        f("code", code, "error code; empty: ok");
        f("message", message, "what went wrong, on which rank, in which phase");
        f("state", state, "the engine now: serving, open (a session), staged, torn");
        f("session", session, "begin_update: the number to name in its calls; else 0");
        f("epoch", epoch, "the version that serves now (staged: the one that would)");
        f("label", label, "its label");
        f("digest", digest, "its digest: of the resident weights");
        f("bytes", bytes, "bytes written, all ranks");
        f("receive_s", receive_s, "the slowest rank's seconds of receiving");
        f("verify_s", verify_s, "the slowest rank's seconds of checking and digesting");
        f("vote_s", vote_s, "from the last rank prepared to the commit order");
        f("pause_s", pause_s, "the longest replica's seconds without a step");
        f("commit_s", commit_s, "the slowest replica's commit");
        f("total_s", total_s, "from the call to this answer");
        f("replicas", replicas, "every rank's outcome");
    }
};

struct GetWeights {
    static constexpr std::string_view kType = "get_weights";
    static constexpr std::string_view kAbout =
        "client -> admin door: a tensor by its checkpoint name, assembled from its shards on "
        "replica 0. "
        "Answered by `weights_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;
    std::string name{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms", timeout_ms, "deadline; 0: the default");
        f("name", name, "checkpoint name; a tied lm_head.weight is the embedding");
    }
};

struct WeightsReply {
    static constexpr std::string_view kType = "weights_reply";
    static constexpr std::string_view kAbout =
        "admin door -> client: the tensor as it is resident.";
    CallId call{};
    Epoch epoch{};
    TensorInfo tensor{};
    RawArray<std::uint8_t> data{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("epoch", epoch, "the version it belongs to");
        f("tensor", tensor, "name, dtype, shape, digest");
        f("data", data, "row-major bytes of the whole tensor");
    }
};

struct WeightDigests {
    static constexpr std::string_view kType = "weight_digests";
    static constexpr std::string_view kAbout =
        "client -> admin door: digest the resident weights now, on every rank of every replica. "
        "Answered by `digests_reply`.";
    CallId call{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("call", call, "the caller's number for this call, not 0");
        f("timeout_ms", timeout_ms, "deadline; 0: the default");
    }
};

struct DigestsReply {
    static constexpr std::string_view kType = "digests_reply";
    static constexpr std::string_view kAbout =
        "admin door -> client: computed from memory, not remembered.";
    CallId call{};
    bool ok = false;
    std::string code{};
    std::string message{};
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::vector<TensorInfo> tensors{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("ok", ok, "replicas agree, and each rank's replicated tensors too");
        f("code", code, "error code; empty: ok");
        f("message", message, "who differs in what");
        f("epoch", epoch, "the version that serves");
        f("label", label, "its label");
        f("digest", digest, "the version's digest");
        f("tensors", tensors, "every tensor with its digest, in name order");
    }
};

// ---- door <-> schedulers ----

struct UpdateStage {
    static constexpr std::string_view kType = "update_stage";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: begin. Answered by `update_part` phase prepared; of a "
        "session, by phase opened.";
    UpdateId update{};
    UpdateSpec spec{};
    Epoch new_epoch{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the door's number of this update");
        f("spec", spec, "what to do");
        f("new_epoch", new_epoch, "the epoch the version gets if it is committed");
        f("timeout_ms", timeout_ms, "a replica gives up by itself after it");
    }
};

struct UpdateFill {
    static constexpr std::string_view kType = "update_fill";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: a bucket of an open session. Answered by `update_part` "
        "phase filled.";
    UpdateId update{};
    std::int64_t bucket = 0;
    WeightSource source{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("bucket", bucket, "counted from 1");
        f("source", source, "where its bytes come from");
        f("timeout_ms", timeout_ms, "a replica gives up by itself after it");
    }
};

struct UpdateFinish {
    static constexpr std::string_view kType = "update_finish";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: the session's last bucket is in: verify. Answered by "
        "`update_part` phase prepared.";
    UpdateId update{};
    std::string label{};
    std::string digest{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("label", label, "the new version's name; empty: as begun");
        f("digest", digest, "the digest that must result; empty: as begun");
        f("timeout_ms", timeout_ms, "a replica gives up by itself after it");
    }
};

struct UpdateReady {
    static constexpr std::string_view kType = "update_ready";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: stand so that a commit can happen at once. Answered by "
        "`update_part` phase ready.";
    UpdateId update{};
    KvPolicy kv_policy = KvPolicy::kKeep;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("kv_policy", kv_policy, "running requests at the commit");
    }
};

struct UpdateCommit {
    static constexpr std::string_view kType = "update_commit";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: swap, between two steps. All are prepared and ready. "
        "Answered by `update_part` phase committed.";
    UpdateId update{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
    }
};

struct UpdateDrop {
    static constexpr std::string_view kType = "update_drop";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: forget the stage; the old version serves on. Answered "
        "by `update_part` phase dropped.";
    UpdateId update{};
    std::string reason{};
    bool torn = false;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("reason", reason, "for logs");
        f("torn",
          torn,
          "some replica was overwritten half-way: stand still until the next complete update");
    }
};

struct UpdateRollback {
    static constexpr std::string_view kType = "update_rollback";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: prepare a swap to the retained copy; then ready and "
        "commit as "
        "any update. Answered by `update_part` phase prepared.";
    UpdateId update{};
    Epoch new_epoch{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the door's number of this update");
        f("new_epoch", new_epoch, "the epoch the version gets");
    }
};

struct UpdatePart {
    static constexpr std::string_view kType = "update_part";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: a replica's answer to an update order.";
    UpdateId update{};
    ReplicaId replica{};
    std::string phase{};
    bool ok = false;
    std::string code{};
    std::string message{};
    std::string state{};
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    ReplicaOutcome outcome{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("replica", replica, "the sender");
        f("phase",
          phase,
          "opened, filled, prepared, ready, committed or dropped: which order is answered");
        f("ok", ok, "the order was carried out");
        f("code", code, "error code; empty: none");
        f("message", message, "what went wrong, on which rank");
        f("state", state, "serving, staged or torn");
        f("epoch", epoch, "prepared: of the new version; else of the one that serves");
        f("label", label, "its label");
        f("digest", digest, "its digest");
        f("outcome", outcome, "every rank's");
    }
};

// ---- scheduler <-> workers ----

// The digest of one rank's part of one tensor.
struct PartDigest {
    std::string name{};
    std::vector<std::int64_t> shape{};
    std::int64_t part = 0;
    std::int64_t parts = 1;
    std::uint64_t lane0 = 0;
    std::uint64_t lane1 = 0;

    template <class F>
    void fields(F&& f) {
        f("name", name, "checkpoint name");
        f("shape", shape, "of the whole tensor");
        f("part", part, "which part this rank holds; ranks with the same part hold copies");
        f("parts", parts, "the tensor's digest is the sum over so many parts");
        f("lane0", lane0, "the part's lane 0");
        f("lane1", lane1, "the part's lane 1");
    }
    friend bool operator==(const PartDigest&, const PartDigest&) = default;
};

struct WorkerStage {
    static constexpr std::string_view kType = "worker_stage";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker: fill and check the shadow copy (direct: the live one) in the "
        "background. "
        "Answered by `worker_staged`; of a session, by `worker_filled`.";
    UpdateId update{};
    UpdateSpec spec{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("spec", spec, "what to do");
        f("timeout_ms", timeout_ms, "a rank gives up by itself after it; 0: never");
    }
};

struct WorkerFill {
    static constexpr std::string_view kType = "worker_fill";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker: a bucket of an open session. Answered by `worker_filled`.";
    UpdateId update{};
    std::int64_t bucket = 0;
    WeightSource source{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("bucket", bucket, "counted from 1");
        f("source", source, "where its bytes come from");
        f("timeout_ms", timeout_ms, "a rank gives up by itself after it; 0: never");
    }
};

struct WorkerFilled {
    static constexpr std::string_view kType = "worker_filled";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: a bucket is in its place, or why it is not.";
    UpdateId update{};
    std::int64_t bucket = 0;
    RankOutcome outcome{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("bucket", bucket, "the bucket; 0: the session is open");
        f("outcome", outcome, "of the whole session so far");
    }
};

struct WorkerFinish {
    static constexpr std::string_view kType = "worker_finish";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker: the last bucket is in: verify. Answered by `worker_staged`.";
    UpdateId update{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
    }
};

struct WorkerStaged {
    static constexpr std::string_view kType = "worker_staged";
    static constexpr std::string_view kAbout = "tp_worker -> scheduler_proc: this rank's vote.";
    UpdateId update{};
    RankOutcome outcome{};
    std::vector<PartDigest> digests{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("outcome", outcome, "ok: prepared");
        f("digests", digests, "of everything resident in the staged copy, in name order");
    }
};

struct WorkerCommit {
    static constexpr std::string_view kType = "worker_commit";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker, between two plans: the staged copy (rollback: the retained "
        "one) is "
        "the live one from the next plan on. Answered by `worker_committed`.";
    UpdateId update{};
    Epoch epoch{};
    bool rollback = false;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("epoch", epoch, "the new version's epoch: plans name it from now on");
        f("rollback", rollback, "swap back to the retained copy");
    }
};

struct WorkerCommitted {
    static constexpr std::string_view kType = "worker_committed";
    static constexpr std::string_view kAbout = "tp_worker -> scheduler_proc: swapped.";
    UpdateId update{};
    Rank rank{};
    Epoch epoch{};
    std::int64_t elapsed_us = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("rank", rank, "the sender");
        f("epoch", epoch, "the live version's epoch");
        f("elapsed_us", elapsed_us, "microseconds of the swap");
    }
};

struct WorkerDrop {
    static constexpr std::string_view kType = "worker_drop";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker: stop staging and forget it. Answered by `worker_dropped`.";
    UpdateId update{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
    }
};

struct WorkerDropped {
    static constexpr std::string_view kType = "worker_dropped";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: nothing of that update is left.";
    UpdateId update{};
    Rank rank{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("rank", rank, "the sender");
    }
};

struct WorkerReadTensor {
    static constexpr std::string_view kType = "worker_read_tensor";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker: this rank's part of a tensor. Answered by `worker_tensor`.";
    CallId call{};
    std::string name{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the scheduler's number");
        f("name", name, "checkpoint name");
    }
};

struct WorkerTensor {
    static constexpr std::string_view kType = "worker_tensor";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc -> tokenizer_proc: a rectangle of a tensor.";
    CallId call{};
    ReplicaId replica{};
    Rank rank{};
    Epoch epoch{};
    std::string code{};
    std::string message{};
    TensorInfo tensor{};
    std::int64_t row_begin = 0;
    std::int64_t num_rows = 0;
    std::int64_t col_begin = 0;
    std::int64_t num_cols = 0;
    RawArray<std::uint8_t> data{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("replica", replica, "set by the scheduler");
        f("rank", rank, "the sender");
        f("epoch", epoch, "the version it belongs to");
        f("code", code, "error code (not_found: no such tensor); empty: here it is");
        f("message", message, "what went wrong, with names that are near");
        f("tensor", tensor, "name, dtype and shape of the whole tensor (one dimension: a row)");
        f("row_begin", row_begin, "the rectangle's first row");
        f("num_rows", num_rows, "its rows");
        f("col_begin", col_begin, "its first column");
        f("num_cols", num_cols, "its columns");
        f("data", data, "its elements, row-major");
    }
};

struct WorkerDigest {
    static constexpr std::string_view kType = "worker_digest";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc -> tp_worker: digest the live weights from memory, in "
        "the background. "
        "Answered by `worker_digests`.";
    CallId call{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call");
    }
};

struct WorkerDigests {
    static constexpr std::string_view kType = "worker_digests";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc -> tokenizer_proc: computed from memory.";
    CallId call{};
    ReplicaId replica{};
    Rank rank{};
    Epoch epoch{};
    std::string label{};
    std::vector<PartDigest> digests{};
    std::string code{};
    std::string message{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("replica", replica, "set by the scheduler");
        f("rank", rank, "the sender");
        f("epoch",
          epoch,
          "the version that was live when it began; digested again if it changed meanwhile");
        f("label", label, "set by the scheduler");
        f("digests", digests, "in name order");
        f("code", code, "error code; empty: ok. One rank's answer is then the replica's");
        f("message", message, "the error, as a sentence");
    }
};

std::optional<std::string> invalid(const UpdateSpec& spec);
std::optional<std::string> invalid(const UpdateWeights& message);
std::optional<std::string> invalid(const StageWeights& message);
std::optional<std::string> invalid(const BeginUpdate& message);
std::optional<std::string> invalid(const UpdateBucket& message);
std::optional<std::string> invalid(const CommitWeights& message);
std::optional<std::string> invalid(const DropStage& message);
std::optional<std::string> invalid(const RollbackWeights& message);
std::optional<std::string> invalid(const GetWeights& message);
std::optional<std::string> invalid(const WeightDigests& message);

}  // namespace pitstop
