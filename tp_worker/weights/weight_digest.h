// Digests the resident weights, by this rank's parts. base/digest.h defines the digest;
// messages/version_digest.h adds up the parts of all ranks.
#pragma once

#include "base/result.h"
#include "digest/digest_run.h"
#include "kernels/ops.h"
#include "kernels/runtime/device_memory.h"
#include "messages/version_digest.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

// Appends the entries of one tensor's parts on this rank, with zero lanes.
void append_parts(const WeightTensor& tensor, std::vector<messages::PartDigest>& parts);

// Returns the op's arguments for a part whose shard starts at `shard`, without the sum and the
// stream. REQUIRES: the tensor has !cuts_words.
[[nodiscard]] kernels::DigestArgs digest_args(
    Encoding encoding, const ShardPart& part, const std::byte* shard
);
// Digests rows on a GPU, and counts their infinities and NaNs in `count`, unless it is null. The
// upper halves of kF32 elements suffice for the count; their own digest goes into `unused`.
void digest_and_count(
    Encoding encoding,
    kernels::DigestArgs args,
    std::uint64_t* count,
    Digest* unused,
    const kernels::Ops& ops
);

// Adds rows [row_begin, row_begin + num_rows) of the shard to the digests of its parts. Returns the
// number of infinities and NaNs in them. Rows of padding belong to no part. REQUIRES:
// !tensor.cuts_words; parts as append_parts made them.
struct RowsDigestArgs {
    const WeightTensor& tensor;
    const std::byte* arena = nullptr;
    std::int64_t row_begin = 0;
    std::int64_t num_rows = 0;
    const kernels::Ops& ops;
    kernels::Stream stream{};
};
std::uint64_t add_rows_digest(const RowsDigestArgs& args, std::span<messages::PartDigest> parts);

// Copies rows of the shard into place and digests them like add_rows_digest, reading the bytes
// once. REQUIRES: as above; source and target do not overlap.
enum class RowsFrom {
    kTensor,  // `src` is the whole tensor's first byte, in resident form, any alignment
    kShard,   // `src` is another arena of the same layout
};
struct CopyRowsArgs {
    const WeightTensor& tensor;
    RowsFrom from = RowsFrom::kTensor;
    const std::byte* src = nullptr;
    std::byte* arena = nullptr;
    std::int64_t row_begin = 0;
    std::int64_t num_rows = 0;
    digest::AddRun add_run = nullptr;
};
std::uint64_t copy_rows_and_digest(const CopyRowsArgs& args, std::span<messages::PartDigest> parts);

// Returns an entry per part that this rank has, in name order. A tensor that is whole on every rank
// has one part; a split tensor has a part per rank, a replicated KV projection a part per KV head.
// kUnsupported, naming the tensor, if tp cuts a row inside a word of the digest: then no shard can
// be digested alone. `between` is called after each piece of some MiB.
Result<std::vector<messages::PartDigest>> digest_weights(
    const WeightLayout& layout,
    const std::byte* arena,
    const kernels::Ops& ops,
    kernels::Stream stream,
    const std::function<void()>& between = [] {}
);

// Digests weights in the opened GPU's memory, by its ops, on a stream that yields to steps.
// Memory is allocated once: allocating or freeing may wait for running work, even a step (CUDA
// Runtime API, cudaFree; CUDA C++ Programming Guide, "Implicit Synchronization").
//
// Thread: one at a time. `layout` outlives it.
class GpuWeightDigest {
  public:
    // Errors: kResourceExhausted without memory for the sums.
    static Result<GpuWeightDigest> make(const WeightLayout& layout);
    // Digests the weights, and waits for the result. Errors: as digest_weights().
    Result<std::vector<messages::PartDigest>> digest(
        const std::byte* arena, const kernels::Ops& ops
    );

  private:
    explicit GpuWeightDigest(const WeightLayout& layout) : layout_(&layout) {}

    const WeightLayout* layout_;
    std::vector<messages::PartDigest> parts_{};  // with zero lanes
    kernels::DeviceStream stream_{};
    kernels::DeviceEvent is_done_{};
    kernels::DeviceBuffer sums_{};       // [parts] Digest
    kernels::PinnedBuffer host_sums_{};  // sums_, copied to the host
};

}  // namespace pitstop::tp_worker
