// pitstop's own protocol on the sockets of an ipc source, for pushers without PyTorch.
//
// The pusher binds a REQ socket per worker, and gives its address in the update call
// (weight_source.h, `handles`). The worker connects a REP socket. Each message of the pusher gets
// one answer:
//
//   push_open     -> push_layout    greeting; the layout of the worker's shard, if it can adopt one
//   push_bucket*  -> push_done      tensors in the pusher's memory; answered once they are read
//   push_shard    -> push_done      in place of buckets: the whole shard, laid out as push_layout
//                                   says; after the commit the worker uses this memory itself
//   push_end      -> push_done      the end; no message follows
//
// Answers have the order of the messages. A pusher may send a message before it has the answer to
// the previous one. It may reuse a bucket's memory once the bucket is answered. A push_done with a
// code ends the push: the stage is dropped, and the old version continues to serve.
//
// Memory is a file of shared memory. A message names a process that has the file open, and the
// file's descriptor in that process; the worker opens the file through /proc. If the file is
// truncated during the push, the push ends. An adopted shard is a sealed memfd, so that no process
// can change its digested bytes. A tensor in a bucket is row-major. All workers may read the same
// bucket; each reads only what its shard needs.
//
// A tensor may be sent by rows (all its dimensions but the last count rows) if every worker accepts
// that. The rows are sent in ascending order, in consecutive buckets, up to the last row. In
// between, no other tensor is sent by rows.
//
// A tensor may be in the memory of the worker's GPU instead. Its bucket names allocations by their
// CUDA IPC handles. The worker opens each once, and closes all before it answers push_end. The
// pusher's GPU must have written the tensor before the bucket is sent. The pusher frees no
// allocation before push_end is answered. It may reuse allocations in later buckets.
#pragma once

#include "base/ids.h"
#include "messages/fields.h"
#include "messages/verdict.h"
#include "messages/weight_source.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::messages {

// A file of shared memory.
struct SharedMemory {
    std::int64_t pid = 0;
    std::int64_t fd = 0;
    std::int64_t bytes = 0;

    template <class F>
    void fields(F&& f) {
        f("pid", pid, "a process that has the memory open");
        f("fd", fd, "the memory's file descriptor in that process");
        f("bytes", bytes, "its size");
    }
    friend bool operator==(const SharedMemory&, const SharedMemory&) = default;
};

struct PushOpen {
    static constexpr std::string_view kType = "push_open";
    static constexpr std::string_view kAbout =
        "pusher -> tp_worker: first. Answered by `push_layout`.";
    int protocol = 1;
    SharedMemory memory{};

    template <class F>
    void fields(F&& f) {
        f("protocol", protocol, "version of the push protocol: 1");
        f("memory",
          memory,
          "the memory in which buckets will be; its bytes 0: no buckets, a shard is pushed");
    }
};

// A rectangle of a tensor, in a shard.
struct ShardPiece {
    std::int64_t row_begin = 0;
    std::int64_t num_rows = 0;
    std::int64_t col_begin = 0;
    std::int64_t num_cols = 0;
    std::int64_t offset = 0;
    std::int64_t row_stride = 0;

    template <class F>
    void fields(F&& f) {
        f("row_begin", row_begin, "first row of the whole tensor");
        f("num_rows", num_rows, "rows");
        f("col_begin", col_begin, "first column of the whole tensor");
        f("num_cols", num_cols, "columns");
        f("offset", offset, "the place of its first element: bytes from the shard's start");
        f("row_stride", row_stride, "bytes between two rows there");
    }
    friend bool operator==(const ShardPiece&, const ShardPiece&) = default;
};

struct ShardTensor {
    std::string name{};
    std::vector<std::int64_t> shape{};
    std::vector<ShardPiece> pieces{};
    std::string dtype{};

    template <class F>
    void fields(F&& f) {
        f("name", name, "checkpoint name");
        f("shape", shape, "of the whole tensor; all dimensions but the last are rows");
        f("pieces", pieces, "the part of it that the worker has");
        f("dtype", dtype, "dtype of its elements there; absent: BF16");
    }
    friend bool operator==(const ShardTensor&, const ShardTensor&) = default;
};

