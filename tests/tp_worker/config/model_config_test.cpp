#include "tp_worker/config/model_config.h"

#include "tests/tp_worker/config/config_json.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ctime>

namespace pitstop::tp_worker {
namespace {

TEST(ModelConfig, ReadsTheBundledModel) {
    const Result<ModelConfig> config = ModelConfig::read(model_dir("stories"));
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_EQ(config->model_type, "qwen3");
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
    EXPECT_EQ(parse(json)->model_type, "qwen3");
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

// Expected: the windows of transformers 5.23, which tests/golden/compare_configs.py checks.
TEST(ModelConfig, WindowsOfOddConfigurationsAreThoseOfTransformers) {
    const auto qwen = [](Json changes) {
        Json json = qwen3();
        json.update(changes);
        return json;
    };
    const std::vector<std::optional<std::int64_t>> none(4);
    // Without a value the window is 4096, from layer 28 on.
    EXPECT_EQ(parse(qwen({{"use_sliding_window", true}}))->windows, none);
    const Result<ModelConfig> all =
        parse(qwen({{"use_sliding_window", true}, {"max_window_layers", 0}}));
    ASSERT_TRUE(all.has_value()) << all.error().message;
    EXPECT_EQ(all->windows, std::vector<std::optional<std::int64_t>>(4, 4096));
    EXPECT_EQ(
        parse(qwen({{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", -1}})
        )->windows.front(),
        5
    );
    EXPECT_EQ(
        parse(qwen({{"use_sliding_window", true}, {"sliding_window", nullptr}}))->windows, none
    );
    EXPECT_EQ(parse(qwen({{"sliding_window", 0}}))->windows, none);  // ignored
    for (const Json& value : {Json("1"), Json(1.0), Json(true), Json()}) {
        expect_refused(
            qwen({{"max_window_layers", value}}), ErrorCode::kMalformed, "max_window_layers"
        );
    }
    expect_refused(qwen({{"sliding_window", "5"}}), ErrorCode::kMalformed, "sliding_window");
    expect_refused(qwen({{"use_sliding_window", nullptr}}), ErrorCode::kMalformed, "use_sliding");
    const Json layers{"sliding_attention", "attention", "attention", "attention"};
    expect_refused(qwen({{"layer_types", layers}}), ErrorCode::kUnsupported, "layer_types");

    Json llama = of_family("LlamaForCausalLM");
    llama["sliding_window"] = 511;
    expect_refused(llama, ErrorCode::kUnsupported, "sliding_window");
    llama["sliding_window"] = 512;  // the whole context
    EXPECT_EQ(parse(llama)->windows, none);
    llama["layer_types"] = layers;
    expect_refused(llama, ErrorCode::kUnsupported, "layer_types");
}

TEST(ModelConfig, HeadsThatAreNotNamedAreThoseOfTransformers) {
    const auto kv_heads_of = [](const std::string& architecture, const Json* value) {
        Json json = of_family(architecture);
        json["num_attention_heads"] = 32;
        json.erase("num_key_value_heads");
        if (value != nullptr) json["num_key_value_heads"] = *value;
        const Result<ModelConfig> config = parse(json);
        return config ? config->num_kv_heads : -1;
    };
    const Json null;
    EXPECT_EQ(kv_heads_of("MistralForCausalLM", nullptr), 8);
    EXPECT_EQ(kv_heads_of("MistralForCausalLM", &null), -1);
    EXPECT_EQ(kv_heads_of("LlamaForCausalLM", nullptr), 32);
    EXPECT_EQ(kv_heads_of("Qwen3ForCausalLM", nullptr), 32);
    EXPECT_EQ(kv_heads_of("Qwen3ForCausalLM", &null), 32);

    Json uneven = of_family("MistralForCausalLM");
    uneven["hidden_size"] = 50;
    uneven["head_dim"] = nullptr;
    EXPECT_EQ(parse(uneven)->head_dim, 12);
    uneven["architectures"] = {"LlamaForCausalLM"};
    expect_refused(uneven, ErrorCode::kMalformed, "not a multiple");
    Json null_dim = qwen3();
    null_dim["head_dim"] = nullptr;
    EXPECT_EQ(parse(null_dim)->head_dim, 16);
    null_dim.erase("head_dim");
    EXPECT_EQ(parse(null_dim)->head_dim, 128);
}

TEST(ModelConfig, RefusesArchitecturesAndAModelTypeThatContradictEachOther) {
    Json json = qwen3();
    json["model_type"] = "llama";
    expect_refused(json, ErrorCode::kMalformed, "model_type");
    EXPECT_NE(error_of(json).message.find("Qwen3ForCausalLM"), std::string::npos);
    json["model_type"] = "gemma3";
    expect_refused(json, ErrorCode::kMalformed, "gemma3");
    json["architectures"] = Json::array();
    expect_refused(json, ErrorCode::kUnsupported, "model_type 'gemma3'");
    json["model_type"] = "qwen3";
    EXPECT_EQ(parse(json)->model_type, "qwen3");
}

TEST(ModelConfig, RefusesNullWhereTransformersDoes) {
    for (const std::string key :
         {"tie_word_embeddings",
          "attention_bias",
          "rms_norm_eps",
          "hidden_act",
          "vocab_size",
          "max_position_embeddings",
          "rope_theta"}) {
        Json json = qwen3();
        json[key] = nullptr;
        expect_refused(json, ErrorCode::kMalformed, key);
    }
    Json json = qwen3();
    for (const std::string key : {"rope_scaling", "layer_types", "eos_token_id", "sliding_window"})
        json[key] = nullptr;
    EXPECT_TRUE(parse(json).has_value()) << error_of(json).message;
}

TEST(ModelConfig, BlamesTheFileThatIsBroken) {
    for (const std::string_view text : {"{", "[]", "{\"eos_token_id\": \"no\"}"}) {
        const Result<ModelConfig> config = parse(qwen3(), std::string(text));
        ASSERT_FALSE(config.has_value());
        EXPECT_TRUE(config.error().message.starts_with("'model/generation_config.json'"))
            << config.error().message;
    }
    Json json = qwen3();
    json["hidden_size"] = 0;
    EXPECT_TRUE(error_of(json).message.starts_with("'model/config.json'"));
}

// Any difference between two configurations is found and named. This tests each key that changes
// the computation but not the shapes.
TEST(ModelConfig, NamesWhatDiffersBetweenTwoModels) {
    const auto llama = [](Json scaling) {
        Json json = of_family("LlamaForCausalLM");
        json["rope_scaling"] = std::move(scaling);
        return *parse(json);
    };
    const Json llama3 = {
        {"rope_type", "llama3"},
        {"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", 64}};
    const Json yarn = {
        {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
    const auto expect_named = [&](Json scaling, const std::string& key, const Json& value) {
        Json changed = scaling;
        changed[key] = value;
        const auto difference = difference_in_shape(llama(scaling), llama(changed));
        ASSERT_TRUE(difference.has_value()) << key;
        EXPECT_NE(difference->find(key), std::string::npos) << *difference;
        EXPECT_EQ(difference_in_shape(llama(scaling), llama(scaling)), std::nullopt);
    };
    expect_named(llama3, "factor", 4.0);
    expect_named(llama3, "low_freq_factor", 2.0);
    expect_named(llama3, "high_freq_factor", 5.0);
    expect_named(llama3, "original_max_position_embeddings", 32);
    expect_named(llama3, "rope_theta", 5e5);
    expect_named(yarn, "factor", 2.0);
    expect_named(yarn, "original_max_position_embeddings", 32);
    expect_named(yarn, "attention_factor", 1.5);
    expect_named(yarn, "beta_fast", 16);
    expect_named(yarn, "beta_slow", 2);
    expect_named(yarn, "truncate", false);
    const auto types = difference_in_shape(llama(llama3), llama(yarn));
    ASSERT_TRUE(types.has_value());
    EXPECT_EQ(*types, "rope_type is yarn; the model that serves has llama3");

    Json qwen = qwen3();
    const ModelConfig serving = *parse(qwen);
    qwen["use_sliding_window"] = true;
    qwen["sliding_window"] = 100;
    qwen["max_window_layers"] = 3;
    EXPECT_EQ(
        difference_in_shape(serving, *parse(qwen)),
        "the sliding window of layer 3 is 100; the model that serves has none"
    );
    qwen = qwen3();
    qwen["eos_token_id"] = 1;
    qwen["max_position_embeddings"] = 1024;
    EXPECT_EQ(difference_in_shape(serving, *parse(qwen)), std::nullopt);
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
    expect_refused(with("architectures", {"Qwen2VLForCausalLM"}), kUnsupported, "Qwen2VL");
    expect_refused(with("hidden_act", "gelu"), kUnsupported, "gelu");
    expect_refused(with("quantization_config", {{"bits", 4}}), kUnsupported, "quantized");
    expect_refused(
        with("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}), kUnsupported, "'dynamic'"
    );
    for (const Json& value : {Json(false), Json(0), Json()})
        expect_refused(with("is_causal", value), kUnsupported, "is_causal");
    expect_refused(
        with("rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}),
        kUnsupported,
        "differ between layers"
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
    expect_refused(json, ErrorCode::kMalformed, "not a multiple");
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
        const Result<ModelConfig> config = ModelConfig::parse(text, "", "model");
        ASSERT_FALSE(config.has_value());
        EXPECT_EQ(config.error().code, ErrorCode::kMalformed);
        EXPECT_NE(config.error().message.find("nested deeper"), std::string::npos);
    }
}

TEST(ModelConfig, RefusesWhatIsNotJson) {
    for (const std::string_view text : {"", "{", "[]", "null", "\xff\xfe"}) {
        const Result<ModelConfig> config = ModelConfig::parse(text, "", "model");
        ASSERT_FALSE(config.has_value());
        EXPECT_EQ(config.error().code, ErrorCode::kMalformed);
    }
}

TEST(ModelConfig, RefusesMoreValuesThanAnyConfigurationHas) {
    std::string config = R"({"model_type": "qwen3", "many": [0)";
    for (int i = 0; i < 200'000; ++i) config += ",0";
    for (const bool is_generation : {false, true}) {
        const std::string good = qwen3().dump();
        const Result<ModelConfig> refused = is_generation
                                                ? ModelConfig::parse(good, config + "]}", "m")
                                                : ModelConfig::parse(config + "]}", "", "m");
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
        EXPECT_NE(refused.error().message.find("more than 200000 values"), std::string::npos);
    }
}

// Comparing each member with all earlier ones would take a minute of CPU time.
TEST(ModelConfig, ReadsAFileOfManyMembersInTimeThatGrowsWithThem) {
    std::string config = R"({"model_type": "qwen3")";
    for (int i = 0; i < 80'000; ++i) config += fmt::format(R"(,"{}":{{}})", i);
    const auto cpu_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
    const double begun = cpu_seconds();
    EXPECT_FALSE(ModelConfig::parse(config + "}", "", "config.json"));
    EXPECT_LT(cpu_seconds() - begun, 20);
}

TEST(ModelConfig, RefusesWhatIsNestedTooDeeplyAndNoBracketInAString) {
    const std::string deep = R"({"a":)" + std::string(100'000, '[');
    const Result<ModelConfig> refused = ModelConfig::parse(deep, "", "config.json");
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("nested deeper"), std::string::npos);
    const std::string text = R"({"model_type": "\"[[[[)" + std::string(100, '[') + R"(\\"})";
    const Result<ModelConfig> other = ModelConfig::parse(text, "", "config.json");
    ASSERT_FALSE(other);
    EXPECT_EQ(other.error().message.find("nested"), std::string::npos) << other.error().message;
}

}  // namespace
}  // namespace pitstop::tp_worker
