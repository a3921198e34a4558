// PEFT's configurations, read as PEFT 0.21 reads them.
#include "tp_worker/config/adapter_config.h"

#include "tp_worker/config/module_search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using Json = nlohmann::ordered_json;

Json lora() {
    return Json::parse(
        R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]})"
    );
}

using Module = std::optional<ModuleSearch::Module>;

Module module_of(const Json& json, const std::string& path) {
    const Result<AdapterConfig> config = AdapterConfig::parse(json.dump(), "a");
    if (!config) {
        ADD_FAILURE() << config.error().message;
        return std::nullopt;
    }
    const Result<Module> found = ModuleSearch(*config).of(path);
    EXPECT_TRUE(found) << (found ? "" : found.error().message);
    return found ? *found : std::nullopt;
}

Error error_of(const Json& json) {
    const Result<AdapterConfig> config = AdapterConfig::parse(json.dump(), "a");
    return config ? Error{ErrorCode::kInternal, "parsed"} : config.error();
}

const std::string kQ0 = "model.layers.0.self_attn.q_proj";
const std::string kQ10 = "model.layers.10.self_attn.q_proj";
const std::string kDown1 = "model.layers.1.mlp.down_proj";

TEST(AdapterConfig, ScalesByAlphaOverTheRankOrItsRoot) {
    Json json = lora();
    EXPECT_EQ(module_of(json, kQ0)->rank, 8);
    EXPECT_EQ(module_of(json, kQ0)->scale, 2.0);
    json["use_rslora"] = true;
    json["r"] = 16;
    EXPECT_EQ(module_of(json, kQ0)->scale, 4.0);
    json.erase("r");
    json.erase("lora_alpha");
    json.erase("use_rslora");
    EXPECT_EQ(module_of(json, kQ0)->rank, 8) << "PEFT's defaults";
    EXPECT_EQ(module_of(json, kQ0)->scale, 1.0);
}

TEST(AdapterConfig, MatchesNamesAtTheEndAndExpressionsAsAWhole) {
    Json json = lora();
    EXPECT_FALSE(module_of(json, kDown1));
    EXPECT_FALSE(module_of(json, "model.layers.0.self_attn.other_q_proj"));
    json["target_modules"] = {"self_attn.q_proj", "mlp.down_proj"};
    EXPECT_TRUE(module_of(json, kQ0));
    EXPECT_TRUE(module_of(json, kDown1));
    json["exclude_modules"] = {"layers.10.self_attn.q_proj"};
    EXPECT_TRUE(module_of(json, kQ0));
    EXPECT_FALSE(module_of(json, kQ10));
    json["target_modules"] = R"(.*\.(\d)\.self_attn\.(q|k)_proj)";
    json["exclude_modules"] = R"(.*\.0\..*)";
    EXPECT_FALSE(module_of(json, kQ0));
    EXPECT_TRUE(module_of(json, "model.layers.3.self_attn.k_proj"));
    EXPECT_FALSE(module_of(json, kQ10));
    EXPECT_FALSE(module_of(json, "model.layers.3.self_attn.k_proj.more"));
    json["exclude_modules"] = nullptr;
    json["target_modules"] = "all-linear";
    EXPECT_TRUE(module_of(json, kDown1));
}

TEST(AdapterConfig, TransformsTheLayersThatAreNamed) {
    Json json = lora();
    json["layers_to_transform"] = {0, 3};
    EXPECT_TRUE(module_of(json, kQ0));
    EXPECT_FALSE(module_of(json, kQ10));
    json["layers_to_transform"] = 10;
    EXPECT_FALSE(module_of(json, kQ0));
    EXPECT_TRUE(module_of(json, kQ10));
    json["layers_pattern"] = "blocks";
    EXPECT_FALSE(module_of(json, kQ10)) << "the number stands behind another name";
    json["layers_pattern"] = {"blocks", "(lay)(ers)"};
    EXPECT_TRUE(module_of(json, kQ10));
    json["layers_to_transform"] = Json::array();
    EXPECT_TRUE(module_of(json, kQ0)) << "an empty list is none";
    // A full path matches, whatever its layer.
    json["layers_to_transform"] = 3;
    json["target_modules"] = {kQ0};
    EXPECT_TRUE(module_of(json, kQ0));
}

