#include "tp_worker/config/families.h"

#include <array>

namespace pitstop::tp_worker {
namespace {

LayerBlocks dense_layer(const ModelConfig& /*config*/, std::int64_t /*layer*/) {
    return kDenseLayer;
}

// Source: transformers' configuration classes, and their attention and MLP modules.
constexpr std::array<Family, 4> kFamilies{{
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .needs_whole_head_dim = true,
     .qkv_bias = Family::QkvBias::kByKey,
     .has_mlp_bias = true,
     .blocks_of = dense_layer},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .absent_kv_heads = 8,
     .has_null_kv_heads = false,
     .window = Family::Window::kOfAll,
     .blocks_of = dense_layer},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .absent_kv_heads = 32,
     .window = Family::Window::kIfAsked,
     .qkv_bias = Family::QkvBias::kAlways,
     .blocks_of = dense_layer},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .absent_kv_heads = 32,
     .absent_head_dim = 128,
     .window = Family::Window::kIfAsked,
     .qkv_bias = Family::QkvBias::kByKey,
     .has_qk_norm = true,
     .blocks_of = dense_layer},
}};

}  // namespace

std::span<const Family> families() { return kFamilies; }

}  // namespace pitstop::tp_worker
