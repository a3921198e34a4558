#include "tp_worker/config/families.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kExpertFfnMax = 1 << 20;
constexpr std::int64_t kSparseStepMax = 1 << 20;

LayerBlocks dense_layer(const ModelConfig& /*config*/, std::int64_t /*layer*/) {
    return kDenseLayer;
}

LayerBlocks mixed_layer(const ModelConfig& config, std::int64_t layer) {
    const ExpertsConfig& experts = config.experts;
    const bool is_sparse = experts.num > 0 && (layer + 1) % experts.sparse_step == 0 &&
                           !std::ranges::binary_search(experts.dense_layers, layer);
    return is_sparse ? LayerBlocks{BlockKind::kAttention, BlockKind::kExperts} : kDenseLayer;
}

LayerBlocks with_delta(const ModelConfig& config, std::int64_t layer, LayerBlocks blocks) {
    if (std::ranges::binary_search(config.delta.layers, layer))
        blocks.front() = BlockKind::kGatedDelta;
    return blocks;
}
LayerBlocks hybrid_dense_layer(const ModelConfig& config, std::int64_t layer) {
    return with_delta(config, layer, kDenseLayer);
}
LayerBlocks hybrid_mixed_layer(const ModelConfig& config, std::int64_t layer) {
    return with_delta(config, layer, mixed_layer(config, layer));
}

// Returns the key of the number of experts: one of two in Qwen's configurations.
const char* key_of_experts(const ConfigReader& reader) {
    return reader.find("num_experts") != nullptr ? "num_experts" : "num_local_experts";
}

std::int64_t read_num_experts(ConfigReader& reader, std::int64_t absent) {
    const char* const key = key_of_experts(reader);
    const bool has_both =
        reader.find("num_experts") != nullptr && reader.find("num_local_experts") != nullptr;
    const std::int64_t num = reader.any_whole(key, absent);
    if (has_both && reader.any_whole("num_local_experts", absent) != num)
        reader.malformed("num_experts and num_local_experts differ: one of them is wrong");
    if (num < 0 || num > kExpertsMax) {
        reader.unsupported("{} {}; 0 to {} are supported", key, num, kExpertsMax);
        return 0;
    }
    return num;
}

std::int64_t read_per_token(ConfigReader& reader, std::int64_t num_experts, std::int64_t absent) {
    const std::int64_t num = reader.whole("num_experts_per_tok", absent, kExpertsMax);
    if (num > num_experts && num_experts > 0) {
        reader.malformed(
            "num_experts_per_tok is {}, but {} is {}", num, key_of_experts(reader), num_experts
        );
    } else if (num > kChosenMax) {
        reader.unsupported("num_experts_per_tok {}; at most {} are supported", num, kChosenMax);
    }
    return std::min(num, kChosenMax);
}

// mlp_only_layers: the layers whose MLP is dense, whatever decoder_sparse_step says.
std::vector<std::int64_t> read_dense_layers(ConfigReader& reader) {
    const nlohmann::json* list = reader.find_value("mlp_only_layers");
    std::vector<std::int64_t> layers;
    if (list == nullptr) return layers;
    for (const nlohmann::json& layer : list->is_array() ? *list : nlohmann::json::array({*list})) {
        if (!list->is_array() || !layer.is_number_integer()) {
            reader.malformed(
                "mlp_only_layers must be a list of layers, not {}", ConfigReader::shown(*list)
            );
            return {};
        }
        if (layer >= 0 && layer < kSparseStepMax) layers.push_back(layer.get<std::int64_t>());
    }
    std::ranges::sort(layers);
    return layers;
}