struct PushLayout {
    static constexpr std::string_view kType = "push_layout";
    static constexpr std::string_view kAbout = "tp_worker -> pusher: the answer to `push_open`.";
    Verdict verdict{};
    Rank rank{};
    std::int64_t tp = 1;
    std::int64_t shard_bytes = 0;
    std::vector<ShardTensor> tensors{};
    bool takes_rows = false;

    template <class F>
    void fields(F&& f) {
        verdict.fields_in(f, "error code; absent: the push may continue", "what went wrong");
        f("rank", rank, "tensor-parallel rank");
        f("tp", tp, "ranks");
        f("shard_bytes",
          shard_bytes,
          "bytes that a shard must have for this worker to adopt it; 0: this worker adopts none");
        f("tensors", tensors, "the place of every tensor in the shard; all other bytes must be zero"
        );
        f("takes_rows", takes_rows, "a bucket may hold some rows of such a tensor");
    }
};

// Memory of the pusher on a GPU, as returned by cudaMalloc.
struct PushAllocation {
    std::string handle{};
    std::string device_uuid{};

    template <class F>
    void fields(F&& f) {
        f("handle", handle, "its cudaIpcMemHandle_t, 128 hex digits");
        f("device_uuid", device_uuid, "the GPU's name, as `status` names the worker: GPU-...");
    }
    friend bool operator==(const PushAllocation&, const PushAllocation&) = default;
};

struct PushTensor {
    std::string name{};
    std::string dtype{};
    std::vector<std::int64_t> shape{};
    std::int64_t offset = 0;
    std::optional<std::int64_t> allocation{};
    std::int64_t row_begin = 0;
    std::optional<std::int64_t> num_rows{};

    template <class F>
    void fields(F&& f) {
        f("name", name, "checkpoint name");
        f("dtype", dtype, "BF16, F16 or F32");
        f("shape", shape, "of the whole tensor");
        f("offset",
          offset,
          "bytes from the start of the memory, or of the allocation, to the tensor's first byte");
        f("allocation", allocation, "which of the bucket's allocations has it; absent: the memory");
        f("row_begin", row_begin, "the first row of the whole tensor that the bucket has");
        f("num_rows", num_rows, "the number of rows that the bucket has; absent: all");
    }
    friend bool operator==(const PushTensor&, const PushTensor&) = default;
};

struct PushBucket {
    static constexpr std::string_view kType = "push_bucket";
    static constexpr std::string_view kAbout =
        "pusher -> tp_worker: tensors that are in the memory now. Answered by `push_done` when "
        "they have been read.";
    std::int64_t bucket = 0;
    std::vector<PushTensor> tensors{};
    std::vector<PushAllocation> allocations{};

    template <class F>
    void fields(F&& f) {
        f("bucket", bucket, "counted from 0");
        f("tensors", tensors, "in any order");
        f("allocations", allocations, "allocations of the worker's GPU, each once");
    }
};

struct PushShard {
    static constexpr std::string_view kType = "push_shard";
    static constexpr std::string_view kAbout =
        "pusher -> tp_worker: the whole shard, sealed. Answered by `push_done` when the worker has "
        "verified the shard.";
    SharedMemory memory{};

    template <class F>
    void fields(F&& f) {
        f("memory", memory, "its memory");
    }
};

struct PushEnd {
    static constexpr std::string_view kType = "push_end";
    static constexpr std::string_view kAbout =
        "pusher -> tp_worker: the push is complete, or why it ends early. Answered by "
        "`push_done`.";
    Verdict verdict{};

    template <class F>
    void fields(F&& f) {
        verdict.fields_in(f, "error code: the push ends early; absent: complete", "why");
    }
};

struct PushDone {
    static constexpr std::string_view kType = "push_done";
    static constexpr std::string_view kAbout =
        "tp_worker -> pusher: the message was handled, or "
        "why not.";
    Verdict verdict{};

    template <class F>
    void fields(F&& f) {
        verdict.fields_in(f, "error code; absent: done", "every problem");
    }
};

std::optional<std::string> invalid(const PushOpen& message);
std::optional<std::string> invalid(const PushLayout& message);
std::optional<std::string> invalid(const PushBucket& message);

}  // namespace pitstop::messages
