// Says which part of which tensor a rank holds, and where in its arena. Everything that fills,
// checks, digests or serves weights goes by this one list: the loader at start, a staged update, a
// digest.
//
// Tensors keep the checkpoint's names and layout (rows contiguous along the reduced dimension).
// What the layout knows of a model is its list of slots (slot.h). A weight of one dimension is one
// row; of three, rows of rows: all dimensions but the last count rows, as everywhere on the wire.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "checkpoint/safetensors.h"
#include "tp_worker/weights/encoding.h"
#include "tp_worker/weights/slot.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

// Describes a rectangle of a tensor that a rank holds: where it is in the whole tensor, and where
// in the shard. For each r < rows and c < cols
//
//   shard[shard_begin() + r * shard_stride + c]  is  whole[whole_begin() + r * whole_stride + c]
//
// This is all there is to know about a shard: whatever loads, converts, digests, reads back, keeps
// or pushes weights is a loop over these. All counts are elements: of whatever dtype the whole
// tensor has where it comes from, and of the tensor's encoding in the shard.
struct ShardPart {
    // It is this one of the tensor's num_parts. The parts of all ranks cover the tensor; whoever
    // holds the same index holds a copy.
    std::int64_t index = 0;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t whole_row = 0;  // where its first element is
    std::int64_t whole_col = 0;
    std::int64_t whole_stride = 0;  // from row to row; the whole tensor's columns
    std::int64_t shard_row = 0;
    std::int64_t shard_col = 0;
    std::int64_t shard_stride = 0;

    [[nodiscard]] std::int64_t whole_begin() const { return whole_row * whole_stride + whole_col; }
    [[nodiscard]] std::int64_t shard_begin() const { return shard_row * shard_stride + shard_col; }
    [[nodiscard]] bool is_empty() const { return rows == 0 || cols == 0; }
    // Its rows follow each other without a gap, in the whole tensor and in the shard.
    [[nodiscard]] bool is_contiguous() const {
        return cols == whole_stride && cols == shard_stride;
    }
    // Returns what of it lies in rows [begin, begin + num) of the whole tensor, or of the shard.
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
    std::vector<std::int64_t> shape{};  // the whole tensor's
    std::int64_t whole_rows = 0;
    std::int64_t whole_cols = 0;
    // They lie side by side in the shard or one below the other, in this order. What they leave of
    // the shard is padding, its last rows.
    std::vector<ShardPart> parts{};
    std::int64_t num_parts = 1;  // the whole tensor's; 1: each rank holds all of it
    bool cuts_words = false;     // some rank's part starts or ends inside a word of the digest
    std::int64_t rows = 0;       // the shard's, padding included
    std::int64_t cols = 0;
    std::int64_t offset = 0;  // bytes from the arena's start, 64-byte aligned
    Encoding encoding = Encoding::kBf16;

    [[nodiscard]] std::int64_t row_bytes() const { return bytes_of(encoding, cols); }
    [[nodiscard]] std::int64_t bytes() const { return rows * row_bytes(); }
    // Where an element of the shard lies in an arena, counted row by row.
    [[nodiscard]] std::int64_t offset_of(std::int64_t element) const {
        return offset + bytes_of(encoding, element);
    }
    [[nodiscard]] std::int64_t whole_bytes() const {
        return whole_rows * bytes_of(encoding, whole_cols);
    }
};

// Says in which form names of tensors are looked for.
enum class TensorNames : std::uint8_t {
    kOwn,
    kOfAdapter,  // adapter_names.h
    // Of a text model that may be a part of one with vision: "model.language_model." may stand for
    // "model.". The vision model's own tensors and those of multi-token prediction are ignored.
    kOfHybrid,
};

// Says what becomes of names that the model has no use for.
enum class ExtraTensors : std::uint8_t { kRefuse, kIgnore };

