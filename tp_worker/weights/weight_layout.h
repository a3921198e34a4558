// Says which part of which tensor a rank holds, and where in its arena. Everything that fills,
// checks, digests or serves weights goes by this one list: the loader at start, a staged update, a
// digest.
//
// Tensors keep the checkpoint's names and layout (rows contiguous along the reduced dimension).
// Split as in Megatron: q, k, v, gate, up by rows; o and down by columns; embedding and head by
// rows of the vocabulary, padded to a multiple of tp with zeros; norms and the o and down biases
// whole.
//
// Where tp does not divide the KV heads, a rank holds a copy of every KV head that its query heads
// need, arranged so that each copy serves the same number of them (gcd(Q / K, Q / tp)): local query
// head h always reads local KV head h / (local Q / local K).
#pragma once

#include "base/bf16.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/view.h"
#include "checkpoint/safetensors.h"
#include "tp_worker/config/model_config.h"
#include "tp_worker/weights/encoding.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

inline constexpr int kTpMax = 64;

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

// A tensor of one dimension is one row.
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

// Holds heads and sizes of one rank.
struct ShardShape {
    std::int64_t num_q_heads = 0;
    std::int64_t num_kv_heads = 0;
    std::int64_t ffn = 0;
    std::int64_t vocab_begin = 0;  // id of the first row of the embedding and the head
    std::int64_t vocab_rows = 0;   // padding included; the same on every rank
    std::int64_t vocab_len = 0;    // without padding; may be 0
};

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";

// Says what becomes of names that the model has no use for.
enum class ExtraTensors : std::uint8_t { kRefuse, kIgnore };

class WeightLayout {
  public:
    // Errors: kUnsupported where the model does not split into tp ranks; says which size does not.
    static Result<WeightLayout> make(
        const ModelConfig& config, Rank rank, int tp, ExtraTensors extra = ExtraTensors::kRefuse
    );

    [[nodiscard]] std::span<const WeightTensor> tensors() const {
        return tensors_;
    }                                                                     // in name order
    [[nodiscard]] const WeightTensor* find(std::string_view name) const;  // null: none
    [[nodiscard]] const ShardShape& shape() const { return shape_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }  // the arena's

    // Says which tensors may be offered though this model does not use them: rotary tables of old
    // exports, and with kIgnore all that it does not have.
    [[nodiscard]] bool is_ignored(std::string_view name) const;
    [[nodiscard]] static bool is_rotary_table(std::string_view name);
    // Returns whether it is the head of a model with tied embeddings: another name of the
    // embedding.
    [[nodiscard]] bool is_tied_head(std::string_view name) const {
        return tied_embeddings_ && name == kHeadName;
    }

  private:
    friend class LayoutBuilder;
    std::vector<WeightTensor> tensors_{};
    std::map<std::string, std::size_t, std::less<>> by_name_{};
    ShardShape shape_{};
    std::int64_t bytes_ = 0;
    bool tied_embeddings_ = false;
    ExtraTensors extra_ = ExtraTensors::kRefuse;
};

// Returns how many tensors a checkpoint of this model may hold, those of other layers and heads
// that it does not use among them: what is more is no checkpoint of it, and is not read.
inline constexpr std::size_t kOfferedPerTensor = 16;
inline constexpr std::size_t kOfferedMin = 4096;
[[nodiscard]] std::size_t offered_max(const WeightLayout& layout);

enum class Completeness { kWhole, kPartial };

// Lists everything that is wrong with what a source offers: tensors that are missing (unless
// kPartial), not of this model, offered twice, or of another shape or a dtype that its encoding
// does not accept. A tied head is held against the embedding, and stands for it where that is missing.
// Empty: nothing.
[[nodiscard]] std::vector<std::string> find_problems(
    const WeightLayout& layout,
    std::span<const checkpoint::TensorSpec> offered,
    Completeness completeness
);
// Makes one error that lists them all; past kProblemsShownMax it says how many more there are.
inline constexpr std::size_t kProblemsShownMax = 256;
[[nodiscard]] Error error_of(std::string_view source, std::span<const std::string> problems);

// Holds borrowed views of one layer's shards.
struct LayerWeights {
    const bf16* input_norm = nullptr;  // [H]
    View2<const bf16> q{};             // [Q_rank * D, H]
    View2<const bf16> k{};             // [K_rank * D, H]
    View2<const bf16> v{};             // [K_rank * D, H]
    const bf16* q_bias = nullptr;      // [Q_rank * D] or null, and so on
    const bf16* k_bias = nullptr;
    const bf16* v_bias = nullptr;
    const bf16* q_norm = nullptr;  // [D] or null
    const bf16* k_norm = nullptr;  // [D] or null
    View2<const bf16> o{};         // [H, Q_rank * D]
    const bf16* o_bias = nullptr;  // [H] or null
    const bf16* post_norm = nullptr;
    View2<const bf16> gate{};  // [F_rank, H]
    View2<const bf16> up{};    // [F_rank, H]
    View2<const bf16> down{};  // [H, F_rank]
    const bf16* gate_bias = nullptr;
    const bf16* up_bias = nullptr;
    const bf16* down_bias = nullptr;
};

struct ModelWeights {
    View2<const bf16> embedding{};  // [V_rank, H]
    View2<const bf16> head{};       // [V_rank, H]; the embedding where tied
    const bf16* final_norm = nullptr;
    std::vector<LayerWeights> layers{};
};

// Returns where the weights are in a copy that starts at `arena`.
[[nodiscard]] ModelWeights bind_weights(
    const WeightLayout& layout, const ModelConfig& config, const std::byte* arena
);

}  // namespace pitstop::tp_worker
