// Digests the weights that are resident, by this rank's parts (base/digest.h defines it,
// messages/version_digest.h adds the parts of all ranks up).
#pragma once

#include "base/result.h"
#include "digest/digest_run.h"
#include "kernels/device_memory.h"
#include "kernels/ops.h"
#include "messages/version_digest.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace pitstop::tp_worker {

// Appends the entries of one tensor's parts on this rank, their lanes zero.
void append_parts(const WeightTensor& tensor, std::vector<messages::PartDigest>& parts);

// Returns what the op takes of a part whose shard starts at `shard`, but for the sum and the
// stream. REQUIRES: the tensor has !cuts_words.
[[nodiscard]] kernels::DigestArgs digest_args(
    Encoding encoding, const ShardPart& part, const std::byte* shard
);

// Adds rows [row_begin, row_begin + num_rows) of the shard to its parts' digests, and returns how
// many of their elements are infinities or NaNs. Rows of padding belong to no part.
// REQUIRES: !tensor.cuts_words; parts as append_parts made them.
struct RowsDigestArgs {
    const WeightTensor& tensor;
    const std::byte* arena = nullptr;
    std::int64_t row_begin = 0;
    std::int64_t num_rows = 0;
    const kernels::Ops& ops;
    kernels::Stream stream{};
};
std::uint64_t add_rows_digest(const RowsDigestArgs& args, std::span<messages::PartDigest> parts);

// Copies rows of the shard to their place and adds them as add_rows_digest does, in one reading of
// their bytes. REQUIRES: as above; neither overlaps the other.
enum class RowsFrom {
    kTensor,  // `src` is the whole tensor's first byte, stored as it is resident, any alignment
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

// Returns an entry per part that this rank holds, in name order. A tensor that every rank
// holds whole has one part; a split one a part per rank; a replicated KV projection a part per
// KV head. kUnsupported, naming the tensor, where tp cuts a row between the digest's 8-byte
// words: no shard can be digested alone then. `between` is called after each piece of some
// MiB.
Result<std::vector<messages::PartDigest>> digest_weights(
    const WeightLayout& layout,
    const std::byte* arena,
    const kernels::Ops& ops,
    kernels::Stream stream,
    const std::function<void()>& between = [] {}
);

// Does the same of weights in the opened GPU's memory, by its ops, on a stream that gives way to
// steps. Its memory is taken once: to allocate or free on a GPU may wait for what runs there, a
// step too (CUDA Runtime API, cudaFree; CUDA C++ Programming Guide, "Implicit Synchronization").
//
// Thread: one at a time. `layout` outlives it.
class GpuWeightDigest {
  public:
    // Errors: kResourceExhausted, no memory for the sums.
    static Result<GpuWeightDigest> make(const WeightLayout& layout);
    // Waits for it. Errors: as digest_weights().
    Result<std::vector<messages::PartDigest>> digest(
        const std::byte* arena, const kernels::Ops& ops
    );

  private:
    explicit GpuWeightDigest(const WeightLayout& layout) : layout_(&layout) {}

    const WeightLayout* layout_;
    std::vector<messages::PartDigest> parts_{};  // their lanes are left out
    kernels::DeviceStream stream_{};
    kernels::DeviceEvent is_done_{};
    kernels::DeviceBuffer sums_{};       // [parts] Digest
    kernels::PinnedBuffer host_sums_{};  // the same, on the host
};

}  // namespace pitstop::tp_worker
