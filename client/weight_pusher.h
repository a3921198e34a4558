// Pushes weights into a running tree from the outside, without PyTorch: a checkpoint engine in one
// call (messages/push.h has the protocol).
//
//   auto client = Client::connect({.run_dir = "/run/pitstop"});
//   std::vector<TensorToPush> tensors = ...;  // names, dtypes, shapes, how to read the bytes
//   auto report = WeightPusher(**client, {.label = "step 12"}).push(tensors);
//   if (!report) return fail(report.error());
//
// Buckets lie in memory shared by all workers of the machine: each is filled once, and every worker
// reads from it what its shard needs, while the next ones are filled. With
// `adopt` whole shards are laid out instead, as the workers asked, and become the memory they
// compute from: a commit moves no bytes.
//
// The digest of what was sent is computed on the way and declared with the commit: the new version
// serves only if every rank holds exactly these bytes.
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

// Describes a whole tensor, row-major. Its bytes are in memory, and copied and digested in one
// reading there; or `read` fills `out` from byte `begin` on. Both happen on any thread.
struct TensorToPush {
    std::string name{};
    std::string dtype{};  // BF16, F16 or F32
    std::vector<std::int64_t> shape{};
    std::function<Result<>(std::int64_t begin, std::span<std::byte> out)> read{};
    const std::byte* data = nullptr;  // any alignment; null: read() it
    // If this is not null, `data` is a mapping of a file that somebody may make shorter; asked for
    // after each reading, it says whether the tensor was all there. What is gone is read as zeros,
    // not a SIGBUS.
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
    bool adopt = false;          // the whole model only, in the dtypes that workers hold
    bool declare_digest = true;  // BF16 only, the whole model only; else nothing is declared
    // Four are under way; a tensor that is larger has one of its own. Small ones are still in the
    // cache when a worker reads them, and have few pages that were never touched.
    std::int64_t bucket_bytes = std::int64_t{4} << 20;
    int num_threads = 0;  // threads that fill; 0: a quarter of the machine's, 1 to 4
    std::chrono::milliseconds timeout{600'000};
    std::chrono::milliseconds stall{60'000};  // a worker that is silent for so long is given up
    std::function<void(const PushProgress&)> on_progress{};
};

struct PushReport {
    messages::UpdateReply
        filled{};  // the buckets': bytes, seconds of receiving and verifying per rank
    messages::UpdateReply reply{};  // the commit's
    std::string digest{};           // declared; empty: none
    std::int64_t bytes = 0;         // sent
    std::int64_t num_buckets = 0;
    std::int64_t num_workers = 0;
    double fill_s = 0;  // spent filling, not overlapped with it
    double wait_s = 0;  // spent waiting for workers
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
        f("total_s", total_s, "seconds of it all");
    }
};

class WeightPusher {
  public:
    WeightPusher(Client& client, PushOptions options)
        : client_(client), options_(std::move(options)) {}

    // Errors: what a worker or the tree says; kUnavailable, kDeadlineExceeded; kUnsupported (a
    // worker that cannot adopt). On any error the old version serves on.
    Result<PushReport> push(std::span<const TensorToPush> tensors);

  private:
    Client& client_;
    PushOptions options_;
};

}  // namespace pitstop