struct QwenDefaults {
    std::int64_t num = 0;
    std::int64_t per_token = 0;
    std::int64_t ffn = 0;
    std::int64_t shared_ffn = 0;  // 0: the family has no shared expert
    bool norm_chosen = false;
};
void read_qwen_experts(ConfigReader& reader, ModelConfig* config, const QwenDefaults& absent) {
    ExpertsConfig& experts = config->experts;
    experts.num = read_num_experts(reader, absent.num);
    experts.per_token = read_per_token(reader, experts.num, absent.per_token);
    experts.ffn = reader.whole("moe_intermediate_size", absent.ffn, kExpertFfnMax);
    if (absent.shared_ffn > 0) {
        experts.shared_ffn =
            reader.whole("shared_expert_intermediate_size", absent.shared_ffn, kExpertFfnMax);
    }
    // An absent key means false except for Qwen3-Next, as in transformers; SGLang's default is
    // true.
    experts.norm_chosen = reader.flag("norm_topk_prob", absent.norm_chosen);
    experts.sparse_step = reader.whole("decoder_sparse_step", 1, kSparseStepMax);
    experts.dense_layers = read_dense_layers(reader);
}
void read_qwen3_experts(ConfigReader& reader, ModelConfig* config) {
    read_qwen_experts(reader, config, {.num = 128, .per_token = 8, .ffn = 768});
}
void read_qwen2_experts(ConfigReader& reader, ModelConfig* config) {
    read_qwen_experts(reader, config, {.num = 60, .per_token = 4, .ffn = 1408, .shared_ffn = 5632});
}
void read_qwen3_next_experts(ConfigReader& reader, ModelConfig* config) {
    read_qwen_experts(
        reader,
        config,
        {.num = 512, .per_token = 10, .ffn = 512, .shared_ffn = 512, .norm_chosen = true}
    );
}
// All layers have experts. As in transformers, norm_topk_prob, decoder_sparse_step and
// mlp_only_layers have no effect, although files may have them.
void read_qwen3_5_experts(ConfigReader& reader, ModelConfig* config) {
    ExpertsConfig& experts = config->experts;
    experts.num = read_num_experts(reader, 256);
    if (experts.num == 0) reader.unsupported("num_experts 0: '{}' needs experts", "qwen3_5_moe");
    experts.per_token = read_per_token(reader, experts.num, 8);
    experts.ffn = reader.whole("moe_intermediate_size", 512, kExpertFfnMax);
    experts.shared_ffn = reader.whole("shared_expert_intermediate_size", 512, kExpertFfnMax);
    experts.norm_chosen = true;
}
// router_jitter_noise is not read: transformers uses it only in training.
void read_mixtral_experts(ConfigReader& reader, ModelConfig* config) {
    ExpertsConfig& experts = config->experts;
    experts.num = read_num_experts(reader, 8);
    if (experts.num == 0) reader.unsupported("num_local_experts 0: '{}' needs experts", "mixtral");
    experts.per_token = read_per_token(reader, experts.num, 2);
    experts.ffn = config->ffn;
    experts.norm_chosen = true;
    experts.names = ExpertNames::kMixtral;
}

// Source: transformers' configuration classes, and their attention and MLP modules.
constexpr double kHybridRotaryFactor = 0.25;

constexpr std::array<Family, 10> kFamilies{{
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
    {.model_type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .absent_kv_heads = 16,
     .window = Family::Window::kAlternateIfAsked,
     .qkv_bias = Family::QkvBias::kByOwnKey,
     .read_experts = read_qwen2_experts,
     .blocks_of = mixed_layer},
    {.model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .absent_kv_heads = 4,
     .has_null_kv_heads = false,
     .window = Family::Window::kOfAllIfAsked,
     .reads_layer_types = false,
     .qkv_bias = Family::QkvBias::kByKey,
     .has_qk_norm = true,
     .read_experts = read_qwen3_experts,
     .blocks_of = mixed_layer},
    {.model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .absent_kv_heads = 8,
     .window = Family::Window::kOfAll,
     .has_null_window = true,
     .reads_layer_types = false,
     .absent_rope_theta = 1e6,
     .absent_norm_eps = 1e-5,
     .read_experts = read_mixtral_experts,
     .blocks_of = mixed_layer},
    {.model_type = "qwen3_next",
     .architecture = "Qwen3NextForCausalLM",
     .absent_kv_heads = 2,
     .has_null_kv_heads = false,
     .absent_head_dim = 256,
     .absent_rotary_factor = kHybridRotaryFactor,
     .qkv_bias = Family::QkvBias::kByKey,
     .has_qk_norm = true,
     .is_hybrid = true,
     .has_grouped_delta = true,
     .read_experts = read_qwen3_next_experts,
     .blocks_of = hybrid_mixed_layer},
    {.model_type = "qwen3_5",
     .architecture = "Qwen3_5ForConditionalGeneration",
     .text_type = "qwen3_5_text",
     .text_architecture = "Qwen3_5ForCausalLM",
     .absent_kv_heads = 4,
     .has_null_kv_heads = false,
     .absent_head_dim = 256,
     .absent_rotary_factor = kHybridRotaryFactor,
     .qkv_bias = Family::QkvBias::kByKey,
     .has_qk_norm = true,
     .is_hybrid = true,
     .blocks_of = hybrid_dense_layer},
    {.model_type = "qwen3_5_moe",
     .architecture = "Qwen3_5MoeForConditionalGeneration",
     .text_type = "qwen3_5_moe_text",
     .text_architecture = "Qwen3_5MoeForCausalLM",
     .absent_kv_heads = 2,
     .has_null_kv_heads = false,
     .absent_head_dim = 256,
     .absent_rotary_factor = kHybridRotaryFactor,
     .qkv_bias = Family::QkvBias::kByKey,
     .has_qk_norm = true,
     .has_ffn = false,
     .is_hybrid = true,
     .read_experts = read_qwen3_5_experts,
     .blocks_of = hybrid_mixed_layer},
}};

}  // namespace

std::span<const Family> families() { return kFamilies; }

}  // namespace pitstop::tp_worker
