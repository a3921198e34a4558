// Reads a model's shape and arithmetic from a checkpoint's config.json and generation_config.json,
// as transformers reads them. Each key is read or refused by name, never ignored.
//
// Families differ only by their rows in families.h.
//
// Source: transformers 5.24, models/{llama,mistral,qwen2,qwen3,qwen2_moe,qwen3_moe,mixtral},
//         qwen3_next, qwen3_5, qwen3_5_moe and configuration_utils.py;
//         tests/golden/compare_configs.py compares the two.
#pragma once

#include "base/ids.h"
#include "base/result.h"
#include "tp_worker/config/rope_config.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

inline constexpr std::size_t kConfigBytesMax = std::size_t{4} << 20;

// The parts of a layer (tp_worker/blocks).
enum class BlockKind : std::uint8_t { kAttention, kGatedDelta, kDenseMlp, kExperts };
using LayerBlocks = std::vector<BlockKind>;  // in the order in which they run
inline const LayerBlocks kDenseLayer{BlockKind::kAttention, BlockKind::kDenseMlp};

// The family's names for the parts of a block of experts (tp_worker/blocks/experts.cpp).
enum class ExpertNames : std::uint8_t { kQwen, kMixtral };

inline constexpr std::int64_t kExpertsMax = 1024;
inline constexpr std::int64_t kChosenMax = 32;  // experts per token

struct ExpertsConfig {
    std::int64_t num = 0;         // E; 0: the model has none
    std::int64_t per_token = 0;   // k, at most E
    std::int64_t ffn = 0;         // I, of each
    std::int64_t shared_ffn = 0;  // of the expert that computes every token; 0: none
    bool norm_chosen = false;     // the weights of the chosen experts sum to one
    ExpertNames names = ExpertNames::kQwen;
    // A layer has experts if its number, from 1 on, is a multiple of sparse_step, and it is not in
    // dense_layers, which are ascending, from 0 on.
    std::int64_t sparse_step = 1;
    std::vector<std::int64_t> dense_layers{};

    bool operator==(const ExpertsConfig&) const = default;
};

// Gated delta nets, which keep a state of fixed size per request, where attention keeps pages.
struct DeltaConfig {
    std::int64_t num_key_heads = 0;    // 0: the model has none
    std::int64_t num_value_heads = 0;  // a multiple of the key heads
    std::int64_t key_dim = 0;          // of a head
    std::int64_t value_dim = 0;        // of a head
    std::int64_t kernel = 0;           // inputs that the convolution sums, the token's included
    bool is_grouped = false;  // Qwen3-Next: one projection has the rows of each key head in turn
    std::vector<std::int64_t> layers{};  // ascending

    bool operator==(const DeltaConfig&) const = default;
};

struct ModelConfig {
    std::string_view model_type{};  // of its family (families.h): "qwen3"
    std::int64_t hidden = 0;        // H
    std::int64_t ffn = 0;           // F; 0 if no layer has a dense MLP
    std::int64_t num_layers = 0;
    std::int64_t num_q_heads = 0;   // Q
    std::int64_t num_kv_heads = 0;  // K, divides Q
    std::int64_t head_dim = 0;      // D, even; Q * D need not be H
    std::int64_t vocab_len = 0;     // V
    std::int64_t context_len = 0;   // positions that the model serves, including their scaling
    double norm_eps = 1e-6;
    RopeConfig rope{};
    bool tied_embeddings = false;  // the head is the embedding
    bool qkv_bias = false;
    bool o_bias = false;
    bool mlp_bias = false;
    bool qk_norm = false;
    bool zero_centred_norms = false;  // a norm multiplies by 1 + weight
    bool gated_attention = false;     // each head has a gate, in further rows of q_proj
    ExpertsConfig experts{};
    DeltaConfig delta{};
    std::vector<LayerBlocks> layers{};  // [num_layers]
    // [num_layers], the visible keys per token, including its own; absent: all.
    std::vector<std::optional<std::int64_t>> windows{};
    std::vector<TokenId> eos_ids{};  // ascending, from both files
    // Settings that were read but may surprise the author of the files, one line each.
    std::vector<std::string> notes{};

    // Whether the family has gated delta nets, even if no layer of this model has one.
    [[nodiscard]] bool is_hybrid() const { return delta.num_key_heads > 0; }

    bool operator==(const ModelConfig&) const = default;

    // Parses and checks both files of `directory`. Reports every problem, each with its file. An
    // empty `generation_config` means that there is no such file.
    static Result<ModelConfig> parse(
        std::string_view config, std::string_view generation_config, const std::string& directory
    );
    // Reads the configuration of a checkpoint directory.
    static Result<ModelConfig> read(const std::string& directory);
};

// Returns the first key that keeps a checkpoint with the configuration `other` from replacing the
// weights of `serving`; nothing if no key does. Compares all of the configuration except the
// context length, the end-of-sequence ids and the notes, which do not concern the weights.
[[nodiscard]] std::optional<std::string> difference_in_shape(
    const ModelConfig& serving, const ModelConfig& other
);

}  // namespace pitstop::tp_worker
