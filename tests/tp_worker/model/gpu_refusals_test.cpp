// What an engine on a GPU does not do yet, and that it says so by name: ranks, updates. Runs on a
// GPU and under the kernels' emulator, as gpu_engine_test.cpp.
#include "kernels/cuda_device.h"
#include "messages/codec.h"
#include "messages/update_orders.h"
#include "tests/gpu_or_skip.h"
#include "tests/tp_worker/test_replica.h"
#include "tp_worker/update/updater.h"

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

TEST_F(GpuRefusals, WeightsThatAnUpdateWouldBring) {
    options_.engine.awaits_weights = true;
    expect_unsupported("--wait-for-initial-weights");
}

// A vote of no that names the device, and the tokens stay those of the weights that are there.
TEST_F(GpuRefusals, AStageOfNewWeights) {
    const auto replica = TestReplica::make(options_);
    ASSERT_TRUE(replica.has_value()) << replica.error().message;
    Pace pace{1.0};
    FaultPoint fault_point{"none"};
    Updater updater((*replica)->root(), pace, fault_point);
    for (const messages::UpdateMode mode :
         {messages::UpdateMode::kStaged, messages::UpdateMode::kDirect}) {
        messages::WorkerStage order;
        order.update = messages::UpdateId{1};
        order.spec.source.path = model_dir("stories");
        order.spec.mode = mode;
        const Result<std::vector<messages::Frames>> answers = updater.obey(encode(order));
        ASSERT_TRUE(answers.has_value()) << answers.error().message;
        ASSERT_EQ(answers->size(), 1u);
        const auto vote =
            decode<messages::WorkerStaged>(answers->front(), messages::UnknownFields::kRefuse);
        ASSERT_TRUE(vote.has_value()) << vote.error().message;
        EXPECT_FALSE(vote->outcome.ok);
        EXPECT_EQ(vote->outcome.code, ErrorCode::kUnsupported);
        ASSERT_EQ(vote->outcome.problems.size(), 1u);
        EXPECT_NE(
            vote->outcome.problems[0].find((*replica)->root().device().name()), std::string::npos
        ) << vote->outcome.problems[0];
    }
    EXPECT_EQ((*replica)->root().epoch(), Epoch{1});
}

}  // namespace
}  // namespace pitstop::tp_worker
