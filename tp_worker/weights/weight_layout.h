// Which part of which tensor a rank holds, and where in its arena. Everything that fills, checks,
// digests or serves weights goes by this one list: the loader at start, a staged update, a digest.
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

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {

inline constexpr int kTpMax = 64;

enum class SplitAxis : std::uint8_t { kNone, kRows, kCols };

// A range of the split axis of the whole tensor that this rank holds.
struct ShardPart {
    std::int64_t begin = 0;
    std::int64_t num = 0;
    // Which of the tensor's num_parts it is. The parts of all ranks cover the tensor; whoever holds
    // the same index holds a copy.
    std::int64_t index = 0;
};

// A tensor of one dimension is one row.
struct WeightTensor {
    std::string name{};
    std::vector<std::int64_t> shape{};  // of the whole tensor
    std::int64_t whole_rows = 0;
    std::int64_t whole_cols = 0;
    SplitAxis axis = SplitAxis::kNone;
    std::vector<ShardPart> parts{};  // back to back in the shard, in this order
    std::int64_t num_parts = 1;      // of the whole tensor
    bool cuts_words = false;         // some rank's part starts or ends inside a word of the digest
    std::int64_t rows = 0;           // of the shard, padding included
    std::int64_t cols = 0;
    std::int64_t offset = 0;  // bytes from the arena's start, 64-byte aligned

    [[nodiscard]] std::int64_t bytes() const { return rows * cols * 2; }
};

// Heads and sizes of one rank.
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

// Of names that the model has no use for.
enum class ExtraTensors : std::uint8_t { kRefuse, kIgnore };

class WeightLayout {
  public:
    // kUnsupported where the model does not split into tp ranks; says which size does not.
    static Result<WeightLayout> make(
        const ModelConfig& config, Rank rank, int tp, ExtraTensors extra = ExtraTensors::kRefuse
    );

    [[nodiscard]] std::span<const WeightTensor> tensors() const {
        return tensors_;
    }                                                                     // in name order
    [[nodiscard]] const WeightTensor* find(std::string_view name) const;  // null: none
    [[nodiscard]] const ShardShape& shape() const { return shape_; }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }  // of the arena

    // Tensors that may be offered and that this model does not use: rotary tables of old exports,
    // and with kIgnore all that it does not have.
    [[nodiscard]] bool is_ignored(std::string_view name) const;
    [[nodiscard]] static bool is_rotary_table(std::string_view name);
    // The head of a model with tied embeddings: another name of the embedding.
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

// How many tensors a checkpoint of this model may hold, those of other layers and heads that it
// does not use among them: what is more is no checkpoint of it, and is not read.
inline constexpr std::size_t kOfferedPerTensor = 16;
inline constexpr std::size_t kOfferedMin = 4096;
[[nodiscard]] std::size_t offered_max(const WeightLayout& layout);

enum class Completeness { kWhole, kPartial };

// Everything that is wrong with what a source offers: tensors that are missing (unless kPartial),
// not of this model, offered twice, or of another shape or a dtype that is not BF16, F16 or F32.
// A tied head is held against the embedding, and stands for it where that is missing. Empty:
// nothing.
[[nodiscard]] std::vector<std::string> find_problems(
    const WeightLayout& layout, std::span<const TensorSpec> offered, Completeness completeness
);
// One error that lists them all; past kProblemsShownMax, how many more there are.
inline constexpr std::size_t kProblemsShownMax = 256;
[[nodiscard]] Error error_of(std::string_view source, std::span<const std::string> problems);

// An element as it is resident. REQUIRES: dtype is BF16, F16 or F32.
[[nodiscard]] bf16 bf16_from(StoredDtype dtype, const std::byte* at);

// Borrowed views of one layer's shards.
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

// Where the weights are in a copy that starts at `arena`.
[[nodiscard]] ModelWeights bind_weights(
    const WeightLayout& layout, const ModelConfig& config, const std::byte* arena
);

}  // namespace pitstop
