// The configuration of an adapter's update, and the files that are watched from before it is read.
#include "tp_worker/update/given_config.h"

#include "tests/checkpoint/temp_dir.h"

#include <gtest/gtest.h>

#include <string>

namespace pitstop::tp_worker {
namespace {

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
constexpr const char* kTorchTensors = "adapter_model.bin";

class GivenConfigTest : public testing::Test {
  protected:
    GivenConfigTest() {
        dir_.write(kConfig, "{1}");
        dir_.write(kTensors, "tensors");
        spec_.adapter = "one";
        spec_.source.path = dir_.path();
    }
    GivenConfig read() {
        Result<GivenConfig> given = GivenConfig::read(spec_);
        EXPECT_TRUE(given) << given.error().message;
        return given ? *std::move(given) : GivenConfig{};
    }

    test::TempDir dir_{};
    messages::UpdateSpec spec_{};
};

TEST_F(GivenConfigTest, TheCallsTextCountsBeforeTheFilesText) {
    EXPECT_EQ(read().text, "{1}");
    EXPECT_EQ(read().where, dir_.path(kConfig));
    spec_.adapter_config = "{2}";
    EXPECT_EQ(read().text, "{2}");
    EXPECT_EQ(read().where, "adapter_config");
    EXPECT_FALSE(read().none);
}

TEST_F(GivenConfigTest, WithoutAFileThereIsNone) {
    dir_.remove(kConfig);
    EXPECT_EQ(read().none->code, ErrorCode::kNotFound);
    spec_.source.kind = messages::SourceKind::kTensors;
    EXPECT_EQ(read().none->code, ErrorCode::kInvalidArgument);
}

TEST_F(GivenConfigTest, P2_AFileThatIsWrittenAfterwardsIsNoticed) {
    for (const char* file : {kConfig, kTensors, kTorchTensors}) {
        const GivenConfig given = read();
        EXPECT_TRUE(given.files.are_unchanged());
        dir_.write(file, "another state");
        const Result<> unchanged = given.files.are_unchanged();
        ASSERT_FALSE(unchanged) << file;
        EXPECT_EQ(unchanged.error().code, ErrorCode::kDataLoss);
        EXPECT_NE(unchanged.error().message.find(file), std::string::npos);
    }
    dir_.remove(kConfig);
    const GivenConfig none = read();
    dir_.write(kConfig, "{3}");
    EXPECT_FALSE(none.files.are_unchanged()) << "the file did not exist before";
}

}  // namespace
}  // namespace pitstop::tp_worker
