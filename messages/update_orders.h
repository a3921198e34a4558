// The messages inside the tree during an update: orders from the door to schedulers, and from
// schedulers to workers. weights.h describes the update, and has its messages from and to callers.
//
// Order: first in, first out per socket; workers get commits on the socket of the plans. Every
// order names its update, so that an answer to an earlier update is recognized as late.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"
#include "messages/update_phase.h"
#include "messages/verdict.h"
#include "messages/version_digest.h"
#include "messages/weight_source.h"
#include "messages/weights.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

// ---- door <-> schedulers ----

struct UpdateStage {
    static constexpr std::string_view kType = "update_stage";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: begin an update. Answered by `update_part` of the order "
        "stage; for a session, of the order open.";
    UpdateId update{};
    UpdateSpec spec{};
    Epoch new_epoch{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the door's number of this update");
        f("spec", spec, "what to do");
        f("new_epoch",
          new_epoch,
          "the epoch that the model gets if the update is committed; for an adapter: the update's "
          "number, by which its version is named");
        f("timeout_ms", timeout_ms, "after this time a replica gives up by itself");
    }
};

struct UpdateFill {
    static constexpr std::string_view kType = "update_fill";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: a bucket of an open session. Answered by `update_part` "
        "of the order fill.";
    UpdateId update{};
    std::int64_t bucket = 0;
    WeightSource source{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("bucket", bucket, "counted from 1");
        f("source", source, "the source of its bytes");
        f("timeout_ms", timeout_ms, "after this time a replica gives up by itself");
    }
};

struct UpdateFinish {
    static constexpr std::string_view kType = "update_finish";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: the session's last bucket has arrived: verify. "
        "Answered by `update_part` of the order stage.";
    UpdateId update{};
    std::string label{};
    std::string digest{};
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("label", label, "the new version's label; empty: as begun");
        f("digest", digest, "the digest that the version must have; empty: as begun");
        f("timeout_ms", timeout_ms, "after this time a replica gives up by itself");
    }
};

struct UpdateReady {
    static constexpr std::string_view kType = "update_ready";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: prepare to commit at once. Answered by `update_part` "
        "of the order ready.";
    UpdateId update{};
    KvPolicy kv_policy = KvPolicy::kKeep;
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("kv_policy", kv_policy, "what happens to running requests at the commit");
        f("timeout_ms", timeout_ms, "after this time a replica gives up by itself");
    }
};

struct UpdateCommit {
    static constexpr std::string_view kType = "update_commit";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: swap, between two steps. All replicas are prepared and "
        "ready. Answered by `update_part` of the order commit.";
    UpdateId update{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
    }
};

struct UpdateDrop {
    static constexpr std::string_view kType = "update_drop";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: discard the stage; the old version goes on serving. "
        "Answered by `update_part` of the order drop.";
    UpdateId update{};
    std::string reason{};
    bool torn = false;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("reason", reason, "for logs");
        f("torn", torn, "some replica was half overwritten: stop until the next complete update");
    }
};

struct UpdateRollback {
    static constexpr std::string_view kType = "update_rollback";
    static constexpr std::string_view kAbout =
        "tokenizer_proc -> scheduler_proc: prepare a swap to the retained copy, or stage an "
        "adapter's previous version anew; ready and commit follow as in any update. Answered by "
        "`update_part` of the order stage.";
    UpdateId update{};
    Epoch new_epoch{};
    std::string adapter{};
    AdapterPolicy adapter_policy = AdapterPolicy::kFinish;
    std::int64_t timeout_ms = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the door's number of this update");
        f("new_epoch",
          new_epoch,
          "the epoch that the model gets; for an adapter: the update's number");
        f("adapter", adapter, "the adapter that returns; empty: the model's weights do");
        f("adapter_policy", adapter_policy, "for an adapter: as in rollback_weights");
        f("timeout_ms", timeout_ms, "for an adapter: after this time a replica gives up by itself");
    }
};

struct UpdatePart {
    static constexpr std::string_view kType = "update_part";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: a replica's answer to an update order.";
    UpdateId update{};
    ReplicaId replica{};
    UpdateOrder order = UpdateOrder::kOpen;
    bool ok = false;
    Verdict verdict{};
    UpdateState state = UpdateState::kServing;
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::string adapter_config_digest{};
    ReplicaOutcome outcome{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("replica", replica, "the sender");
        f("order", order, "the answered order: open, fill, stage, ready, commit or drop");
        f("ok", ok, "the order was carried out");
        verdict.fields_in(f, "error code; absent: done", "what failed, on which rank");
        f("state", state, "serving, awaiting_weights, staged or torn");
        f("epoch",
          epoch,
          "stage, if ok: the update's new_epoch; otherwise the epoch of the model's weights that "
          "serve");
        f("label", label, "stage, if ok: the new version's label; otherwise the model's");
        f("digest", digest, "stage, if ok: the new version's digest; otherwise the model's");
        f("adapter_config_digest",
          adapter_config_digest,
          "stage of an adapter: the digest of its configuration's text, 32 hex digits");
        f("outcome", outcome, "every rank's outcome");
    }
};

