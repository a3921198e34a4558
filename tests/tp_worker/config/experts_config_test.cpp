// The keys of configurations of experts, read as transformers reads them.
#include "tests/tp_worker/config/config_json.h"

#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

Json of_experts(const std::string& architecture) {
    Json json = of_family(architecture);
    json["num_experts_per_tok"] = 2;
    if (architecture == "MixtralForCausalLM") {
        json["num_local_experts"] = 6;
    } else {
        json["num_experts"] = 6;
        json["moe_intermediate_size"] = 40;
    }
    return json;
}

const LayerBlocks kSparseLayer{BlockKind::kAttention, BlockKind::kExperts};

TEST(ExpertsConfig, ReadsTheExpertsOfEachFamily) {
    const ModelConfig qwen3 = *parse(of_experts("Qwen3MoeForCausalLM"));
    EXPECT_EQ(qwen3.experts.num, 6);
    EXPECT_EQ(qwen3.experts.per_token, 2);
    EXPECT_EQ(qwen3.experts.ffn, 40);
    EXPECT_EQ(qwen3.experts.shared_ffn, 0);
    EXPECT_FALSE(qwen3.experts.norm_chosen) << "absent is false, as in transformers";
    EXPECT_TRUE(qwen3.qk_norm);
    EXPECT_FALSE(qwen3.qkv_bias);
    EXPECT_EQ(qwen3.layers, std::vector<LayerBlocks>(4, kSparseLayer));

    const ModelConfig qwen2 = *parse(of_experts("Qwen2MoeForCausalLM"));
    EXPECT_EQ(qwen2.experts.shared_ffn, 5632) << "the default of an absent key";
    EXPECT_TRUE(qwen2.qkv_bias);
    EXPECT_FALSE(qwen2.o_bias);
    Json unbiased = of_experts("Qwen2MoeForCausalLM");
    unbiased["qkv_bias"] = false;
    EXPECT_FALSE(parse(unbiased)->qkv_bias);

    const ModelConfig mixtral = *parse(of_experts("MixtralForCausalLM"));
    EXPECT_EQ(mixtral.experts.num, 6);
    EXPECT_EQ(mixtral.experts.ffn, 96) << "intermediate_size is the experts'";
    EXPECT_TRUE(mixtral.experts.norm_chosen);
    EXPECT_EQ(mixtral.windows.front(), std::nullopt) << "absent is none";
    Json bare = of_experts("MixtralForCausalLM");
    for (const char* key : {"rms_norm_eps", "rope_theta"}) bare.erase(key);
    EXPECT_EQ(parse(bare)->norm_eps, 1e-5);
    EXPECT_EQ(parse(bare)->rope.theta, 1e6);

    Json renamed = of_experts("Qwen3MoeForCausalLM");
    renamed["num_local_experts"] = 6;
    EXPECT_TRUE(parse(renamed).has_value());
    renamed.erase("num_experts");
    EXPECT_EQ(parse(renamed)->experts.num, 6);
    renamed["num_experts"] = 5;
    expect_refused(renamed, ErrorCode::kMalformed, "num_local_experts differ");
}

TEST(ExpertsConfig, SomeLayersOfAModelOfExpertsAreDense) {
    Json json = of_experts("Qwen3MoeForCausalLM");
    json["num_hidden_layers"] = 6;
    json["decoder_sparse_step"] = 2;
    json["mlp_only_layers"] = {3, 40, 0};
    const std::vector<LayerBlocks> expected{
        kDenseLayer, kSparseLayer, kDenseLayer, kDenseLayer, kDenseLayer, kSparseLayer};
    EXPECT_EQ(parse(json)->layers, expected);
    json["num_experts"] = 0;
    EXPECT_EQ(parse(json)->layers, std::vector<LayerBlocks>(6, kDenseLayer));
}

TEST(ExpertsConfig, ExpertsThatCannotBeAreRefusedByTheirKey) {
    const auto with = [](const char* key, const Json& value) {
        Json json = of_experts("Qwen3MoeForCausalLM");
        json[key] = value;
        return json;
    };
    expect_refused(
        with("num_experts_per_tok", 7), ErrorCode::kMalformed, "7, but num_experts is 6"
    );
    expect_refused(with("num_experts_per_tok", 0), ErrorCode::kMalformed, "num_experts_per_tok");
    expect_refused(with("num_experts", 1025), ErrorCode::kUnsupported, "0 to 1024");
    expect_refused(with("num_experts", -1), ErrorCode::kUnsupported, "num_experts -1");
    expect_refused(
        with("moe_intermediate_size", 0), ErrorCode::kMalformed, "moe_intermediate_size"
    );
    expect_refused(with("decoder_sparse_step", 0), ErrorCode::kMalformed, "decoder_sparse_step");
    expect_refused(with("mlp_only_layers", 3), ErrorCode::kMalformed, "mlp_only_layers");
    expect_refused(with("mlp_only_layers", {"3"}), ErrorCode::kMalformed, "mlp_only_layers");
    expect_refused(
        with(
            "layer_types",
            Json::array({"sliding_attention", "full_attention", "full_attention", "full_attention"})
        ),
        ErrorCode::kUnsupported,
        "layer_types"
    );
    Json many = with("num_experts", 64);
    many["num_experts_per_tok"] = 33;
    expect_refused(many, ErrorCode::kUnsupported, "at most 32");
    Json dense = qwen3();
    dense["num_experts"] = 8;
    expect_refused(dense, ErrorCode::kUnsupported, "num_experts 8");
}

TEST(ExpertsConfig, WindowsOfModelsOfExpertsAreThoseOfTransformers) {
    Json qwen3 = of_experts("Qwen3MoeForCausalLM");
    qwen3["sliding_window"] = 100;
    EXPECT_EQ(parse(qwen3)->windows.front(), std::nullopt);
    qwen3["use_sliding_window"] = true;
    qwen3["max_window_layers"] = 2;  // ignored
    EXPECT_EQ(parse(qwen3)->windows, std::vector<std::optional<std::int64_t>>(4, 100));
    Json qwen2 = of_experts("Qwen2MoeForCausalLM");
    qwen2["sliding_window"] = 100;
    qwen2["use_sliding_window"] = true;
    qwen2["max_window_layers"] = 2;
    const std::vector<std::optional<std::int64_t>> first{
        100, std::nullopt, std::nullopt, std::nullopt};
    EXPECT_EQ(parse(qwen2)->windows, first);
    qwen2["max_window_layers"] = 3;
    EXPECT_EQ(parse(qwen2)->windows[2], 100);
}

}  // namespace
}  // namespace pitstop::tp_worker
