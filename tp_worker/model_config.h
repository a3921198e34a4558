// A model's shape and arithmetic, from a checkpoint's config.json and generation_config.json. What
// this engine does not compute exactly as the checkpoint asks is refused by name, never ignored.
//
// Source: the config classes of Hugging Face transformers (models/{llama,mistral,qwen2,qwen3});
// both
//         spellings of rotary settings, `rope_theta` + `rope_scaling` and `rope_parameters`.
#pragma once

#include "base/ids.h"
#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop {

inline constexpr std::size_t kConfigBytesMax = std::size_t{4} << 20;

enum class Family : std::uint8_t { kLlama, kMistral, kQwen2, kQwen3 };
[[nodiscard]] std::string_view name_of(Family family);  // as config.json's model_type: "qwen3"

struct RopeConfig {
    enum class Scaling : std::uint8_t {
        kNone,
        kLinear,  // positions divided by factor
        kLlama3,  // low frequencies divided by factor, high ones kept, a ramp between
    };
    Scaling scaling = Scaling::kNone;
    double theta = 10000.0;
    double factor = 1.0;
    double low_freq_factor = 1.0;       // kLlama3
    double high_freq_factor = 4.0;      // kLlama3
    std::int64_t original_context = 0;  // kLlama3: positions of the pretraining, tokens
};

struct ModelConfig {
    Family family = Family::kQwen3;
    std::int64_t hidden = 0;  // H
    std::int64_t ffn = 0;     // F
    std::int64_t num_layers = 0;
    std::int64_t num_q_heads = 0;   // Q
    std::int64_t num_kv_heads = 0;  // K, divides Q
    std::int64_t head_dim = 0;      // D, even; Q * D need not be H
    std::int64_t vocab_len = 0;     // V
    std::int64_t context_len = 0;   // positions
    double norm_eps = 1e-6;
    RopeConfig rope{};
    bool tied_embeddings = false;  // the head is the embedding
    bool qkv_bias = false;
    bool o_bias = false;
    bool mlp_bias = false;
    bool qk_norm = false;
    // [num_layers]: keys a token sees, its own included; absent: all.
    std::vector<std::optional<std::int64_t>> windows{};
    std::vector<TokenId> eos_ids{};  // ascending

    // Parses and checks. Reports every problem that it finds, not only the first. `path` is for the
    // messages; `generation_config` may be empty.
    static Result<ModelConfig> parse(
        std::string_view config, std::string_view generation_config, const std::string& path
    );
    // Of a checkpoint directory.
    static Result<ModelConfig> read(const std::string& directory);
};

// In what `other` computes differently, if its weights took the place of those of `serving`;
// nothing where they may. The context length and the end-of-sequence ids are not the weights'
// matter.
[[nodiscard]] std::optional<std::string> difference_in_shape(
    const ModelConfig& serving, const ModelConfig& other
);

// inv_freq[i], 0 <= i < D / 2: radians per position of the i-th rotated pair.
[[nodiscard]] std::vector<double> rope_frequencies(const RopeConfig& rope, std::int64_t head_dim);

}  // namespace pitstop