struct UpdateWaits {
    static constexpr std::string_view kType = "update_waits";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tokenizer_proc: the ranks that have not finished a commit or a drop. "
        "Sent with the order to the ranks, and after each rank's answer except the last. If the "
        "caller's deadline passes, the error names these ranks.";
    UpdateId update{};
    ReplicaId replica{};
    std::vector<Rank> ranks{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("replica", replica, "the sender");
        f("ranks", ranks, "the ranks that have not answered");
    }
};

// ---- scheduler <-> workers ----

struct WorkerStage {
    static constexpr std::string_view kType = "worker_stage";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker: fill and check the shadow copy (direct: the live one) in the "
        "background. "
        "Answered by `worker_staged`; of a session, by `worker_filled`.";
    UpdateId update{};
    UpdateSpec spec{};
    std::int64_t timeout_ms = 0;
    std::optional<AdapterId> begins_as{};
    bool rollback = false;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("spec", spec, "what to do");
        f("timeout_ms", timeout_ms, "after this time a rank gives up by itself; 0: never");
        f("begins_as",
          begins_as,
          "of an adapter: the update that loaded the version whose configuration and bytes the new "
          "one begins with; absent: all bytes arrive");
        f("rollback",
          rollback,
          "for an adapter: no bytes arrive; the new version equals that of `begins_as`");
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
        f("timeout_ms", timeout_ms, "after this time a rank gives up by itself; 0: never");
    }
};

struct WorkerFilled {
    static constexpr std::string_view kType = "worker_filled";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: a bucket is in place, or why it is not.";
    UpdateId update{};
    std::int64_t bucket = 0;
    RankOutcome outcome{};

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("bucket", bucket, "the bucket; 0: the session is open");
        f("outcome", outcome, "the rank's outcome of the whole session so far");
    }
};

struct WorkerFinish {
    static constexpr std::string_view kType = "worker_finish";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker: the last bucket has arrived: verify. Answered by "
        "`worker_staged`.";
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
    std::map<std::string, std::string> declared{};
    std::string adapter_config_digest{};
    std::int64_t adapter_bytes = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("outcome", outcome, "ok: prepared");
        f("digests", digests, "digests of everything resident in the staged copy, in name order");
        f("declared",
          declared,
          "tensors of the manifest whose names have another form, as PEFT's: the resident name of "
          "each");
        f("adapter_config_digest",
          adapter_config_digest,
          "for an adapter: the digest of its configuration's text, 32 hex digits");
        f("adapter_bytes",
          adapter_bytes,
          "for an adapter: bytes of this rank's memory that the adapter takes");
    }
};

struct WorkerCommit {
    static constexpr std::string_view kType = "worker_commit";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker, between two plans: the staged copy (rollback: the retained "
        "one) is live from the next plan on; of an adapter: rows of later plans may name the "
        "version. Answered by `worker_committed`.";
    UpdateId update{};
    Epoch epoch{};
    bool rollback = false;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("epoch",
          epoch,
          "the model's new epoch, which later plans name; for an adapter: the update's number");
        f("rollback", rollback, "swap back to the retained copy");
    }
};

struct WorkerCommitted {
    static constexpr std::string_view kType = "worker_committed";
    static constexpr std::string_view kAbout =
        "tp_worker -> scheduler_proc: the copies are "
        "swapped.";
    UpdateId update{};
    Rank rank{};
    Epoch epoch{};
    std::int64_t elapsed_us = 0;

    template <class F>
    void fields(F&& f) {
        f("update", update, "the update");
        f("rank", rank, "the sender");
        f("epoch", epoch, "the epoch in `worker_commit`");
        f("elapsed_us", elapsed_us, "microseconds of the swap");
    }
};

struct WorkerDrop {
    static constexpr std::string_view kType = "worker_drop";
    static constexpr std::string_view kAbout =
        "scheduler_proc -> tp_worker: stop staging and discard it. Answered by `worker_dropped`.";
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

}  // namespace pitstop::messages
