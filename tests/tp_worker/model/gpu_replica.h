// Replicas of one rank on a GPU, for the tests of its steps.
#pragma once

#include "base/isa.h"
#include "tests/gpu_or_skip.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace pitstop::tp_worker {

class GpuReplica : public testing::Test {
  public:
    static constexpr std::int64_t kPageSize =
        4;  // tokens: few, so that short requests have several pages

  protected:
    void SetUp() override { skip_without_gpu(); }

    static std::unique_ptr<TestReplica> open(
        bool has_graphs,
        Determinism determinism = Determinism::kFast,
        const std::string& model = model_dir("stories")
    ) {
        ReplicaOptions options;
        options.engine.model_dir = model;
        options.engine.device = DeviceKind::kCuda;
        options.engine.isa = best_isa();
        options.engine.determinism = determinism;
        options.engine.has_graphs = has_graphs;
        options.engine.page_size = kPageSize;
        options.engine.max_total_tokens = 1600;
        options.engine.num_slots = 7;
        options.engine.tokens_per_step_max = 64;
        auto replica = TestReplica::make(options);
        EXPECT_TRUE(replica.has_value()) << replica.error().message;
        return *std::move(replica);
    }
};

}  // namespace pitstop::tp_worker
