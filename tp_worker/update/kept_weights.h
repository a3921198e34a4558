// Writes the weights of a whole version as one safetensors file, into which every rank writes its
// shard.
//
// Where a tensor lies follows from the layout and the version's name, so each rank knows it without
// asking the others; and a rectangle of a tensor is some ranges of the file, so that no process has
// to hold a whole tensor.
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
// This much may be written and not yet on the disk, at most: what is dirty holds up others that
// write.
inline constexpr std::int64_t kKeepDirtyBytesMax = std::int64_t{64} << 20;

class KeptWeights {
  public:
    // It is to write the file of that version: `name` has its epoch, label and digest, which the
    // header tells.
    KeptWeights(const WeightLayout& layout, const messages::WorkerKeep& name);

    // Makes the file, as large as it will be, with its header.
    // Errors: there is no room for it, or the directory cannot be written.
    Result<> create(const std::string& directory) const;

    // Writes this rank's shard into the file that create() made, and forces it to the disk.
    // `copy` fills `out` with the arena's bytes from `begin` on, or says why it may not any more;
    // `between` is called after each piece.
    struct WriteArgs {
        const std::string& directory;
        bool is_root = false;  // writes what every rank holds whole
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
    // `piece` is some rows of a part of it, and is read in one go.
    Result<> write_piece(
        const WeightTensor& tensor,
        const ShardPart& piece,
        std::int64_t at,
        const WriteArgs& args,
        Output& output
    ) const;

    const WeightLayout& layout_;
    std::string head_{};                   // the header's length and the header
    std::vector<std::int64_t> offsets_{};  // by tensor in the file, in the layout's order
    std::int64_t file_bytes_ = 0;
};

// Returns the digest of the version that lies in `directory`, from its bytes; `between` is called
// after each piece and may end it.
Result<std::string> digest_of_checkpoint(
    const std::string& directory, digest::AddRun add_run, const std::function<Result<>()>& between
);

}  // namespace pitstop::tp_worker
