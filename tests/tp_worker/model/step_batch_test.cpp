// Tests the plans that a rank refuses before it computes anything.
#include "tp_worker/model/step_batch.h"

#include <gtest/gtest.h>

#include <string>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kVocab = 100;

// A plan with a request of two tokens, which samples after them.
messages::StepPlan plan_of(const messages::LogprobOptions& logprobs) {
    messages::StepPlan plan;
    plan.setups.push_back({.slot = SlotId{1}, .prompt_len = 2, .logprobs = logprobs});
    plan.rows.push_back({.slot = SlotId{1}, .num_new = 2, .num_pages = 1, .output_index = 0});
    plan.tokens.values = {TokenId{3}, TokenId{4}};
    plan.pages.values = {PageId{0}};
    return plan;
}

std::string refusal(const messages::StepPlan& plan, const StepLimits& limits) {
    RequestSlots slots(2);
    EXPECT_TRUE(set_up_requests(plan, kVocab, &slots).has_value());
    PlannedStep step;
    const Result<> prepared = step.prepare(plan, slots, limits);
    return prepared ? "" : prepared.error().message;
}

TEST(PlannedStep, ASupportThatTheDeviceDoesNotReportIsRefusedByName) {
    StepLimits limits{
        .tokens_max = 8, .num_positions = 64, .num_pages = 4, .page_size = 16, .vocab_len = kVocab};
    const messages::StepPlan with = plan_of({.enabled = true, .support = true});
    const messages::StepPlan without = plan_of({.enabled = true});
    EXPECT_EQ(refusal(with, limits), "");
    limits.no_supports = "GPUs report none";
    EXPECT_EQ(
        refusal(with, limits), "row 0 (slot 1): no support of a draw (GPUs report none); output 0"
    );
    EXPECT_EQ(refusal(without, limits), "");
}

}  // namespace
}  // namespace pitstop::tp_worker
