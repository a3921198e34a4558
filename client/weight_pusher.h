// Pushes weights into a running tree from another process, without PyTorch: a checkpoint engine in
// one call (messages/push.h has the protocol).
//
//   auto client = Client::connect({.run_dir = "/run/pitstop"});
//   std::vector<TensorToPush> tensors = ...;  // names, dtypes, shapes, how to read the bytes
//   auto report = WeightPusher(**client, {.label = "step 12"}).push(tensors);
//   if (!report) return fail(report.error());
//
// Buckets are in memory shared by all workers of the machine: each is filled once, and every worker
// reads the parts that its shard needs, while the next buckets are filled. With `adopt`, the pusher
// writes whole shards in the workers' layout instead, and the workers compute from that memory: a
// commit moves no bytes.
//
// The digest of the sent bytes is computed on the way and declared with the commit: the new version
// serves only if every rank has exactly these bytes.
//
// Thread: one push at a time per tree; push() waits. Owns: the shared memory, until it returns.
#pragma once

#include "base/result.h"
#include "client/client.h"
#include "messages/weights.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace pitstop {

// A whole tensor, row-major. Either its bytes are in memory, where they are copied and digested in
// one pass, or `read` fills `out` from byte `begin` on. Copying and `read` may run on any thread.
struct TensorToPush {
    std::string name{};
    std::string dtype{};  // BF16, F16 or F32
    std::vector<std::int64_t> shape{};
    std::function<Result<>(std::int64_t begin, std::span<std::byte> out)> read{};
    const std::byte* data = nullptr;  // any alignment; null: use read()
    // Not null if `data` is a mapping of a file that may be truncated meanwhile. Called after each
    // reading; returns whether the tensor was complete. Missing bytes read as zeros and raise no
    // SIGBUS.
    std::function<Result<>()> is_whole{};

    [[nodiscard]] std::int64_t bytes() const;
};

struct PushProgress {
    std::int64_t bytes_sent = 0;
    std::int64_t bytes_total = 0;
};

struct PushOptions {
    std::string label{};
    messages::KvPolicy kv_policy = messages::KvPolicy::kKeep;
    bool partial = false;
    bool allow_nonfinite = false;
    bool adopt = false;  // only for the whole model, in the workers' dtypes
    // only for a whole model in BF16 with a tensor per expert; otherwise no digest is declared
    bool declare_digest = true;
    // Four buckets are in progress at a time. A larger tensor has a bucket of its own or, if all
    // workers are on GPUs, is sent by rows. Small buckets are still in the cache when a worker
    // reads them, and touch few new pages. 0: 4 MiB, or 32 MiB for workers on GPUs.
    std::int64_t bucket_bytes = 0;
    // Threads that fill buckets. 0: a quarter of the cores, from 1 to 4 threads; if all workers are
    // on GPUs, half of the cores, from 1 to 16 threads.
    int num_threads = 0;
    std::chrono::milliseconds timeout{600'000};
    // a worker that is silent for this long counts as lost
    std::chrono::milliseconds stall{60'000};
    std::function<void(const PushProgress&)> on_progress{};
};

struct PushReport {
    messages::UpdateReply
        filled{};  // bytes of all buckets; per rank, seconds of receiving and of verifying
    messages::UpdateReply reply{};  // of the commit
    std::string digest{};           // as declared; empty: none
    std::int64_t bytes = 0;         // bytes sent
    std::int64_t num_buckets = 0;
    std::int64_t num_workers = 0;
    double fill_s = 0;  // filling that did not overlap with waiting
    double wait_s = 0;  // waiting for workers
    double push_s = 0;  // from the first byte to the last worker's answer
    double total_s = 0;

    template <class F>
    void fields(F&& f) {
        f("filled", filled, "the buckets' answer: bytes and seconds of each rank");
        f("reply", reply, "the commit's");
        f("digest", digest, "declared; empty: none");
        f("bytes", bytes, "sent");
        f("num_buckets", num_buckets, "buckets");
        f("num_workers", num_workers, "workers");
        f("fill_s", fill_s, "seconds of filling");
        f("wait_s", wait_s, "seconds of waiting for workers");
        f("push_s", push_s, "seconds from the first byte to the last worker's answer");
        f("total_s", total_s, "seconds of the whole push");
    }
};

class WeightPusher {
  public:
    WeightPusher(Client& client, PushOptions options)
        : client_(client), options_(std::move(options)) {}

    // Errors: those of a worker or the tree; kUnavailable, kDeadlineExceeded; kUnsupported (a
    // worker that cannot adopt). After any error the old version continues to serve.
    Result<PushReport> push(std::span<const TensorToPush> tensors);

  private:
    Client& client_;
    PushOptions options_;
};

}  // namespace pitstop
