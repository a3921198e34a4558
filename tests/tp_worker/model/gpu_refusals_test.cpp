// What an engine on a GPU does not do yet, and that it says so by name: ranks. Runs on a
// GPU and under the kernels' emulator, as gpu_engine_test.cpp.
#include "kernels/cuda_device.h"
#include "tests/gpu_or_skip.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>

namespace pitstop::tp_worker {
namespace {

class GpuRefusals : public testing::Test {
  protected:
    void SetUp() override {
        if (const std::string why = why_no_gpu(); !why.empty()) {
            ASSERT_FALSE(is_gpu_required()) << why;
            GTEST_SKIP() << why;
        }
        options_.engine.model_dir = model_dir("stories");
        options_.engine.device = DeviceKind::kCuda;
        options_.engine.max_total_tokens = 160;
        options_.engine.tokens_per_step_max = 64;
        options_.engine.num_slots = 4;
    }
    // The engine does not start, and says which flag is in the way.
    void expect_unsupported(const std::string& flag) {
        const auto replica = TestReplica::make(options_);
        ASSERT_FALSE(replica.has_value());
        EXPECT_EQ(replica.error().code, ErrorCode::kUnsupported);
        EXPECT_NE(replica.error().message.find(flag), std::string::npos) << replica.error().message;
    }

    ReplicaOptions options_{};
};

TEST_F(GpuRefusals, MoreThanOneRank) {
    options_.tp = 2;
    expect_unsupported("--tp");
}

}  // namespace
}  // namespace pitstop::tp_worker
