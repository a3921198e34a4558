// The parts of tensors that a rank has, and their places in its arena. All code that fills, checks,
// digests or serves weights uses this one list.
//
// Tensors keep the checkpoint's names and layout (rows contiguous along the reduced dimension). The
// layout is made from the model's list of slots (slot.h). A weight of one dimension is one row; of
// three, rows of rows: all dimensions but the last count rows, as everywhere on the wire.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "base/string_map.h"
#include "checkpoint/safetensors.h"
#include "tp_worker/weights/encoding.h"
#include "tp_worker/weights/slot.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

// A rectangle of a tensor that a rank has: its place in the whole tensor, and in the shard. For
// each r < rows and c < cols
//
//   shard[shard_begin() + r * shard_stride + c]  is  whole[whole_begin() + r * whole_stride + c]
//
// These rectangles describe a shard completely: code that loads, converts, digests, reads back,
// keeps or pushes weights is a loop over them. All counts are elements: in the source's dtype for
// the whole tensor, in the tensor's encoding for the shard.
struct ShardPart {
    // The number of this part among the tensor's num_parts. The parts of all ranks cover the
    // tensor; equal numbers on several ranks are copies.
    std::int64_t index = 0;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t whole_row = 0;  // the place of its first element
    std::int64_t whole_col = 0;
    std::int64_t whole_stride = 0;  // between rows; the columns of the whole tensor
    std::int64_t shard_row = 0;
    std::int64_t shard_col = 0;
    std::int64_t shard_stride = 0;

    [[nodiscard]] std::int64_t whole_begin() const { return whole_row * whole_stride + whole_col; }
    [[nodiscard]] std::int64_t shard_begin() const { return shard_row * shard_stride + shard_col; }
    [[nodiscard]] bool is_empty() const { return rows == 0 || cols == 0; }
    // Returns whether its rows are contiguous, in the whole tensor and in the shard.
    [[nodiscard]] bool is_contiguous() const {
        return cols == whole_stride && cols == shard_stride;
    }
    // Return the part of this rectangle in rows [begin, begin + num) of the whole tensor, or
    // of the shard.
    [[nodiscard]] ShardPart in_whole_rows(std::int64_t begin, std::int64_t num) const {
        return cut(begin - whole_row, num);
    }
    [[nodiscard]] ShardPart in_shard_rows(std::int64_t begin, std::int64_t num) const {
        return cut(begin - shard_row, num);
    }

  private:
    [[nodiscard]] ShardPart cut(std::int64_t begin, std::int64_t num) const;
};

struct WeightTensor {
    std::string name{};
    std::vector<std::int64_t> shape{};  // of the whole tensor
    std::int64_t whole_rows = 0;
    std::int64_t whole_cols = 0;
    // The parts lie in the shard in this order, side by side or one below the other, before the
    // rows of padding. Without parts, the shard has no rows: other ranks have the tensor.
    std::vector<ShardPart> parts{};
    std::int64_t num_parts = 1;  // of the whole tensor
    bool is_replicated = false;  // every rank has the whole
    bool cuts_words = false;     // some rank's part starts or ends inside a word of the digest
    std::int64_t rows = 0;       // of the shard, padding included
    std::int64_t cols = 0;
    std::int64_t offset = 0;  // bytes from the arena's start, 64-byte aligned
    Encoding encoding = Encoding::kBf16;
    // The index in tensors() of the one that a source may leave out together with this one.
    std::optional<std::size_t> left_out_with{};

    [[nodiscard]] std::int64_t row_bytes() const { return bytes_of(encoding, cols); }
    [[nodiscard]] std::int64_t bytes() const { return rows * row_bytes(); }
    // Returns the offset in an arena of an element of the shard, counted row by row.
    [[nodiscard]] std::int64_t offset_of(std::int64_t element) const {
        return offset + bytes_of(encoding, element);
    }
    [[nodiscard]] std::int64_t whole_bytes() const {
        return whole_rows * bytes_of(encoding, whole_cols);
    }
};

// The forms of names that are accepted for tensors.
enum class TensorNames : std::uint8_t {
    kOwn,
    kOfAdapter,  // adapter_names.h
    // For a text model that may be part of a model with vision: "model.language_model." may stand
    // for "model.". The vision model's own tensors and those of multi-token prediction are ignored.
    kOfHybrid,
};

