#include "tp_worker/model_config.h"

#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace pitstop {
namespace {

using Json = nlohmann::json;

Json qwen3() {
    return Json::parse(R"({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 100, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512, "rope_theta": 1000000.0, "tie_word_embeddings": true,
        "eos_token_id": 7})");
}

Json of_family(const std::string& architecture) {
    Json json = qwen3();
    json["architectures"] = {architecture};
    json.erase("model_type");
    return json;
}

Result<ModelConfig> parse(const Json& json, const std::string& generation = "") {
    return ModelConfig::parse(json.dump(), generation, "config.json");
}

Error error_of(const Json& json) {
    const Result<ModelConfig> config = parse(json);
    return config ? Error{ErrorCode::kInternal, "parsed"} : config.error();
}

void expect_refused(const Json& json, ErrorCode code, std::string_view part) {
    const Error error = error_of(json);
    EXPECT_EQ(error.code, code) << error.message;
    EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
}

TEST(ModelConfig, ReadsTheBundledModel) {
    const Result<ModelConfig> config = ModelConfig::read(model_dir("stories"));
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_EQ(config->family, Family::kQwen3);
    EXPECT_EQ(config->hidden, 128);
    EXPECT_EQ(config->head_dim, 32);
    EXPECT_EQ(config->vocab_len, 2048);
    EXPECT_TRUE(config->qk_norm);
    EXPECT_TRUE(config->tied_embeddings);
    EXPECT_FALSE(config->qkv_bias);
    EXPECT_EQ(config->eos_ids, (std::vector<TokenId>{TokenId{2045}, TokenId{2047}}));
}

TEST(ModelConfig, KnowsTheBiasesOfEachFamily) {
    EXPECT_TRUE(parse(of_family("Qwen2ForCausalLM"))->qkv_bias);
    EXPECT_FALSE(parse(of_family("Qwen2ForCausalLM"))->o_bias);
    EXPECT_FALSE(parse(of_family("Qwen2ForCausalLM"))->qk_norm);
    Json llama = of_family("LlamaForCausalLM");
    EXPECT_FALSE(parse(llama)->qkv_bias);
    llama["attention_bias"] = true;
    llama["mlp_bias"] = true;
    EXPECT_TRUE(parse(llama)->qkv_bias);
    EXPECT_TRUE(parse(llama)->o_bias);
    EXPECT_TRUE(parse(llama)->mlp_bias);
}

TEST(ModelConfig, GoesByTheModelTypeWhereNoArchitectureIsNamed) {
    Json json = qwen3();
    json.erase("architectures");
    EXPECT_EQ(parse(json)->family, Family::kQwen3);
}

TEST(ModelConfig, TakesBothSpellingsOfRotarySettings) {
    Json json = of_family("LlamaForCausalLM");
    const Json llama3 = {
        {"rope_type", "llama3"},
        {"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", 64}};
    json["rope_scaling"] = llama3;
    const Result<ModelConfig> older = parse(json);
    ASSERT_TRUE(older.has_value()) << older.error().message;
    EXPECT_EQ(older->rope.scaling, RopeConfig::Scaling::kLlama3);
    EXPECT_EQ(older->rope.theta, 1e6);
    EXPECT_EQ(older->rope.original_context, 64);

    json.erase("rope_scaling");
    json.erase("rope_theta");
    json["rope_parameters"] = llama3;
    json["rope_parameters"]["rope_theta"] = 1e6;
    const Result<ModelConfig> newer = parse(json);
    ASSERT_TRUE(newer.has_value()) << newer.error().message;
    EXPECT_EQ(rope_frequencies(newer->rope, 32), rope_frequencies(older->rope, 32));

    json.erase("rope_parameters");
    json["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
    EXPECT_EQ(parse(json)->rope.scaling, RopeConfig::Scaling::kLinear);
}

// Llama 3.1: wavelengths under 8192/4 keep their frequency, those over 8192/1 are divided by 8.
TEST(ModelConfig, Llama3ScalingKeepsHighFrequenciesAndDividesLowOnes) {
    const RopeConfig rope{
        .scaling = RopeConfig::Scaling::kLlama3,
        .theta = 500000.0,
        .factor = 8.0,
        .low_freq_factor = 1.0,
        .high_freq_factor = 4.0,
        .original_context = 8192};
    const std::vector<double> scaled = rope_frequencies(rope, 128);
    const std::vector<double> plain = rope_frequencies({.theta = 500000.0}, 128);
    EXPECT_EQ(scaled.front(), 1.0);
    EXPECT_DOUBLE_EQ(scaled.back(), plain.back() / 8.0);
    for (std::size_t i = 0; i < plain.size(); ++i) {
        const double wavelength = 2.0 * M_PI / plain[i];
        if (wavelength < 2048.0) {
            EXPECT_DOUBLE_EQ(scaled[i], plain[i]);
        } else if (wavelength > 8192.0) {
            EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 8.0);
        }
        EXPECT_LE(scaled[i], plain[i]);
        EXPECT_GE(scaled[i], plain[i] / 8.0);
    }
}

