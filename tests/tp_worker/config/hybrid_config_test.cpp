// The keys of hybrid models' configurations, read as transformers reads them.
#include "tests/tp_worker/config/config_json.h"

#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

Json of_text(const std::string& architecture) {
    Json json = of_family(architecture);
    json["linear_num_key_heads"] = 2;
    json["linear_num_value_heads"] = 6;
    json["linear_key_head_dim"] = 16;
    json["linear_value_head_dim"] = 24;
    return json;
}
Json dense() { return of_text("Qwen3_5ForCausalLM"); }

// As in published files: the text model's keys are nested, tie_word_embeddings is not.
Json wrapped(Json text) {
    text.erase("architectures");
    text.erase("tie_word_embeddings");
    text["model_type"] = "qwen3_5_text";
    return {
        {"architectures", {"Qwen3_5ForConditionalGeneration"}},
        {"model_type", "qwen3_5"},
        {"text_config", text},
        {"tie_word_embeddings", true},
        {"vision_config", {{"depth", 2}, {"hidden_act", "gelu_pytorch_tanh"}}}};
}

const LayerBlocks kDeltaLayer{BlockKind::kGatedDelta, BlockKind::kDenseMlp};

TEST(HybridConfig, ReadsTheThreeFamilies) {
    const ModelConfig config = *parse(dense());
    EXPECT_EQ(config.model_type, "qwen3_5");
    EXPECT_EQ(config.delta.num_key_heads, 2);
    EXPECT_EQ(config.delta.num_value_heads, 6);
    EXPECT_EQ(config.delta.key_dim, 16);
    EXPECT_EQ(config.delta.value_dim, 24);
    EXPECT_EQ(config.delta.kernel, 4) << "the default of an absent key";
    EXPECT_FALSE(config.delta.is_grouped);
    EXPECT_TRUE(config.zero_centred_norms && config.gated_attention && config.qk_norm);
    EXPECT_EQ(rotary_len(config.rope, config.head_dim), 8) << "a quarter, by default";
    const std::vector<LayerBlocks> layers{kDeltaLayer, kDeltaLayer, kDeltaLayer, kDenseLayer};
    EXPECT_EQ(config.layers, layers);

    Json next = of_text("Qwen3NextForCausalLM");
    next["num_experts"] = 6;
    next["num_experts_per_tok"] = 2;
    next["mlp_only_layers"] = {0};
    const ModelConfig of_next = *parse(next);
    EXPECT_TRUE(of_next.delta.is_grouped);
    EXPECT_TRUE(of_next.experts.norm_chosen) << "the default of this family alone";
    EXPECT_EQ(of_next.experts.shared_ffn, 512);
    EXPECT_EQ(of_next.layers[0], kDeltaLayer);
    EXPECT_EQ(of_next.layers[3], (LayerBlocks{BlockKind::kAttention, BlockKind::kExperts}));

    Json moe = of_text("Qwen3_5MoeForCausalLM");
    moe.erase("intermediate_size");
    moe["norm_topk_prob"] = false;  // ignored, as in transformers
    moe["mlp_only_layers"] = {0};
    const ModelConfig of_moe = *parse(moe);
    EXPECT_EQ(of_moe.experts.num, 256);
    EXPECT_TRUE(of_moe.experts.norm_chosen);
    EXPECT_EQ(of_moe.layers[0], (LayerBlocks{BlockKind::kGatedDelta, BlockKind::kExperts}));
}

TEST(HybridConfig, ReadsTheTextOfAModelWithVision) {
    EXPECT_EQ(*parse(wrapped(dense())), *parse(dense()));
    Json twice = wrapped(dense());
    twice["text_config"]["tie_word_embeddings"] = true;
    EXPECT_TRUE(parse(twice)->tied_embeddings);
    twice["text_config"]["tie_word_embeddings"] = false;
    expect_refused(twice, ErrorCode::kMalformed, "tie_word_embeddings is true here and false in");
    Json inside = wrapped(dense());
    inside.erase("tie_word_embeddings");
    EXPECT_FALSE(parse(inside)->tied_embeddings);
    inside["text_config"]["tie_word_embeddings"] = true;
    EXPECT_TRUE(parse(inside)->tied_embeddings);
    Json more_eos = wrapped(dense());
    more_eos["eos_token_id"] = 9;
    EXPECT_EQ(parse(more_eos)->eos_ids, (std::vector{TokenId{7}, TokenId{9}}));

    Json empty = wrapped(dense());
    empty.erase("text_config");
    expect_refused(empty, ErrorCode::kMalformed, "text_config is missing");
    Json other = wrapped(dense());
    other["text_config"]["model_type"] = "qwen3";
    expect_refused(other, ErrorCode::kMalformed, "'qwen3_5_text' is accepted");
    Json quantized = wrapped(dense());
    quantized["quantization_config"] = {{"quant_method", "fp8"}};
    expect_refused(quantized, ErrorCode::kUnsupported, "quantization_config by fp8");
    Json bad = wrapped(dense());
    bad["text_config"]["hidden_size"] = "x";
    expect_refused(bad, ErrorCode::kMalformed, "text_config: hidden_size");
}

