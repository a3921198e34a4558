// The forms of a model's paths, the steps of a search, and patterns that decide nothing.
#include "tp_worker/config/module_search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using Json = nlohmann::ordered_json;
using Module = std::optional<ModuleSearch::Module>;

const std::string kQ0 = "model.layers.0.self_attn.q_proj";
const std::string kQ4 = "model.layers.4.self_attn.q_proj";
const std::string kVision0 = "model.language_model.layers.0.self_attn.q_proj";

Json lora() { return Json::parse(R"({"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]})"); }

AdapterConfig config_of(const Json& json) {
    auto config = AdapterConfig::parse(json.dump(), "a");
    EXPECT_TRUE(config) << config.error().message;
    return *std::move(config);
}

Module found(
    const Json& json, const std::string& path, ModulePaths paths = ModulePaths::kOwnOrOfVision
) {
    const AdapterConfig config = config_of(json);
    const Result<Module> module = ModuleSearch(config, paths).of(path);
    EXPECT_TRUE(module) << module.error().message;
    return module ? *module : std::nullopt;
}

// PEFT's paths in a model with vision begin with "model.language_model.".
TEST(ModuleSearch, NamesAndPatternsMayBeOfThePathsOfAModelWithVision) {
    const std::vector<std::string> patterns{kVision0, R"(.*language_model\.layers\.[0-3]\..*)"};
    for (const std::string& pattern : patterns) {
        Json json = lora();
        json["alpha_pattern"] = {{pattern, 64}};
        EXPECT_EQ(found(json, kQ0)->scale, 8.0) << pattern;
        EXPECT_EQ(found(json, kQ4)->scale, 2.0) << pattern;
        EXPECT_EQ(found(json, kQ0, ModulePaths::kOwn)->scale, 2.0) << "no such path there";
        json["rank_pattern"] = {{pattern, 4}};
        EXPECT_EQ(found(json, kQ0)->rank, 4) << pattern;
        EXPECT_EQ(found(json, kQ4)->rank, 8) << pattern;
        json = lora();
        json["target_modules"] = pattern;
        EXPECT_TRUE(found(json, kQ0)) << pattern;
        EXPECT_FALSE(found(json, kQ4)) << pattern;
        json = lora();
        json["exclude_modules"] = pattern;
        EXPECT_FALSE(found(json, kQ0)) << pattern;
        EXPECT_TRUE(found(json, kQ4)) << pattern;
    }
    Json json = lora();
    json["target_modules"] = {kVision0};
    json["layers_to_transform"] = {4};
    EXPECT_TRUE(found(json, kQ0)) << "a whole path selects its layer";
    EXPECT_FALSE(found(json, kQ4));
    json["target_modules"] = {"q_proj"};
    json["layers_pattern"] = "language_model.layers";
    EXPECT_FALSE(found(json, kQ0));
    EXPECT_TRUE(found(json, kQ4));
    EXPECT_FALSE(found(json, kQ4, ModulePaths::kOwn));
    json = lora();
    json["target_parameters"] = {"model.language_model.layers.0.mlp.experts.down_proj"};
    const AdapterConfig config = config_of(json);
    ModuleSearch search(config, ModulePaths::kOwnOrOfVision);
    EXPECT_TRUE(*search.of_parameter("model.layers.0.mlp.experts.down_proj"));
    EXPECT_FALSE(*search.of_parameter("model.layers.1.mlp.experts.down_proj"));
}

TEST(ModuleSearch, ThePatternThatComesFirstDecidesWhateverItsForm) {
    Json json = lora();
    json["alpha_pattern"] = {{kQ0, 32}, {kVision0, 64}};
    EXPECT_EQ(found(json, kQ0)->scale, 4.0);
    json["alpha_pattern"] = {{kVision0, 64}, {kQ0, 32}};
    EXPECT_EQ(found(json, kQ0)->scale, 8.0);
}

TEST(ModuleSearch, PatternsThatDecideNothingAreKnown) {
    Json json = lora();
    json["rank_pattern"] = {{"0.self_attn.q_proj", 4}, {"layers.0.self_attn.q_proj", 5}};
    json["alpha_pattern"] = {{"k_proj", 1}, {kQ4, 2}};
    const AdapterConfig config = config_of(json);
    ModuleSearch search(config);
    for (const std::string& path : {kQ0, kQ4, std::string("model.layers.0.self_attn.k_proj")})
        EXPECT_TRUE(search.of(path));
    EXPECT_EQ(
        search.idle_patterns(),
        (std::vector<std::string>{
            "rank_pattern 'layers.0.self_attn.q_proj'", "alpha_pattern 'k_proj'"})
    );
}

// Without this bound, 4,000 keys over the 18,432 experts' modules of a large model take minutes.
TEST(ModuleSearch, GivesUpOnPatternsThatTogetherNeedTooManySteps) {
    Json json = lora();
    json["target_modules"] = {"gate_proj"};
    for (int i = 0; i < 4000; ++i) json["rank_pattern"]["x" + std::to_string(i)] = 4;
    const AdapterConfig config = config_of(json);
    ModuleSearch search(config, ModulePaths::kOwn, MatchSteps(nullptr, MatchSteps::kMax / 100));
    Result<Module> module = Module();
    int num = 0;
    for (; module && num < 18'432; ++num)
        module = search.of(fmt::format("model.layers.0.mlp.experts.{}.gate_proj", num));
    ASSERT_FALSE(module);
    EXPECT_GT(num, 5) << "and a hundred times as many with all steps";
    EXPECT_LT(num, 50);
    EXPECT_EQ(module.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(module.error().message.find("rank_pattern"), std::string::npos);
}

TEST(ModuleSearch, EndsWhenItsStageIsDropped) {
    const AdapterConfig config = config_of(lora());
    std::atomic<bool> is_dropped{false};
    ModuleSearch search(config, ModulePaths::kOwn, MatchSteps(&is_dropped));
    EXPECT_TRUE(search.of(kQ0));
    is_dropped = true;
    const Result<Module> module = search.of(kQ0);
    ASSERT_FALSE(module);
    EXPECT_EQ(module.error().code, ErrorCode::kAborted);
}

}  // namespace
}  // namespace pitstop::tp_worker
