// Puts what a stage takes into its copy of the shard, and digests what is resident there: one way
// for each kind of memory. The stage (weight_stage.h) says what belongs where and what may not be.
//
//   host_writer.h  the host's, by threads
//   gpu_writer.h   a GPU's, by copies and kernels on a stream that gives way to steps
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

// Says what to do about one tensor.
struct FillJob {
    std::size_t index = 0;                    // the tensor's in the layout
    const Incoming* incoming = nullptr;       // null: it is kept
    std::span<messages::PartDigest> parts{};  // the tensor's; what is resident is added
    // The bytes are compared with what arrived before under this name or a tied one: they are
    // digested into `parts` and written nowhere.
    bool is_only_digested = false;
};
// Says what becomes of tensors that are kept.
enum class Keep : std::uint8_t { kCopy, kInPlace };

// Says what filling came to.
struct Filled {
    std::int64_t num_tensors = 0;
    std::int64_t bytes = 0;
    Duration receive{};
    Duration verify{};
    Duration rest{};                                              // so that passes went on
    std::vector<std::pair<std::size_t, std::string>> problems{};  // by the tensor's index
    std::optional<std::pair<std::size_t, Error>> error{};         // it ended the work

    [[nodiscard]] Duration time() const { return receive + verify + rest; }
};

// Holds elements of a tensor's shard, each once.
struct ShardElements {
    std::vector<std::int64_t> at{};   // flat in the shard
    std::vector<std::byte> values{};  // of each, as it is resident
};

// Returns the updates of elements that this rank holds. Of two for one element the later counts.
[[nodiscard]] ShardElements elements_here(const SparseTensor& sparse, const WeightTensor& tensor);

class ShardWriter {
  public:
    virtual ~ShardWriter() = default;

    // When this returns, all bytes are in their place and digested, and what they came from may
    // change; after an error some are.
    virtual Filled fill(std::vector<FillJob> jobs, Keep keep) = 0;
    // Fills the whole target, laid out as it is there; does not digest it. Returns how long it
    // rested.
    virtual Result<Duration> fill_target(std::span<const std::byte> bytes) = 0;
    // Copies the tensor as it is live; does not digest it.
    virtual void copy_live(const WeightTensor& tensor) = 0;
    virtual void write(const WeightTensor& tensor, const ShardElements& elements) = 0;
    // Returns how many of the elements have another value there.
    virtual std::int64_t count_different(
        const WeightTensor& tensor, const ShardElements& elements
    ) = 0;
};

// Returns what an update is refused for, unless it allows it: which value of `rows`, the resident
// bytes of the shard's rows from row_begin on, is not finite.
[[nodiscard]] std::string nonfinite_problem(
    const WeightTensor& tensor, std::int64_t row_begin, std::span<const std::byte> rows
);

// `args` outlives it.
[[nodiscard]] std::unique_ptr<ShardWriter> make_shard_writer(const StageArgs& args);

}  // namespace pitstop::tp_worker
