// A checkpoint of a model with tied embeddings, loaded at the start.
#include "tests/checkpoint/safetensors_file.h"
#include "tests/source_dir.h"
#include "tests/tp_worker/layout_of.h"
#include "tests/tp_worker/test_replica.h"
#include "tp_worker/weights/checkpoint_tensors.h"

#include <gtest/gtest.h>

#include <numeric>

namespace pitstop::tp_worker {
namespace {

const std::string kEmbedding(kEmbeddingName);
const std::string kHead(kHeadName);

std::string tied_dir() { return source_dir() + "/tests/data/golden/qwen3_tied"; }

std::string shown(const std::vector<std::string>& problems) {
    return std::accumulate(problems.begin(), problems.end(), std::string());
}

// A copy of the bytes in which one element differs.
std::string changed(std::string bytes, std::size_t element) {
    bytes[2 * element + 1] = static_cast<char>(bytes[2 * element + 1] ^ 0x01);
    return bytes;
}

class LoadedTest : public testing::Test {
  protected:
    void SetUp() override { dir_.copy_from(tied_dir()); }

    Result<std::unique_ptr<TestReplica>> load(int tp, ExtraTensors extra = ExtraTensors::kRefuse) {
        ReplicaOptions options;
        options.engine.model_dir = dir_.path();
        options.engine.compute = Compute::kFp32;
        options.engine.max_total_tokens = 64;
        options.engine.extra_tensors = extra;
        options.tp = tp;
        return TestReplica::make(options);
    }
    std::vector<TokenId> tokens_of(Result<std::unique_ptr<TestReplica>> replica) {
        EXPECT_TRUE(replica.has_value()) << replica.error().message;
        if (!replica) return {};
        return generate(replica->get(), std::vector<TokenId>{TokenId{3}, TokenId{5}}, 8);
    }
    void expect_refused(int tp, std::string_view part) {
        const auto replica = load(tp);
        ASSERT_FALSE(replica.has_value());
        EXPECT_EQ(replica.error().code, ErrorCode::kInvalidArgument);
        EXPECT_NE(replica.error().message.find(part), std::string::npos) << replica.error().message;
    }
    test::TempDir dir_{};
};

TEST_F(LoadedTest, AHeadAloneIsTheEmbedding) {
    const std::vector<TokenId> expected = tokens_of(load(1));
    test::SafetensorsFile file(dir_.path());
    file.rename(kEmbedding, kHead);
    file.write(dir_);
    for (const int tp : {1, 2}) EXPECT_EQ(tokens_of(load(tp)), expected);
}

TEST_F(LoadedTest, TheSameHeadBesideTheEmbeddingIsTakenInAnyDtype) {
    const std::vector<TokenId> expected = tokens_of(load(1));
    test::SafetensorsFile file(dir_.path());
    file.add(kHead, "F32", file.shape_of(kEmbedding), test::widened(file.bytes_of(kEmbedding)));
    file.write(dir_);
    for (const int tp : {1, 2}) EXPECT_EQ(tokens_of(load(tp)), expected);
}

TEST_F(LoadedTest, AnotherHeadBesideTheEmbeddingIsRefused) {
    test::SafetensorsFile file(dir_.path());
    const std::string embedding = file.bytes_of(kEmbedding);
    // One element of the last row: with two ranks only the second sees it.
    file.add(
        kHead, "BF16", file.shape_of(kEmbedding), changed(embedding, embedding.size() / 2 - 1)
    );
    file.write(dir_);
    for (const int tp : {1, 2}) expect_refused(tp, "tie_word_embeddings");
}

TEST_F(LoadedTest, AHeadOfAnotherShapeIsRefused) {
    test::SafetensorsFile file(dir_.path());
    file.add(kHead, "BF16", {1, 2}, "abcd");
    file.write(dir_);
    expect_refused(1, "'lm_head.weight' has shape [1, 2]");
}

TEST_F(LoadedTest, TensorsOfOtherProgramsAreLeftOutAndLayersOnlyIfAsked) {
    const std::vector<TokenId> expected = tokens_of(load(1));
    test::SafetensorsFile file(dir_.path());
    file.add("v_head.summary.weight", "I64", {1}, std::string(8, '\1'));
    file.add("score.weight", "BF16", {1, 2}, "abcd");
    file.write(dir_);
    EXPECT_EQ(tokens_of(load(1)), expected);
    file.add("model.layers.2.input_layernorm.weight", "BF16", {2}, "abcd");
    file.write(dir_);
    expect_refused(1, "'model.layers.2.input_layernorm.weight' is no tensor of this model");
    expect_refused(1, "--ignore-extra-tensors");
    EXPECT_EQ(tokens_of(load(1, ExtraTensors::kIgnore)), expected);
}

TEST_F(LoadedTest, NotesSayWhatIsLeftOutAndWhatIsRounded) {
    test::SafetensorsFile file(dir_.path());
    file.add("value_head.weight", "BF16", {1, 2}, "abcd");
    file.add(kHead, "F32", file.shape_of(kEmbedding), test::widened(file.bytes_of(kEmbedding)));
    file.write(dir_);
    const ModelConfig config = *ModelConfig::read(dir_.path());
    const WeightLayout layout = *layout_of(config, Rank{0}, 1);
    const checkpoint::Checkpoint checkpoint = *checkpoint::Checkpoint::open(dir_.path());
    const std::vector<std::string> notes = CheckpointTensors(layout, checkpoint).notes();
    ASSERT_EQ(notes.size(), 2u) << shown(notes);
    EXPECT_NE(notes[0].find("are ignored: value_head.weight"), std::string::npos) << notes[0];
    EXPECT_NE(notes[1].find("1 tensor(s) of F32 are rounded to BF16"), std::string::npos);
    EXPECT_NE(notes[1].find("--compute fp32"), std::string::npos) << notes[1];
}

}  // namespace
}  // namespace pitstop::tp_worker
