// P11 on a GPU: rows with drafts give the bits of the one-token rows that they replace, with and
// without CUDA graphs. Runs on a GPU and, in the emulated preset, on a GPU in software.
#include "tests/tp_worker/batch_mix.h"
#include "tests/tp_worker/model/gpu_replica.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pitstop::tp_worker {
namespace {

#if defined(PITSTOP_EMULATED)
constexpr unsigned kSeeds = 1;
const BatchMix kMix{.num_output = 7, .prompt_len_max = 4};
#else
constexpr unsigned kSeeds = 8;
const BatchMix kMix{};
#endif

class GpuDrafts : public GpuReplica {};

std::int64_t num_launched(TestReplica& replica) { return replica.root().graphs()->num_launched(); }

// Each draw of a row has its own penalties, bans and bias, as if the drafts before it were right. A
// wrong draft leaves no trace.
TEST_F(GpuDrafts, P11_ChangeNoBit) {
    const auto without = open(/*has_graphs=*/false, Determinism::kBatchInvariant);
    const std::vector<TestRequest> alone = run_alone(without.get(), kMix);
    BatchMix mix = kMix;
    mix.outputs = &alone;
    const auto with = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
    for (unsigned seed = 1; seed <= kSeeds; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed);
        expect_same(alone, run_mixed(with.get(), mix, seed));
    }
    expect_same(alone, run_mixed(without.get(), mix, kSeeds + 1));
    EXPECT_GE(num_launched(*with), 3);
}

// A step's bits depend on its shape, but not on whether it is a graph.
TEST_F(GpuDrafts, HaveTheSameBitsAsGraphsAndWithout) {
    BatchMix mix = kMix;
    mix.num_requests = 4;
    const auto with = open(/*has_graphs=*/true);
    const auto without = open(/*has_graphs=*/false);
    const std::vector<TestRequest> alone = run_alone(without.get(), mix);
    mix.outputs = &alone;
    expect_same(run_mixed(with.get(), mix, 3), run_mixed(without.get(), mix, 3));
    EXPECT_GE(num_launched(*with), 2);
}

TestRequest request_of(int slot) {
    constexpr std::int64_t kPages = 12;
    TestRequest request;
    request.slot = static_cast<SlotId>(slot);
    request.sampling.temperature = 1.5;
    request.sampling.seed = 3 + slot;
    request.sampling.frequency_penalty = slot % 2 == 0 ? 0.0 : 1.5;
    request.logprobs.enabled = true;
    request.prompt_len = 3;
    for (std::int64_t t = 0; t < request.prompt_len; ++t)
        request.tokens.push_back(static_cast<TokenId>(9 + 7 * slot + t));
    for (std::int64_t page = 0; page < kPages; ++page)
        request.pages.push_back(static_cast<PageId>(kPages * slot + page));
    return request;
}

void run_to(TestReplica& replica, TestRequest& request, std::size_t num_outputs) {
    while (request.outputs.size() < num_outputs) {
        messages::StepPlan plan;
        add_row(&request, std::ssize(request.tokens) - request.num_done, &plan);
        run_step(&replica, std::move(plan), {&request});
    }
}

std::vector<TokenId> outputs_of(const TestRequest& request, std::size_t begin, std::size_t end) {
    const auto first = request.tokens.begin() + request.prompt_len;
    return {first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end)};
}

// Rows with as many drafts as allowed: all right, or the first one wrong.
TEST_F(GpuDrafts, P11_AreVerifiedUpToTheMost) {
    constexpr std::size_t kNum = 2 + messages::kDraftedMax;
    const auto replica = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
    EXPECT_EQ(replica->root().describe().drafted_max, messages::kDraftedMax);
    constexpr int kWithPenalty = 1;
    TestRequest alone = request_of(kWithPenalty);
    run_to(*replica, alone, kNum + 1);
    for (const bool is_right : {true, false}) {
        TestRequest drafted = request_of(kWithPenalty);
        run_to(*replica, drafted, 1);
        std::vector<TokenId> drafts = outputs_of(alone, 1, kNum - 1);
        if (!is_right) drafts[0] = static_cast<TokenId>((raw(drafts[0]) + 1) % 2000);
        messages::StepPlan plan;
        add_row(&drafted, 1, &plan, drafts);
        run_step(replica.get(), std::move(plan), {&drafted});
        EXPECT_EQ(drafted.outputs.size(), is_right ? kNum : 2u);
        run_to(*replica, drafted, drafted.outputs.size() + 1);
        const std::size_t num = drafted.outputs.size();
        EXPECT_EQ(outputs_of(drafted, 0, num), outputs_of(alone, 0, num));
        alone.outputs.resize(num);
        EXPECT_EQ(drafted.outputs, alone.outputs);
    }
}

// The step after drafts starts while the drafts are verified. Its input is the last token that
// counts, and its penalties include all tokens that count.
TEST_F(GpuDrafts, P11_ALastTokenIsTheLastThatCounts) {
    const auto replica = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
    Engine& engine = replica->root();
    for (const int slot : {1, 2}) {
        SCOPED_TRACE(testing::Message() << "slot " << slot);
        TestRequest alone = request_of(slot);
        run_to(*replica, alone, 6);
        TestRequest drafted = request_of(slot);
        run_to(*replica, drafted, 1);
        std::vector<TokenId> drafts = outputs_of(alone, 1, 5);
        drafts[1] = static_cast<TokenId>((raw(drafts[1]) + 1) % 2000);
        messages::StepPlan plan;
        plan.epoch = engine.epoch();
        add_row(&drafted, 1, &plan, drafts);
        messages::StepPlan next;
        next.epoch = engine.epoch();
        next.rows = plan.rows;
        next.pages = plan.pages;
        next.tokens.values = {TokenId{0}};
        messages::PlanRow& row = next.rows.front();
        row.begin += 2;  // the token before the drafts, and one right draft
        row.num_new = 1;
        *row.output_index += 2;
        row.takes_sampled = true;
        row.num_drafted.reset();
        ASSERT_TRUE(engine.start(plan).has_value());
        ASSERT_TRUE(engine.start(next).has_value());
        const Result<messages::StepResult> of_drafts = engine.finish();
        const Result<messages::StepResult> after = engine.finish();
        ASSERT_TRUE(of_drafts.has_value() && after.has_value());
        EXPECT_EQ(
            std::vector(of_drafts->sampled.values.begin(), of_drafts->sampled.values.begin() + 2),
            outputs_of(alone, 1, 3)
        );
        EXPECT_EQ(after->sampled.values, outputs_of(alone, 3, 4));
        EXPECT_EQ(after->logprobs.values.front(), alone.outputs[3].logprob);
    }
}

}  // namespace
}  // namespace pitstop::tp_worker