TEST(AdapterConfig, TakesTheFirstPatternOfTheFileThatMatches) {
    Json json = lora();
    json["rank_pattern"] = {{"self_attn.q_proj", 3}, {"10.self_attn.q_proj", 5}};
    json["alpha_pattern"] = {{R"(.*\.10\..*)", 6}};
    EXPECT_EQ(module_of(json, kQ10)->rank, 3);
    EXPECT_EQ(module_of(json, kQ10)->scale, 2.0);
    EXPECT_DOUBLE_EQ(module_of(json, kQ0)->scale, 16.0 / 3);
    json["rank_pattern"] = {{"z0.self_attn.q_proj", 3}, {"10.self_attn.q_proj", 5}, {"q_proj", 4}};
    EXPECT_EQ(module_of(json, kQ10)->rank, 5) << "z comes first, and does not match";
    EXPECT_EQ(module_of(json, kQ0)->rank, 4);
}

// PEFT: neither excluded modules nor layers apply, but patterns do.
TEST(AdapterConfig, AdaptsParametersByTheirNamesOrTheEndsOfThese) {
    Json json = lora();
    const std::string down = "model.layers.1.mlp.experts.down_proj";
    const auto parameter_of = [&](const std::string& name) {
        const auto config = AdapterConfig::parse(json.dump(), "a");
        EXPECT_TRUE(config) << config.error().message;
        return *ModuleSearch(*config).of_parameter(name);
    };
    for (const Json& none : {Json(), Json(false), Json::array()}) {
        json["target_parameters"] = none;
        EXPECT_FALSE(parameter_of(down));
    }
    json["target_parameters"] = {"experts.down_proj", "gate.weight"};
    json["exclude_modules"] = {"down_proj"};
    json["layers_to_transform"] = {0};
    json["rank_pattern"] = {{"experts.down_proj", 3}};
    json["alpha_pattern"] = {{R"(.*\.1\..*)", 6}};
    EXPECT_EQ(parameter_of(down)->rank, 3);
    EXPECT_EQ(parameter_of(down)->scale, 2.0);
    EXPECT_TRUE(parameter_of("model.layers.0.mlp.gate.weight"));
    EXPECT_FALSE(parameter_of("model.layers.0.mlp.shared_expert_gate.weight"));
    EXPECT_FALSE(parameter_of("model.layers.1.mlp.other_experts.down_proj"));
    json["target_modules"] = nullptr;
    EXPECT_TRUE(parameter_of(down));
    json["target_parameters"] = "experts.down_proj";
    EXPECT_EQ(error_of(json).code, ErrorCode::kMalformed);
    EXPECT_EQ(
        error_of(json).message,
        "'a': target_parameters must be a list of at most 4096 names, not \"experts.down_proj\""
    );
    json["target_modules"] = {1};
    EXPECT_NE(
        error_of(json).message.find("target_modules must be a pattern or a"), std::string::npos
    );
    json["layers_pattern"] = {1};
    EXPECT_NE(error_of(json).message.find("layers_pattern must be a name or a"), std::string::npos);
}

