// Names and shards of hybrid models' weights.
#include "messages/version_digest.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/tp_worker/layout_of.h"
#include "tests/tp_worker/model/random_checkpoint.h"
#include "tp_worker/weights/weight_digest.h"
#include "tp_worker/weights/weight_loader.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

CheckpointShape shape_of(const std::string& family) {
    CheckpointShape shape{
        .num_kv_heads = 2,
        .head_dim = 32,
        .num_layers = 2,
        .hybrid = family,
        .layer_types = {"linear_attention", "full_attention"}};
    if (family == "qwen3_next") {
        shape.num_experts = 3;
        shape.num_experts_per_token = 2;
        shape.expert_ffn = 24;
        shape.shared_ffn = 40;
    }
    return shape;
}

class HybridLayout : public testing::TestWithParam<std::string> {
  protected:
    HybridLayout() { write_random_checkpoint(shape_of(GetParam()), directory_); }

    [[nodiscard]] ModelConfig config() const { return *ModelConfig::read(directory_.path()); }
    test::TempDir directory_{};
};

TEST_P(HybridLayout, TakesTheNamesOfATextModelAndOfOneWithVision) {
    const WeightLayout layout = *layout_of(config(), Rank{0}, 1);
    const std::string tail = "layers.0.linear_attn.out_proj.weight";
    const WeightTensor* const tensor = layout.find("model." + tail);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->name, "model." + tail);
    EXPECT_EQ(layout.find("model.language_model." + tail), tensor);
    EXPECT_EQ(layout.find("language_model." + tail), nullptr);
    EXPECT_EQ(layout.find("model.language_model.nothing"), nullptr);
    for (const char* name : {"model.visual.merger.norm.weight", "mtp.fc.weight"})
        EXPECT_TRUE(layout.is_ignored(name)) << name;
    EXPECT_FALSE(layout.is_ignored("model.audio.weight"));
    const std::vector<checkpoint::TensorSpec> twice{
        {.name = "model." + tail, .dtype = checkpoint::StoredDtype::kBf16, .shape = tensor->shape},
        {.name = "model.language_model." + tail,
         .dtype = checkpoint::StoredDtype::kBf16,
         .shape = tensor->shape}};
    const std::vector<std::string> problems = find_problems(layout, twice, Completeness::kPartial);
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_NE(problems.front().find("appears twice"), std::string::npos) << problems.front();
    const bool is_next = GetParam() == "qwen3_next";
    const std::string linear = "model.layers.0.linear_attn.";
    EXPECT_EQ(layout.find(linear + "in_proj_qkvz.weight") != nullptr, is_next);
    EXPECT_EQ(layout.find(linear + "in_proj_qkv.weight") != nullptr, !is_next);
    EXPECT_EQ(layout.find(linear + "A_log")->encoding, Encoding::kF32);
}

// The ranks' parts of each tensor cover it once, or are copies. Their digests add up to the same
// digest, although queries, keys and values of the convolution are split separately.
TEST_P(HybridLayout, DigestsAreTheSameForAnyTp) {
    const Result<checkpoint::Checkpoint> checkpoint =
        checkpoint::Checkpoint::open(directory_.path());
    ASSERT_TRUE(checkpoint.has_value());
    std::set<std::string> digests;
    for (const int tp : {1, 2}) {
        std::vector<std::vector<messages::PartDigest>> of_ranks;
        std::vector<messages::RankParts> all;
        for (int rank = 0; rank < tp; ++rank) {
            const WeightLayout layout = *layout_of(config(), static_cast<Rank>(rank), tp);
            std::vector<std::byte> arena(static_cast<std::size_t>(layout.bytes()));
            const Result<> loaded = load_weights(
                layout,
                {layout, *checkpoint},
                directory_.path(),
                *kernels::reference_ops(),
                {},
                arena.data()
            );
            ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
            Result<std::vector<messages::PartDigest>> parts =
                digest_weights(layout, arena.data(), *kernels::reference_ops(), {});
            ASSERT_TRUE(parts.has_value()) << parts.error().message;
            of_ranks.push_back(*std::move(parts));
        }
        for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
            all.push_back({static_cast<Rank>(rank), of_ranks[rank]});
        const auto whole = messages::version_digest(all);
        ASSERT_TRUE(whole.has_value()) << whole.error().message;
        digests.insert(to_hex(whole->digest));
    }
    EXPECT_EQ(digests.size(), 1u);
}

TEST_P(HybridLayout, RefusesATpThatKeyHeadsDoNotDivide) {
    const Result<WeightLayout> layout = layout_of(config(), Rank{0}, 4);
    ASSERT_FALSE(layout.has_value());
    EXPECT_NE(layout.error().message.find("2 key heads of linear attention"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Families,
    HybridLayout,
    testing::Values("qwen3_next", "qwen3_5"),
    [](const auto& suite) { return suite.param; }
);

}  // namespace
}  // namespace pitstop::tp_worker