TEST(ModelConfig, SlidingWindowsAreThoseOfTransformers) {
    Json mistral = of_family("MistralForCausalLM");
    EXPECT_EQ(parse(mistral)->windows.front(), 4096);  // the default of an absent key
    mistral["sliding_window"] = nullptr;
    EXPECT_EQ(parse(mistral)->windows.front(), std::nullopt);
    mistral["sliding_window"] = 100;
    EXPECT_EQ(parse(mistral)->windows, std::vector<std::optional<std::int64_t>>(4, 100));

    Json qwen = qwen3();
    qwen["sliding_window"] = 100;
    qwen["max_window_layers"] = 3;
    EXPECT_EQ(parse(qwen)->windows.back(), std::nullopt);
    qwen["use_sliding_window"] = true;
    EXPECT_EQ(parse(qwen)->windows[2], std::nullopt);
    EXPECT_EQ(parse(qwen)->windows[3], 100);
    qwen["layer_types"] = {
        "sliding_attention", "full_attention", "full_attention", "sliding_attention"};
    EXPECT_EQ(parse(qwen)->windows[0], 100);
    EXPECT_EQ(parse(qwen)->windows[1], std::nullopt);
}

TEST(ModelConfig, JoinsTheEndTokensOfBothFiles) {
    const Result<ModelConfig> config = parse(qwen3(), R"({"eos_token_id": [9, 3]})");
    ASSERT_TRUE(config.has_value());
    EXPECT_EQ(config->eos_ids, (std::vector<TokenId>{TokenId{3}, TokenId{7}, TokenId{9}}));
}

TEST(ModelConfig, RefusesWhatItDoesNotCompute) {
    const auto with = [](const std::string& key, const Json& value) {
        Json json = qwen3();
        json[key] = value;
        return json;
    };
    constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;
    expect_refused(with("architectures", {"GPT2LMHeadModel"}), kUnsupported, "GPT2LMHeadModel");
    expect_refused(with("architectures", {"Qwen3MoeForCausalLM"}), kUnsupported, "Qwen3Moe");
    expect_refused(with("hidden_act", "gelu"), kUnsupported, "gelu");
    expect_refused(with("quantization_config", {{"bits", 4}}), kUnsupported, "quantized");
    expect_refused(
        with("rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}), kUnsupported, "'yarn'"
    );
    expect_refused(
        with("rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}),
        kUnsupported,
        "layer to layer"
    );
    expect_refused(with("partial_rotary_factor", 0.5), kUnsupported, "partial_rotary_factor");
    expect_refused(with("final_logit_softcapping", 30.0), kUnsupported, "softcapping");
    expect_refused(with("head_dim", 33), kUnsupported, "even");
    expect_refused(with("head_dim", 512), kUnsupported, "256");
    expect_refused(
        with("layer_types", {"linear", "linear", "linear", "linear"}), kUnsupported, "linear"
    );
}

TEST(ModelConfig, RefusesNumbersThatCannotBe) {
    for (const std::string key :
         {"hidden_size",
          "intermediate_size",
          "num_hidden_layers",
          "num_attention_heads",
          "num_key_value_heads",
          "vocab_size",
          "max_position_embeddings"}) {
        for (const Json& value :
             {Json(0), Json(-1), Json("64"), Json(1.5), Json(1LL << 40), Json(true)}) {
            Json json = qwen3();
            json[key] = value;
            expect_refused(json, ErrorCode::kMalformed, key);
        }
    }
    for (const std::string key : {"hidden_size", "vocab_size", "num_hidden_layers"}) {
        Json json = qwen3();
        json.erase(key);
        expect_refused(json, ErrorCode::kMalformed, key + " is missing");
    }
    Json json = qwen3();
    json["rms_norm_eps"] = -1.0;
    expect_refused(json, ErrorCode::kMalformed, "rms_norm_eps");
    json = qwen3();
    json["num_key_value_heads"] = 3;
    expect_refused(json, ErrorCode::kMalformed, "no multiple");
    json = qwen3();
    json["eos_token_id"] = 100;
    expect_refused(json, ErrorCode::kMalformed, "eos_token_id");
}

TEST(ModelConfig, ListsEveryProblem) {
    Json json = qwen3();
    json["hidden_size"] = 0;
    json["hidden_act"] = "relu";
    json["vocab_size"] = -5;
    const std::string message = error_of(json).message;
    for (const std::string_view part : {"hidden_size", "relu", "vocab_size"}) {
        EXPECT_NE(message.find(part), std::string::npos) << message;
    }
}

TEST(ModelConfig, RefusesWhatIsNestedTooDeeply) {
    constexpr std::size_t kDepth = 500'000;
    const std::string deep = std::string(kDepth, '[') + std::string(kDepth, ']');
    for (const std::string_view key : {"eos_token_id", "hidden_size", "unheard_of"}) {
        std::string text = qwen3().dump();
        text.insert(text.size() - 1, fmt::format(",\"{}\":{}", key, deep));
        const Result<ModelConfig> config = ModelConfig::parse(text, "", "config.json");
        ASSERT_FALSE(config.has_value());
        EXPECT_EQ(config.error().code, ErrorCode::kMalformed);
        EXPECT_NE(config.error().message.find("nested deeper"), std::string::npos);
    }
}

TEST(ModelConfig, RefusesWhatIsNotJson) {
    for (const std::string_view text : {"", "{", "[]", "null", "\xff\xfe"}) {
        const Result<ModelConfig> config = ModelConfig::parse(text, "", "config.json");
        ASSERT_FALSE(config.has_value());
        EXPECT_EQ(config.error().code, ErrorCode::kMalformed);
    }
}

}  // namespace
}  // namespace pitstop
