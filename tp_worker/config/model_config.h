// Reads a model's shape and arithmetic from a checkpoint's config.json and generation_config.json,
// as transformers reads them; or refuses them by name, and ignores none.
//
// Families differ by their rows in families.h alone.
//
// Source: transformers 5.24, models/{llama,mistral,qwen2,qwen3,qwen2_moe,qwen3_moe,mixtral} and
// configuration_utils.py;
//         tests/golden/compare_configs.py holds the two against each other.
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

// What a layer is made of (tp_worker/blocks).
enum class BlockKind : std::uint8_t { kAttention, kDenseMlp, kExperts };
using LayerBlocks = std::vector<BlockKind>;  // in the order in which they run
inline const LayerBlocks kDenseLayer{BlockKind::kAttention, BlockKind::kDenseMlp};

// What a family calls the parts of a block of experts (tp_worker/blocks/experts.cpp).
enum class ExpertNames : std::uint8_t { kQwen, kMixtral };

inline constexpr std::int64_t kExpertsMax = 1024;
inline constexpr std::int64_t kChosenMax = 32;  // experts of a token

struct ExpertsConfig {
    std::int64_t num = 0;         // E; 0: the model has none
    std::int64_t per_token = 0;   // k, at most E
    std::int64_t ffn = 0;         // I, of each
    std::int64_t shared_ffn = 0;  // of the expert that computes every token; 0: there is none
    bool norm_chosen = false;     // the weights of the chosen sum to one
    ExpertNames names = ExpertNames::kQwen;
    // A layer has experts if its number from 1 on is a multiple of sparse_step, and it is none of
    // dense_layers, which are ascending, from 0 on.
    std::int64_t sparse_step = 1;
    std::vector<std::int64_t> dense_layers{};

    bool operator==(const ExpertsConfig&) const = default;
};

struct ModelConfig {
    std::string_view model_type{};  // of its family (families.h): "qwen3"
    std::int64_t hidden = 0;        // H
    std::int64_t ffn = 0;           // F
    std::int64_t num_layers = 0;
    std::int64_t num_q_heads = 0;   // Q
    std::int64_t num_kv_heads = 0;  // K, divides Q
    std::int64_t head_dim = 0;      // D, even; Q * D need not be H
    std::int64_t vocab_len = 0;     // V
    std::int64_t context_len = 0;   // positions that the model serves, scaling of them included
    double norm_eps = 1e-6;
    RopeConfig rope{};
    bool tied_embeddings = false;  // the head is the embedding
    bool qkv_bias = false;
    bool o_bias = false;
    bool mlp_bias = false;
    bool qk_norm = false;
    ExpertsConfig experts{};
    std::vector<LayerBlocks> layers{};  // [num_layers]
    // These are [num_layers], the keys a token sees, its own included; absent: all.
    std::vector<std::optional<std::int64_t>> windows{};
    std::vector<TokenId> eos_ids{};  // ascending, of both files
    // Says what was read and may surprise whoever wrote the files, a line each.
    std::vector<std::string> notes{};

    bool operator==(const ModelConfig&) const = default;

    // Parses and checks. Reports every problem that it finds, not only the first, and in which of
    // the two files of `directory` it is. `generation_config` may be empty: there is none.
    static Result<ModelConfig> parse(
        std::string_view config, std::string_view generation_config, const std::string& directory
    );
    // Reads that of a checkpoint directory.
    static Result<ModelConfig> read(const std::string& directory);
};

// Returns in what `other` computes differently, if its weights took the place of those of
// `serving`, by the first key that says so; nothing where they may. All of the configuration counts
// but the context length, the end-of-sequence ids and the notes, which are not the weights' matter.
[[nodiscard]] std::optional<std::string> difference_in_shape(
    const ModelConfig& serving, const ModelConfig& other
);

}  // namespace pitstop::tp_worker
