// The tensors of a push, read in pieces, each digested while it is in the cache.
//
// Thread: any, once constructed; the sums are guarded.
#pragma once

#include "base/digest.h"
#include "base/mutex.h"
#include "base/result.h"
#include "client/weight_pusher.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {

// Part of a tensor: whole rows, read and digested together. A tensor's last dimension counts
// columns, the others rows; a tensor of one dimension is one row.
struct Piece {
    std::size_t tensor = 0;
    std::int64_t row_begin = 0;
    std::int64_t num_rows = 0;
};

class PushedTensors {
  public:
    // REQUIRES: both arguments outlive this object.
    PushedTensors(const PushOptions& options, std::span<const TensorToPush> tensors);

    // Errors: kInvalidArgument for a name that appears twice, a dtype other than BF16, F16 and
    // F32, or no tensor; kUnsupported for a push that workers cannot adopt.
    [[nodiscard]] Result<> check() const;

    [[nodiscard]] std::int64_t bytes() const { return bytes_; }  // of all tensors
    [[nodiscard]] std::int64_t row_bytes_of(const Piece& piece) const {
        return row_bytes_of(piece.tensor);
    }
    [[nodiscard]] std::int64_t row_bytes_of(std::size_t tensor) const;
    [[nodiscard]] std::int64_t num_rows_of(std::size_t tensor) const;
    [[nodiscard]] std::int64_t bytes_of(const Piece& rows) const {
        return rows.num_rows * row_bytes_of(rows);
    }
    void add_pieces(std::size_t tensor, std::vector<Piece>& pieces) const {
        add_pieces({tensor, 0, num_rows_of(tensor)}, pieces);
    }
    // Cuts these rows into pieces.
    void add_pieces(const Piece& rows, std::vector<Piece>& pieces) const;
    // Returns the name that a tree has for the tensor: shorter in models with vision.
    [[nodiscard]] std::string_view tree_name_of(std::size_t tensor) const { return names_[tensor]; }

    // Writes the piece to its place in the tensor, which begins at `tensor_begin`.
    [[nodiscard]] Result<> fill(const Piece& piece, std::byte* tensor_begin);

    // Calls use(rows) with the piece's rows, which are then in the cache if a digest is declared.
    [[nodiscard]] Result<> read(
        const Piece& piece, const std::function<Result<>(const std::byte* rows)>& use
    );

    // Returns the digest, in resident form, of the tensors whose names in the tree pass `is_sent`.
    // Empty if none is declared: because of the options, or because a tensor will be converted or
    // cut. REQUIRES: all pieces of these tensors were filled or read.
    [[nodiscard]] std::string version_digest(
        const std::function<bool(std::string_view name)>& is_sent
    );

  private:
    // Calls use(rows) with the piece in memory. REQUIRES: its tensor has data.
    template <class F>
    Result<> visit(const Piece& piece, F use) const;
    // Adds the digest of the piece at `rows`, and copies it to `copy_to` if that is not null.
    void add_digest(const Piece& piece, const std::byte* rows, std::byte* copy_to);
    // Does what add_digest() does, for a tensor that is sent in BF16 and resident in F32.
    void add_digest_as_f32(const Piece& piece, const std::byte* rows, std::byte* copy_to);
    void tell_progress(std::int64_t bytes);

    const PushOptions& options_;
    std::span<const TensorToPush> tensors_;
    std::vector<std::string> names_{};  // as in a tree
    std::int64_t bytes_ = 0;
    bool has_digest_ = false;  // whether a digest is declared
    Mutex mutex_{};
    std::vector<Digest> digests_ GUARDED_BY(mutex_);  // by tensor
    std::int64_t bytes_sent_ GUARDED_BY(mutex_) = 0;
};

}  // namespace pitstop
