// The parameters of rows' draws and reports stay on the device from step to step. No step may use
// those of another step. Runs on a GPU and, in the emulated preset, on a GPU in software.
#include "tests/tp_worker/batch_mix.h"
#include "tests/tp_worker/model/gpu_replica.h"

#include <gtest/gtest.h>

namespace pitstop::tp_worker {
namespace {

class GpuSampler : public GpuReplica {
  protected:
    static TestRequest request_of(std::int32_t slot, std::vector<TokenId> prompt) {
        TestRequest request;
        request.slot = static_cast<SlotId>(slot);
        request.sampling = greedy();
        request.logprobs.enabled = true;
        request.prompt_len = std::ssize(prompt);
        request.tokens = std::move(prompt);
        request.pages = {PageId{2 * slot}, PageId{2 * slot + 1}};
        return request;
    }
    static void run_prompt(TestReplica& replica, TestRequest* request) {
        messages::StepPlan plan;
        add_row(request, request->prompt_len, &plan);
        run_step(&replica, std::move(plan), {request});
    }
    // Runs `second` after `first`, and alone: its results must be the same.
    static void expect_same_after(TestRequest first, const TestRequest& second) {
        const auto after = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
        const auto alone = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
        std::vector<TestRequest> a{second};
        std::vector<TestRequest> b{second};
        run_prompt(*after, &first);
        run_prompt(*after, &a[0]);
        run_prompt(*alone, &b[0]);
        expect_same(a, b);
    }
};

// A scored row gets the place on the device that a drawing row had in the previous step.
TEST_F(GpuSampler, AGivenIdIsNotTheOneThatWasDrawn) {
    TestRequest scored = request_of(1, {TokenId{9}, TokenId{0}, TokenId{4}});
    scored.logprobs.prompt_start = 1;
    expect_same_after(request_of(0, {TokenId{5}, TokenId{6}, TokenId{7}}), scored);
}

// A row that keeps all ids gets the place on the device of a row that kept two in the previous
// step.
TEST_F(GpuSampler, ARowThatKeepsAllIsNotTheOneThatKeptTwo) {
    TestRequest truncated = request_of(0, {TokenId{5}, TokenId{6}, TokenId{7}});
    truncated.sampling.temperature = 1.0;
    truncated.sampling.seed = 4;
    truncated.sampling.top_k = 2;
    truncated.logprobs.mode = messages::LogprobsMode::kTruncated;
    TestRequest whole = request_of(1, {TokenId{9}, TokenId{3}, TokenId{4}});
    whole.sampling.temperature = 1.0;
    whole.sampling.seed = 5;
    whole.logprobs.mode = messages::LogprobsMode::kScaled;
    expect_same_after(truncated, whole);
}

// A step lists more ids than stay on the device. Later steps list fewer, in the same places.
TEST_F(GpuSampler, RowsThatListManyIdsHaveTheirNumbersAmongOthersAsAlone) {
    constexpr std::int32_t kNumRequests = 3;
    const auto together = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
    const auto alone = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
    std::vector<TestRequest> a;
    for (std::int32_t slot = 0; slot < kNumRequests; ++slot) {
        a.push_back(request_of(slot, {TokenId{5 + slot}, TokenId{6}, TokenId{7}}));
        for (std::int32_t i = 0; i < std::int32_t{messages::kLogprobIdsMax}; ++i)
            a.back().logprobs.ids.push_back(TokenId{(i * (slot + 2) + slot) % 500});
    }
    std::vector<TestRequest> b = a;
    TestRequest few = request_of(kNumRequests, {TokenId{8}, TokenId{6}, TokenId{7}});
    few.logprobs.ids = {TokenId{3}, TokenId{400}, TokenId{401}};
    a.insert(a.end(), {few, few});
    a.back().slot = SlotId{kNumRequests + 1};
    b.insert(b.end(), {few, few});
    run_prompt(*together, &a[kNumRequests]);
    messages::StepPlan plan;
    std::vector<TestRequest*> in_step;
    for (std::int32_t i = 0; i < kNumRequests; ++i) {
        TestRequest& request = a[static_cast<std::size_t>(i)];
        add_row(&request, request.prompt_len, &plan);
        in_step.push_back(&request);
    }
    run_step(together.get(), std::move(plan), in_step);
    run_prompt(*together, &a.back());
    for (TestRequest& request : b) run_prompt(*alone, &request);
    for (const TestRequest& request : a)
        EXPECT_EQ(request.outputs.at(0).ids_logprobs.size(), request.logprobs.ids.size());
    expect_same(a, b);
}

}  // namespace
}  // namespace pitstop::tp_worker
