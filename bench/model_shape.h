// Describes the shapes of models that benchmarks run: dimensions, the tensors of a checkpoint and
// its config.json, for the families that pitstop serves.
//
// Source: the config.json files published with Qwen3-0.6B, Qwen3-8B, Qwen2.5-0.5B-Instruct,
// Llama-3.2-1B and Mistral-7B-v0.1; for Qwen3.5-0.8B slime's script, with transformers'
// default number of key heads and as many value heads. "experts-2b-a0.3b" is our own: a Qwen3-MoE
// of 2.0 billion weights; a token reads 0.3 billion of them. Tensor names and shapes are those of
// Hugging Face transformers.
#pragma once

#include "base/result.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pitstop::bench {

enum class ModelFamily { kQwen3, kQwen2, kLlama, kMistral, kQwen35, kQwen3Moe };
[[nodiscard]] std::string_view model_type_of(ModelFamily family);  // "qwen3", as in config.json
[[nodiscard]] Result<ModelFamily> parse_family(std::string_view model_type);

// The gated delta nets of a hybrid: all layers but each `interval`-th have one.
struct DeltaShape {
    static constexpr std::int64_t kKernel = 4;
    std::int64_t heads = 0;     // key heads, and as many value heads
    std::int64_t head_dim = 0;  // of keys and of values
    std::int64_t interval = 4;

    [[nodiscard]] bool has(std::int64_t layer) const { return (layer + 1) % interval != 0; }
    [[nodiscard]] std::int64_t width() const { return heads * head_dim; }
};

// The experts of a mixture, in every layer. Each expert is `ffn` wide.
struct ExpertsShape {
    std::int64_t count = 0;
    std::int64_t chosen = 0;  // per token
};

// A zero means "not given" in an unfinished shape; invalid() refuses it.
struct ModelShape {
    ModelFamily family = ModelFamily::kQwen3;
    std::int64_t vocab = 0;
    std::int64_t hidden = 0;
    std::int64_t ffn = 0;
    std::int64_t layers = 0;
    std::int64_t heads = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t context = 0;  // positions
    bool tied = false;         // the output head is the embedding
    double rope_theta = 10000.0;
    bool llama3_rope_scaling = false;  // factor 32 over 8192 positions
    double norm_eps = 1e-6;
    std::optional<std::int64_t> sliding_window{};
    std::optional<DeltaShape> delta{};      // only for kQwen35
    std::optional<ExpertsShape> experts{};  // only for kQwen3Moe
};

// Finds "qwen3-0.6b", ...; "custom" is a shape with nothing given. The error lists what is
// accepted.
[[nodiscard]] Result<ModelShape> find_shape(std::string_view name);
[[nodiscard]] std::span<const std::string_view> shape_names();

// Returns what is wrong with the shape, or nothing.
[[nodiscard]] std::optional<std::string> invalid(const ModelShape& shape);

// A tensor of the checkpoint and the distribution its random values come from.
struct PlannedTensor {
    std::string name{};
    std::vector<std::int64_t> shape{};  // outermost first, row-major
    double mean = 0;
    double std = 0;
};
[[nodiscard]] std::int64_t num_elements(const PlannedTensor& tensor);

// Lists every tensor, in the model's order. Standard deviations of 1/sqrt of the reduced dimension
// keep activations of order one. Products that are added to the residual stream are scaled down, so
// that all layers together add about one.
//
// Logits have a standard deviation of about 1.5. The embedding of the current token is small
// compared with the layers' output. So greedy decoding with a tied head wanders over the vocabulary
// instead of repeating one token.
[[nodiscard]] std::vector<PlannedTensor> tensors_of(const ModelShape& shape);

// The special tokens, which are the last three ids: <|endoftext|>, <|im_start|>, <|im_end|>.
struct SpecialIds {
    std::int64_t end_of_text = 0;
    std::int64_t im_end = 0;
};
[[nodiscard]] SpecialIds special_ids_of(const ModelShape& shape);

// `torch_dtype` is "bfloat16", "float16" or "float32".
[[nodiscard]] std::string config_json(const ModelShape& shape, std::string_view torch_dtype);
[[nodiscard]] std::string generation_config_json(const ModelShape& shape);

}  // namespace pitstop::bench