TEST(HybridConfig, LayersAreThoseOfLayerTypesOrTheInterval) {
    Json json = dense();
    json["full_attention_interval"] = 2;
    std::vector<LayerBlocks> layers{kDeltaLayer, kDenseLayer, kDeltaLayer, kDenseLayer};
    EXPECT_EQ(parse(json)->layers, layers);
    json["layer_types"] = {
        "full_attention", "linear_attention", "linear_attention", "full_attention"};
    layers = {kDenseLayer, kDeltaLayer, kDeltaLayer, kDenseLayer};
    EXPECT_EQ(parse(json)->layers, layers);
    json["layer_types"] = std::vector<std::string>(4, "full_attention");
    EXPECT_EQ(parse(json)->layers, std::vector<LayerBlocks>(4, kDenseLayer));
    json["layer_types"] = std::vector<std::string>(4, "linear_attention");
    expect_refused(json, ErrorCode::kUnsupported, "leaves no layer with full_attention");
    json["layer_types"] = std::vector<std::string>(3, "linear_attention");
    expect_refused(json, ErrorCode::kMalformed, "layer_types must have 4 entries");
    json["layer_types"] = std::vector<std::string>(4, "sliding_attention");
    expect_refused(json, ErrorCode::kUnsupported, "sliding_attention");
}

TEST(HybridConfig, WhatIsNotComputedIsRefusedByItsKey) {
    const auto with = [](const char* key, const Json& value) {
        Json json = dense();
        json[key] = value;
        return json;
    };
    constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;
    expect_refused(with("attn_output_gate", false), kUnsupported, "attn_output_gate false");
    EXPECT_TRUE(parse(with("attn_output_gate", true)).has_value());
    expect_refused(with("output_gate_type", "sigmoid"), kUnsupported, "output_gate_type");
    EXPECT_TRUE(parse(with("output_gate_type", "swish")).has_value());
    expect_refused(
        with("mtp_use_dedicated_embeddings", true), kUnsupported, "mtp_use_dedicated_embeddings"
    );
    expect_refused(with("linear_conv_kernel_dim", 1), kUnsupported, "linear_conv_kernel_dim 1");
    expect_refused(with("linear_conv_kernel_dim", 9), kUnsupported, "at most 8");
    expect_refused(with("linear_key_head_dim", 512), kUnsupported, "at most 256");
    expect_refused(
        with("linear_num_value_heads", 5), ErrorCode::kMalformed, "not a multiple of linear_num"
    );
    expect_refused(
        with("rope_parameters", {{"rope_type", "mrope"}, {"rope_theta", 1e6}}),
        kUnsupported,
        "mrope"
    );
    EXPECT_EQ(parse(with("mamba_ssm_dtype", "bfloat16"))->notes.size(), 1u);
    EXPECT_TRUE(parse(with("mamba_ssm_dtype", "float32"))->notes.empty());
}

TEST(HybridConfig, PositionsRotateAPartOfEachHead) {
    const auto len = [](const Json& json) {
        const ModelConfig config = *parse(json);
        return rotary_len(config.rope, config.head_dim);
    };
    Json json = dense();
    json["partial_rotary_factor"] = 0.5;
    EXPECT_EQ(len(json), 16);
    // Published: three axes of positions, which are equal for text.
    json["rope_parameters"] = {
        {"rope_type", "default"},
        {"rope_theta", 1e7},
        {"partial_rotary_factor", 0.25},
        {"mrope_interleaved", true},
        {"mrope_section", {2, 1, 1}}};
    EXPECT_EQ(len(json), 8) << "the one inside counts";
    EXPECT_EQ(rope_frequencies(parse(json)->rope, 32).size(), 4u);
    json["rope_parameters"].erase("partial_rotary_factor");
    EXPECT_EQ(len(json), 16);
    json["partial_rotary_factor"] = 0.1;
    expect_refused(json, ErrorCode::kUnsupported, "rotates 3 elements");
    json["partial_rotary_factor"] = 1.5;
    expect_refused(json, ErrorCode::kMalformed, "partial_rotary_factor");
    Json qwen = qwen3();
    qwen["partial_rotary_factor"] = 0.5;
    expect_refused(qwen, ErrorCode::kUnsupported, "partial_rotary_factor 0.5");
}

TEST(HybridConfig, ADifferenceInShapeIsNamed) {
    const auto difference = [](const char* key, const Json& value) {
        Json json = dense();
        json[key] = value;
        return difference_in_shape(*parse(dense()), *parse(json)).value_or("");
    };
    EXPECT_NE(
        difference("linear_key_head_dim", 8).find("linear_key_head_dim is 8"), std::string::npos
    );
    EXPECT_NE(difference("full_attention_interval", 2).find("linear_attention"), std::string::npos);
    EXPECT_NE(difference("partial_rotary_factor", 0.5).find("partial_rotary"), std::string::npos);
}

}  // namespace
}  // namespace pitstop::tp_worker