class WeightLayout {
  public:
    // Errors: kUnsupported, which slot has a shape that is none of a weight, or a name that another
    // has, too.
    static Result<WeightLayout> make(
        const WeightSlots& slots,
        ExtraTensors extra = ExtraTensors::kRefuse,
        TensorNames names = TensorNames::kOwn
    );
    [[nodiscard]] bool is_of_adapter() const { return names_ == TensorNames::kOfAdapter; }

    // In name order.
    [[nodiscard]] std::span<const WeightTensor> tensors() const { return tensors_; }
    [[nodiscard]] const WeightTensor& tensor(WeightId id) const {
        return tensors_[by_id_[static_cast<std::size_t>(raw(id))]];
    }
    [[nodiscard]] std::size_t num_slots() const { return by_id_.size(); }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }  // the arena's

    // By its own name alone, in each of the forms that TensorNames accepts; null: none. find_tied()
    // knows the other name of a tied one as well.
    [[nodiscard]] const WeightTensor* find(std::string_view name) const;
    [[nodiscard]] const WeightTensor* find_tied(std::string_view name) const {
        return is_tied_head(name) ? tied() : find(name);
    }

    // A model with tied embeddings has one tensor with two names: its own, the embedding's, and the
    // head's. Null, and an empty name: nothing is tied.
    [[nodiscard]] const WeightTensor* tied() const { return tied_ ? &tensors_[*tied_] : nullptr; }
    [[nodiscard]] std::string_view head_name() const { return head_name_; }
    [[nodiscard]] bool is_tied_head(std::string_view name) const {
        return tied_ && name == head_name_;
    }
    [[nodiscard]] bool is_tied(const WeightTensor& tensor) const { return &tensor == tied(); }

    // What may come in place of several tensors; null: nothing of this name.
    struct Pack {
        std::vector<std::int64_t> shape{};
        std::vector<std::size_t> tensors{};  // their places in tensors(), in order of the elements
    };
    [[nodiscard]] const Pack* find_pack(std::string_view name) const;

    // Says which tensors may be offered though this model does not use them: rotary tables of old
    // exports, with kOfHybrid those of vision and of multi-token prediction, and with kIgnore all
    // that it does not have.
    [[nodiscard]] bool is_ignored(std::string_view name) const;
    [[nodiscard]] static bool is_rotary_table(std::string_view name);

  private:
    std::vector<WeightTensor> tensors_{};
    std::vector<std::size_t> by_id_{};
    std::map<std::string, std::size_t, std::less<>> by_name_{};
    std::map<std::string, Pack, std::less<>> packs_{};
    std::optional<std::size_t> tied_{};
    std::string head_name_{};
    std::int64_t bytes_ = 0;
    ExtraTensors extra_ = ExtraTensors::kRefuse;
    TensorNames names_ = TensorNames::kOwn;
};

// Returns how many tensors a checkpoint of this model may hold, those of other layers and heads
// that it does not use among them: what is more is no checkpoint of it, and is not read.
inline constexpr std::size_t kOfferedPerTensor = 16;
inline constexpr std::size_t kOfferedMin = 4096;
[[nodiscard]] std::size_t offered_max(const WeightLayout& layout);

enum class Completeness { kWhole, kPartial };

// Lists everything that is wrong with what a source offers: tensors that are missing (unless
// kPartial), not of this model, offered twice, or of another shape or a dtype that its encoding
// does not accept. A tied head is held against the embedding, and stands for it where that is
// missing. Empty: nothing.
[[nodiscard]] std::vector<std::string> find_problems(
    const WeightLayout& layout,
    std::span<const checkpoint::TensorSpec> offered,
    Completeness completeness
);
// Makes one error that lists them all; past kProblemsShownMax it says how many more there are.
inline constexpr std::size_t kProblemsShownMax = 8;
[[nodiscard]] Error error_of(std::string_view source, std::span<const std::string> problems);

}  // namespace pitstop::tp_worker
