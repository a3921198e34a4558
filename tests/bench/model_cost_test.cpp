#include "bench/model_cost.h"

#include "tests/checkpoint/temp_dir.h"
#include "tests/source_dir.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace pitstop::bench {
namespace {

ModelShape shape(std::string_view name) { return *find_shape(name); }

TEST(ModelShape, HasThePublishedNumberOfParameters) {
    const std::vector<std::pair<std::string, double>> published{
        {"qwen3-0.6b", 596.05e6},
        {"qwen3-8b", 8190.7e6},
        {"qwen2.5-0.5b", 494.03e6},
        {"llama-3.2-1b", 1235.81e6},
        {"mistral-7b", 7241.73e6},
    };
    for (const auto& [name, parameters] : published) {
        double count = 0;
        for (const PlannedTensor& tensor : tensors_of(shape(name))) {
            count += static_cast<double>(num_elements(tensor));
        }
        EXPECT_NEAR(count, parameters, parameters * 1e-5) << name;
    }
}

TEST(ModelCost, AStepReadsTheHeadButNotASecondEmbedding) {
    // Qwen3-0.6B has 596.05 M parameters, tied: all are read.
    EXPECT_NEAR(cost_of(shape("qwen3-0.6b")).weight_bytes, 2 * 596.05e6, 2e4);
    // Qwen3-8B has 8190.7 M, untied: all but an embedding of 151936 x 4096 are read.
    EXPECT_NEAR(cost_of(shape("qwen3-8b")).weight_bytes, 2 * (8190.7e6 - 151936. * 4096), 2e5);
}

TEST(ModelCost, KvOfATokenIsTwoVectorsPerLayerAndHead) {
    EXPECT_EQ(cost_of(shape("qwen3-0.6b")).kv_bytes, 2 * 2 * 28 * 8 * 128);
    EXPECT_EQ(cost_of(shape("llama-3.2-1b")).kv_bytes, 2 * 2 * 16 * 8 * 64);
}

TEST(ModelCost, AHybridHasKvInEachFourthLayerAndAStateInTheOthers) {
    const ModelCost cost = cost_of(shape("qwen3.5-0.8b"));
    EXPECT_EQ(cost.kv_bytes, 2 * 2 * 6 * 2 * 256);
    EXPECT_EQ(cost.state_bytes, 4 * 18 * 16 * 128 * 128);
    const StepLimits limits{.read_bytes_per_s = 1e9, .flops_per_s = 1e15};
    const double bytes = cost.weight_bytes + 8 * (100 * cost.kv_bytes + cost.state_bytes);
    EXPECT_DOUBLE_EQ(decode_step_seconds_min(cost, limits, 8, 100), bytes / 1e9);
}

TEST(ModelCost, AStepReadsTheExpertsThatItsTokensChoose) {
    const ModelCost cost = cost_of(shape("experts-2b-a0.3b"));
    const double expert = 2. * 24 * 3 * 384 * 1024;  // bytes, in all layers
    const double head = 2. * 98304 * 1024;
    const double layer = 2. * ((2 * 1024 + 2 * 256 + 64) * 1024 + 2 * 1024 + 2 * 64);
    EXPECT_DOUBLE_EQ(cost.expert_bytes, expert);
    EXPECT_DOUBLE_EQ(cost.weight_bytes, head + 24 * layer + 2 * 1024);
    EXPECT_DOUBLE_EQ(cost.weights_read(1), cost.weight_bytes + 4 * expert);
    // Each token chooses 4 of 64 experts: on average 1/16 of the second token's 4 are read already.
    EXPECT_DOUBLE_EQ(cost.weights_read(2), cost.weight_bytes + 7.75 * expert);
    EXPECT_NEAR(cost.weights_read(512), cost.weight_bytes + 64 * expert, 1);
    EXPECT_DOUBLE_EQ(cost.layer_flops, 24. * 2 * 1024 * (2 * 1024 + 2 * 256 + 64) + 4 * expert);
}

TEST(ModelCost, TheLongerOfBytesAndFlopsBoundsAStep) {
    const ModelCost cost{
        .weight_bytes = 1e9, .kv_bytes = 1e5, .layer_flops = 8e8, .head_flops = 2e8};
    const StepLimits limits{.read_bytes_per_s = 1e10, .flops_per_s = 1e11};
    EXPECT_DOUBLE_EQ(decode_step_seconds_min(cost, limits, 1, 0), 0.1);    // bytes: 1e9 / 1e10
    EXPECT_DOUBLE_EQ(decode_step_seconds_min(cost, limits, 1, 1e4), 0.2);  // bytes: 1e9 + 1e4 * 1e5
    EXPECT_DOUBLE_EQ(decode_step_seconds_min(cost, limits, 100, 0), 1.0);  // flops: 1e11 / 1e11
    EXPECT_DOUBLE_EQ(prefill_seconds_min(cost, limits, 1000), 8.002);
}

TEST(ModelCost, ReadsTheBundledModelsConfig) {
    const auto read = read_shape(source_dir() + "/launch/models/stories");
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->layers, 6);
    EXPECT_EQ(read->vocab, 2048);
    EXPECT_TRUE(read->tied);
    EXPECT_FALSE(read_shape("/nonexistent").has_value());
}

TEST(ModelCost, ReadsTheConfigOfExpertsThatAreInAllLayers) {
    const test::TempDir directory;
    const ModelShape written = shape("experts-2b-a0.3b");
    directory.write("config.json", config_json(written, "bfloat16"));
    const auto read = read_shape(directory.path());
    ASSERT_TRUE(read.has_value()) << read.error().message;
    EXPECT_EQ(cost_of(*read).weights_read(3), cost_of(written).weights_read(3));

    const auto has_a_dense_layer = read_shape(source_dir() + "/launch/models/stories-moe");
    ASSERT_FALSE(has_a_dense_layer.has_value());
    EXPECT_NE(has_a_dense_layer.error().message.find("mlp_only_layers"), std::string::npos);
}

}  // namespace
}  // namespace pitstop::bench
