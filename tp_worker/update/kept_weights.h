// Writes the weights of a whole version as one safetensors file, into which every rank
// writes its shard.
//
// A tensor's place in the file follows from the layout and the version's name, so ranks need not
// ask each other. A rectangle of a tensor is a set of ranges of the file, so no process needs a
// whole tensor in memory.
//
// Thread: any, one per file and rank.
#pragma once

#include "base/result.h"
#include "digest/digest_run.h"
#include "messages/keep.h"
#include "tp_worker/weights/weight_layout.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace pitstop::tp_worker {

inline constexpr std::int64_t kKeepPieceBytes = std::int64_t{1} << 20;  // copied, then written
// At most this many bytes may be written and not yet on the disk: more dirty pages would delay
// other writers.
inline constexpr std::int64_t kKeepDirtyBytesMax = std::int64_t{64} << 20;

class KeptWeights {
  public:
    // The name of the file, and a prefix of its tensors' names.
    struct Names {
        std::string file = "model.safetensors";
        std::string prefix{};
    };
    // `name` is the version in the file (epoch, label, digest); the header has it, too.
    KeptWeights(const WeightLayout& layout, const messages::WorkerKeep& name)
        : KeptWeights(layout, name, Names{}) {}
    KeptWeights(const WeightLayout& layout, const messages::WorkerKeep& name, Names names);

    // Gives the file its final size and its header.
    // Errors: there is no space for it, or the directory cannot be written.
    Result<> create(const std::string& directory) const;

    // Writes this rank's shard into the file, before create() or after it, and forces it to the
    // disk. `copy` fills `out` with the arena's bytes from `begin` on, or returns why that is no
    // longer allowed. `between` is called after each piece.
    struct WriteArgs {
        const std::string& directory;
        bool is_root = false;  // writes the tensors that are whole on every rank
        std::function<Result<>(std::int64_t begin, std::span<std::byte> out)> copy{};
        std::function<void()> between{};
    };
    Result<> write(const WriteArgs& args) const;

    [[nodiscard]] std::int64_t bytes() const { return file_bytes_; }

  private:
    struct Output;
    Result<> write_tensor(
        const WeightTensor& tensor, std::int64_t at, const WriteArgs& args, Output& output
    ) const;
    // Reads some rows of a part in one piece, and writes them.
    Result<> write_piece(
        const WeightTensor& tensor,
        const ShardPart& piece,
        std::int64_t at,
        const WriteArgs& args,
        Output& output
    ) const;

    const WeightLayout& layout_;
    Names names_;
    std::string head_{};                   // the header's length and the header
    std::vector<std::int64_t> offsets_{};  // of each tensor in the file, in the layout's order
    std::int64_t file_bytes_ = 0;
};

// Returns the digest of the version in `directory`, computed from its bytes; `between` is called
// after each piece; its error ends the work.
Result<std::string> digest_of_checkpoint(
    const std::string& directory, digest::AddRun add_run, const std::function<Result<>()>& between
);

}  // namespace pitstop::tp_worker