// What to do with tensors that the model does not use.
enum class ExtraTensors : std::uint8_t { kRefuse, kIgnore };

class WeightLayout {
  public:
    // Errors: kUnsupported, naming a slot whose shape no weight can have, or whose name
    // another slot has.
    static Result<WeightLayout> make(
        const WeightSlots& slots,
        ExtraTensors extra = ExtraTensors::kRefuse,
        TensorNames names = TensorNames::kOwn
    );
    [[nodiscard]] bool is_of_adapter() const { return names_ == TensorNames::kOfAdapter; }

    // Sorted by name.
    [[nodiscard]] std::span<const WeightTensor> tensors() const { return tensors_; }
    [[nodiscard]] const WeightTensor& tensor(WeightId id) const {
        return tensors_[by_id_[static_cast<std::size_t>(raw(id))]];
    }
    [[nodiscard]] std::size_t num_slots() const { return by_id_.size(); }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }  // the arena's

    // Finds a tensor by its own name, in each form that TensorNames accepts; null if there is none.
    // find_tied() also finds a tied tensor by its other name.
    [[nodiscard]] const WeightTensor* find(std::string_view name) const;
    [[nodiscard]] const WeightTensor* find_tied(std::string_view name) const {
        return is_tied_head(name) ? tied() : find(name);
    }

    // In a model with tied embeddings, one tensor has two names: the embedding's, which is its own,
    // and the head's. Null, and an empty name, if the model ties nothing.
    [[nodiscard]] const WeightTensor* tied() const { return tied_ ? &tensors_[*tied_] : nullptr; }
    [[nodiscard]] std::string_view head_name() const { return head_name_; }
    [[nodiscard]] bool is_tied_head(std::string_view name) const {
        return tied_ && name == head_name_;
    }
    [[nodiscard]] bool is_tied(const WeightTensor& tensor) const { return &tensor == tied(); }

    // A tensor that may be sent instead of several tensors.
    struct Pack {
        std::vector<std::int64_t> shape{};
        // the shape of the other accepted form, if there is one
        std::optional<std::vector<std::int64_t>> transposed_shape{};
        // their indices in tensors(), in the order of the elements if there are no strides
        std::vector<std::size_t> tensors{};
        std::vector<Strides> strides{};  // of each tensor (slot.h)
    };
    [[nodiscard]] const Pack* find_pack(std::string_view name) const;

    // Returns whether a tensor may be offered although this model does not use it: rotary tables of
    // old exports, with kOfHybrid also those of vision and of multi-token prediction, with kIgnore
    // all unknown ones.
    [[nodiscard]] bool is_ignored(std::string_view name) const;
    [[nodiscard]] static bool is_rotary_table(std::string_view name);

  private:
    std::vector<WeightTensor> tensors_{};
    std::vector<std::size_t> by_id_{};
    StringMap<std::size_t> by_name_{};
    StringMap<Pack> packs_{};
    std::optional<std::size_t> tied_{};
    std::string head_name_{};
    std::int64_t bytes_ = 0;
    ExtraTensors extra_ = ExtraTensors::kRefuse;
    TensorNames names_ = TensorNames::kOwn;
};

inline constexpr std::size_t kOfferedPerTensor = 16;
inline constexpr std::size_t kOfferedMin = 4096;
// Returns the most tensors that a checkpoint of this model may have, including unused ones of other
// layers and heads. A checkpoint with more is not this model's, and is not read.
[[nodiscard]] std::size_t offered_max(const WeightLayout& layout);

enum class Completeness { kWhole, kPartial };

// Lists all problems of the tensors that a source offers: tensors that are missing (unless
// kPartial), unknown, offered twice, or of a wrong shape or dtype. A tied head is compared with the
// embedding, and replaces a missing embedding. Empty: no problem.
[[nodiscard]] std::vector<std::string> find_problems(
    const WeightLayout& layout,
    std::span<const checkpoint::TensorSpec> offered,
    Completeness completeness
);
inline constexpr std::size_t kProblemsShownMax = 8;
// Makes one error that lists the problems; beyond kProblemsShownMax it has only their number.
[[nodiscard]] Error error_of(std::string_view source, std::span<const std::string> problems);

}  // namespace pitstop::tp_worker