TEST(AdapterConfig, RefusesByNameWhatIsNotComputed) {
    const std::vector<std::pair<std::string, Json>> keys{
        {"use_dora", true},
        {"lora_bias", true},
        {"fan_in_fan_out", true},
        {"modules_to_save", {"lm_head"}},
        {"trainable_token_indices", {1, 2}},
        {"alora_invocation_tokens", {1}},
        {"layer_replication", {{0, 4}}},
        {"use_qalora", true},
        {"use_bdlora", Json{{"a", 1}}},
        {"megatron_config", Json{{"a", 1}}},
        {"a_key_of_the_future", 1},
        {"bias", "all"},
        {"peft_type", "IA3"},
        {"init_lora_weights", "pissa_niter_16"},
        {"init_lora_weights", "olora"}};
    for (const auto& [key, value] : keys) {
        Json json = lora();
        json[key] = value;
        const Error error = error_of(json);
        EXPECT_EQ(error.code, ErrorCode::kUnsupported) << key;
        EXPECT_NE(error.message.find(key), std::string::npos) << error.message;
        if (value.is_boolean()) {
            json[key] = false;
            EXPECT_TRUE(module_of(json, kQ0)) << key;
        }
        if (key != "bias" && key != "peft_type") {
            json[key] = nullptr;
            EXPECT_TRUE(module_of(json, kQ0)) << key;
        }
    }
    Json json = lora();
    json["init_lora_weights"] = "gaussian";
    json["lora_dropout"] = 0.1;
    EXPECT_TRUE(module_of(json, kQ0));
}

TEST(AdapterConfig, NamesWhatIsWrong) {
    const std::vector<std::pair<std::string, Json>> wrong{
        {"r", 0},
        {"r", "8"},
        {"lora_alpha", -1},
        {"target_modules", {1, 2}},
        {"target_modules", nullptr},
        {"target_modules", "(unclosed"},
        {"rank_pattern", {{"q_proj", 0}}},
        {"rank_pattern", {{"q_proj", 1.5}}},
        {"rank_pattern", {{"(", 1}}},
        {"alpha_pattern", {{"q_proj", "a"}}},
        {"layers_to_transform", {"a"}}};
    for (const auto& [key, value] : wrong) {
        Json json = lora();
        json[key] = value;
        const Error error = error_of(json);
        EXPECT_TRUE(
            error.code == ErrorCode::kMalformed || error.code == ErrorCode::kInvalidArgument
        ) << key
          << ": " << error.message;
        EXPECT_NE(error.message.find(key), std::string::npos) << error.message;
    }
    for (const auto& [key, what] :
         {std::pair("rank_pattern", "an integer"), std::pair("alpha_pattern", "a number")}) {
        Json json = lora();
        json[key] = {{"q_proj", 65'537}};
        const std::string why = fmt::format(
            "{} of 'q_proj' is 65537; accepted is {} above 0, at most 65536", key, what
        );
        EXPECT_NE(error_of(json).message.find(why), std::string::npos) << error_of(json).message;
        json[key] = {{"q_proj", 65'536}};
        EXPECT_TRUE(AdapterConfig::parse(json.dump(), "a")) << key;
    }
    EXPECT_EQ(AdapterConfig::parse("[1", "a").error().code, ErrorCode::kMalformed);
    EXPECT_EQ(error_of(Json{{"r", std::string(100, '[')}}).code, ErrorCode::kMalformed);
    Json json = lora();
    json["target_modules"] = std::string(ModulePattern::kBytesMax + 1, 'a');
    EXPECT_NE(error_of(json).message.find("4096"), std::string::npos);
}

// In these patterns the text before the layer's group makes the group a comment or a literal.
TEST(AdapterConfig, AnExpressionWithoutItsLayerIsRefused) {
    for (const char* name : {")(?x)#", ")(*ACCEPT)\\Q"}) {
        Json json = lora();
        json["layers_to_transform"] = {0};
        json["layers_pattern"] = name;
        const Result<AdapterConfig> config = AdapterConfig::parse(json.dump(), "a");
        ASSERT_TRUE(config) << config.error().message;
        const Result<Module> found = ModuleSearch(*config).of(kQ0);
        ASSERT_FALSE(found) << name;
        EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
    }
}

// A hostile expression only makes its own load fail, after milliseconds.
TEST(AdapterConfig, GivesUpOnAnExpressionThatNeedsTooManySteps) {
    Json json = lora();
    json["target_modules"] = R"((?:[a-z_.0-9]|[a-z_.0-9])*[A-Z])";
    const Result<AdapterConfig> config = AdapterConfig::parse(json.dump(), "a");
    ASSERT_TRUE(config) << config.error().message;
    const Result<Module> found = ModuleSearch(*config).of(kQ0 + kQ0);
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace pitstop::tp_worker
