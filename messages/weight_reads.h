// Calls that read the live weights: a tensor by its name, and the digests of all resident weights.
// Reads change nothing, and run during generation.
//
// A call goes from the admin door through the scheduler, which checks that the weights are
// readable, to the workers. Each rank answers for its shard, and the door assembles the answers.
#pragma once

#include "base/ids.h"
#include "messages/control_call.h"
#include "messages/fields.h"
#include "messages/verdict.h"
#include "messages/version_digest.h"
#include "messages/weight_source.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

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
        call_fields(f, *this);
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
        f("epoch", epoch, "the epoch of the weights that the tensor belongs to");
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
        call_fields(f, *this);
    }
};

struct DigestsReply {
    static constexpr std::string_view kType = "digests_reply";
    static constexpr std::string_view kAbout =
        "admin door -> client: digests computed from memory by this call.";
    CallId call{};
    bool ok = false;
    Verdict verdict{};
    Epoch epoch{};
    std::string label{};
    std::string digest{};
    std::vector<TensorInfo> tensors{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("ok", ok, "replicas agree, and so do the copies of each tensor on several ranks");
        verdict.fields_in(f, "error code; absent: done", "which ranks differ, and in what");
        f("epoch", epoch, "the version that serves");
        f("label", label, "its label");
        f("digest", digest, "the version's digest");
        f("tensors", tensors, "every tensor with its digest, in name order");
    }
};

// ---- scheduler <-> workers ----

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
    Verdict verdict{};
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
        f("epoch", epoch, "the epoch of the weights that the tensor belongs to");
        verdict.fields_in(
            f,
            "error code (not_found: no such tensor); absent: the part follows",
            "what failed, with similar names"
        );
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
    Verdict verdict{};

    template <class F>
    void fields(F&& f) {
        f("call", call, "the call answered");
        f("replica", replica, "set by the scheduler");
        f("rank", rank, "the sender");
        f("epoch",
          epoch,
          "the version that was live when it began; if the version changed meanwhile, its digest "
          "is computed again");
        f("label", label, "set by the scheduler");
        f("digests", digests, "in name order");
        verdict.fields_in(
            f, "error code; absent: ok. One rank's error is the replica's", "the error's message"
        );
    }
};

std::optional<std::string> invalid(const GetWeights& message);

}  // namespace pitstop::messages
