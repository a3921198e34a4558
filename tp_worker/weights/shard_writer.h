// Writes a stage's tensors into its copy of the shard, and digests the resident bytes; one
// class per kind of memory. The stage (weight_stage.h) decides which tensors are accepted, and
// where they belong.
//
//   host_writer.h  the host's, by threads
//   gpu_writer.h   a GPU's, by copies and kernels on a stream that yields to steps
//   host_stage_writer.h  the host's, for weights that serve on a GPU
//
// Thread: one at a time, the background's.
#pragma once

#include "base/result.h"
#include "base/time.h"
#include "messages/version_digest.h"
#include "tp_worker/weights/stage_args.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {

// What to do with one tensor.
struct FillJob {
    std::size_t index = 0;               // the tensor's index in the layout
    const Incoming* incoming = nullptr;  // null: the tensor is kept
    // The digests of the tensor's parts, to which those of the resident bytes are added.
    std::span<messages::PartDigest> parts{};
    // If true, the tensor arrived before under this name or a tied one. The bytes are digested into
    // `parts`, for the comparison with the earlier ones, and written nowhere.
    bool is_only_digested = false;
    // If set, only some rows of the tensor arrive: this is the tensor with its parts cut to them.
    // `incoming->bytes` are then addressed as those of the whole tensor.
    const WeightTensor* rows = nullptr;

    [[nodiscard]] const WeightTensor& tensor(const WeightLayout& layout) const {
        return rows != nullptr ? *rows : layout.tensors()[index];
    }
    // If true, the tensor is complete once this job is done.
    bool is_last = true;
};
// How to keep tensors: copy them from the live copy, or leave them in place.
enum class Keep : std::uint8_t { kCopy, kInPlace };

// The result of filling.
struct Filled {
    std::int64_t num_tensors = 0;
    std::int64_t bytes = 0;
    Duration receive{};
    Duration verify{};
    Duration rest{};  // time spent waiting, so that passes could continue
    std::vector<std::pair<std::size_t, std::string>> problems{};  // by the tensor's index
    std::optional<std::pair<std::size_t, Error>> error{};         // the error that ended the work

    [[nodiscard]] Duration time() const { return receive + verify + rest; }
};

// Some elements of a tensor's shard, each once.
struct ShardElements {
    std::vector<std::int64_t> at{};   // flat indices in the shard
    std::vector<std::byte> values{};  // of each element, in resident form
};

// Returns the updates of elements that this rank has. Of two updates of one element, the
// later counts.
[[nodiscard]] ShardElements elements_here(const SparseTensor& sparse, const WeightTensor& tensor);

class ShardWriter {
  public:
    virtual ~ShardWriter() = default;

    // When this returns, all bytes are in place and digested, and their sources may change. After
    // an error only some bytes are in place.
    virtual Filled fill(std::vector<FillJob> jobs, Keep keep) = 0;
    // Fills the whole target with bytes in the target's layout; does not digest it. Returns the
    // time that it rested.
    virtual Result<Duration> fill_target(std::span<const std::byte> bytes) = 0;
    // Copies the tensor from the live copy; does not digest it.
    virtual void copy_live(const WeightTensor& tensor) = 0;
    virtual void write(const WeightTensor& tensor, const ShardElements& elements) = 0;
    // Returns how many of the elements have a different value in the target.
    virtual std::int64_t count_different(
        const WeightTensor& tensor, const ShardElements& elements
    ) = 0;
};

// Returns the problem of an update that does not allow non-finite values: the first such value in
// `rows`, the resident bytes of the shard's rows from row_begin on.
[[nodiscard]] std::string nonfinite_problem(
    const WeightTensor& tensor, std::int64_t row_begin, std::span<const std::byte> rows
);

// `args` must outlive the writer.
[[nodiscard]] std::unique_ptr<ShardWriter> make_shard_writer(const StageArgs& args);

}  // namespace pitstop::tp_worker
