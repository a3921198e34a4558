#include "tests/tp_worker/model/random_checkpoint.h"

#include "base/bf16.h"
#include "tests/checkpoint/safetensors_file.h"
#include "tests/tp_worker/layout_of.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <random>

namespace pitstop::tp_worker {

namespace {

void make_hybrid(const CheckpointShape& shape, nlohmann::json& config) {
    const bool is_next = shape.hybrid == "qwen3_next";
    config["architectures"] = {is_next ? "Qwen3NextForCausalLM" : "Qwen3_5ForCausalLM"};
    config["model_type"] = is_next ? "qwen3_next" : "qwen3_5_text";
    config["linear_num_key_heads"] = shape.num_key_heads;
    config["linear_num_value_heads"] = shape.num_value_heads;
    config["linear_key_head_dim"] = shape.key_dim;
    config["linear_value_head_dim"] = shape.value_dim;
    config["linear_conv_kernel_dim"] = shape.kernel;
    config["layer_types"] = shape.layer_types;
}

}  // namespace

void write_random_checkpoint(const CheckpointShape& shape, const test::TempDir& to) {
    using Json = nlohmann::json;
    Json config = {
        {"architectures", {"Qwen3ForCausalLM"}},
        {"model_type", "qwen3"},
        {"attention_bias", false},
        {"hidden_act", "silu"},
        {"hidden_size", shape.hidden},
        {"intermediate_size", shape.ffn},
        {"num_attention_heads", shape.num_q_heads},
        {"num_key_value_heads", shape.num_kv_heads},
        {"num_hidden_layers", shape.num_layers},
        {"head_dim", shape.head_dim},
        {"vocab_size", shape.vocab_len},
        {"max_position_embeddings", 512},
        {"rms_norm_eps", 1e-6},
        {"rope_theta", 10000.0},
        {"tie_word_embeddings", false},
        {"eos_token_id", 2047},
        {"torch_dtype", "bfloat16"},
    };
    if (shape.num_experts > 0) {
        const std::string family = shape.shared_ffn > 0 ? "2" : "3";
        config["architectures"] = {"Qwen" + family + "MoeForCausalLM"};
        config["model_type"] = "qwen" + family + "_moe";
        config["num_experts"] = shape.num_experts;
        config["num_experts_per_tok"] = shape.num_experts_per_token;
        config["moe_intermediate_size"] = shape.expert_ffn;
        config["norm_topk_prob"] = shape.norm_chosen;
        if (shape.shared_ffn > 0) config["shared_expert_intermediate_size"] = shape.shared_ffn;
    }
    if (!shape.hybrid.empty()) make_hybrid(shape, config);
    to.write("config.json", config.dump());
    const Result<ModelConfig> parsed = ModelConfig::read(to.path());
    ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
    const Result<WeightLayout> layout = layout_of(*parsed, Rank{0}, 1);
    ASSERT_TRUE(layout.has_value()) << layout.error().message;

    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    test::SafetensorsFile file;
    for (const WeightTensor& tensor : layout->tensors()) {
        std::string data;
        const bool is_norm = tensor.shape.size() == 1;
        const float scale = 1.f / std::sqrt(static_cast<float>(tensor.whole_cols));
        for (std::int64_t i = 0; i < tensor.whole_rows * tensor.whole_cols; ++i) {
            const float mean = tensor.name.ends_with("A_log") ? -3.f : 1.f;  // slow decay
            const bf16 x = to_bf16(is_norm ? mean + 0.1f * normal(random) : scale * normal(random));
            data.append(reinterpret_cast<const char*>(&x), sizeof x);
        }
        file.add(tensor.name, "BF16", tensor.shape, data);
    }
    file.write(to);
}

}  // namespace pitstop::tp_worker
