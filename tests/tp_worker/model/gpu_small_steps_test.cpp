// Steps of few tokens with prompts among their rows: padded, and as CUDA graphs. Runs on a GPU and,
// in the emulated preset, on a GPU in software.
#include "tests/tp_worker/batch_mix.h"
#include "tests/tp_worker/model/gpu_replica.h"
#include "tests/tp_worker/model/random_checkpoint.h"
#include "tp_worker/model/step_padding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace pitstop::tp_worker {
namespace {

class GpuSmallSteps : public GpuReplica {};

constexpr std::int64_t kChunk = 4;

// Draws of every kind. No prompt leaves a chunk of one token, which would be a decode.
std::vector<TestRequest> make_requests_with_prompts() {
    constexpr int kNum = 6;
    constexpr std::int64_t kPromptLens[kNum] = {8, 6, 4, 2, 10, 7};
    constexpr std::int64_t kPages = 8;
    std::vector<TestRequest> requests(kNum);
    for (int i = 0; i < kNum; ++i) {
        TestRequest& request = requests[static_cast<std::size_t>(i)];
        request.slot = static_cast<SlotId>(kNum - i);
        request.sampling = greedy();
        request.logprobs.enabled = true;
        if (i % 3 == 1) {
            request.sampling.temperature = 1.5;
            request.sampling.seed = 3 + i;
        }
        if (i % 3 == 2) request.sampling.frequency_penalty = 1.5;
        request.prompt_len = kPromptLens[i];
        for (std::int64_t t = 0; t < request.prompt_len; ++t)
            request.tokens.push_back(static_cast<TokenId>(9 + 7 * i + t));
        for (std::int64_t page = 0; page < kPages; ++page)
            request.pages.push_back(static_cast<PageId>(kPages * i + page));
    }
    return requests;
}

// Requests begin one after another, in chunks, while the earlier ones decode: every step has a
// prompt.
std::vector<TestRequest> run_together(
    TestReplica& replica,
    std::vector<TestRequest> requests = make_requests_with_prompts(),
    std::int64_t chunk = kChunk
) {
    std::vector<TestRequest*> rows;
    for (TestRequest& request : requests) {
        rows.push_back(&request);
        while (request.num_done < request.prompt_len) {
            messages::StepPlan plan;
            for (TestRequest* const row : rows) {
                const bool is_prompt = row == &request;
                const std::int64_t num_left = request.prompt_len - request.num_done;
                add_row(row, is_prompt ? std::min(chunk, num_left) : 1, &plan);
            }
            run_step(&replica, std::move(plan), rows);
        }
    }
    return requests;
}

// Each request alone, for as many outputs as it had together with others, its prompt in one piece.
std::vector<TestRequest> run_alone_as_far(
    TestReplica& replica, const std::vector<TestRequest>& together
) {
    std::vector<TestRequest> requests = make_requests_with_prompts();
    for (std::size_t i = 0; i < requests.size(); ++i) {
        TestRequest& request = requests[i];
        while (request.outputs.size() < together[i].outputs.size()) {
            messages::StepPlan plan;
            add_row(&request, request.num_done == 0 ? request.prompt_len : 1, &plan);
            run_step(&replica, std::move(plan), {&request});
        }
    }
    return requests;
}

// Requests that share a prompt. The first one computes the prompt's whole pages; in the same step
// the others read these pages and compute only the last token, as rows that decode. The scheduler
// would let them wait for the next step (scheduler_proc/prefix_cache.h), but no rank relies on
// that.
constexpr std::int64_t kSharedPages = 5;
constexpr int kSiblings = 3;
constexpr int kSiblingTokens = 3;

std::vector<TestRequest> make_siblings(int round) {
    constexpr std::int64_t kShared = kSharedPages * GpuReplica::kPageSize;
    constexpr std::int64_t kOwnPages = 2;
    std::vector<TestRequest> requests(1 + kSiblings);
    std::int64_t next_page = round % 2;  // so that contents of pages differ between rounds
    for (int i = 0; i <= kSiblings; ++i) {
        TestRequest& request = requests[static_cast<std::size_t>(i)];
        request.slot = static_cast<SlotId>(1 + i);
        request.sampling = greedy();
        if (i > 1) {
            request.sampling.temperature = 1.5;
            request.sampling.seed = 3 + i;
        }
        request.logprobs.enabled = true;
        request.prompt_len = kShared + 1;
        for (std::int64_t t = 0; t <= kShared; ++t)
            request.tokens.push_back(static_cast<TokenId>(30 + (37 * round + 11 * t) % 400));
        if (i > 0) {
            const auto shared = requests[0].pages.begin();
            request.pages.assign(shared, shared + kSharedPages);
            request.num_done = kShared;
        }
        while (std::ssize(request.pages) < kSharedPages + kOwnPages)
            request.pages.push_back(static_cast<PageId>(next_page++));
    }
    return requests;
}

// All requests in one step, then one token each. In odd rounds the siblings' rows are first.
std::vector<TestRequest> run_siblings(TestReplica& replica, int round) {
    std::vector<TestRequest> requests = make_siblings(round);
    std::vector<TestRequest*> rows;
    for (TestRequest& request : requests) rows.push_back(&request);
    if (round % 2 == 1) std::rotate(rows.begin(), rows.begin() + 1, rows.end());
    for (int i = 0; i < kSiblingTokens; ++i) {
        messages::StepPlan plan;
        for (TestRequest* const row : rows)
            add_row(row, i == 0 ? row->prompt_len - row->num_done : 1, &plan);
        run_step(&replica, std::move(plan), rows);
    }
    return requests;
}

std::vector<TestRequest> run_siblings_alone(TestReplica& replica, int round) {
    std::vector<TestRequest> requests = make_siblings(round);
    for (TestRequest& request : requests) {
        request.num_done = 0;
        for (int i = 0; i < kSiblingTokens; ++i) {
            messages::StepPlan plan;
            add_row(&request, i == 0 ? request.prompt_len : 1, &plan);
            run_step(&replica, std::move(plan), {&request});
        }
    }
    return requests;
}

std::int64_t num_launched(TestReplica& replica) { return replica.root().graphs()->num_launched(); }

TEST_F(GpuSmallSteps, HaveTheSameBitsAsGraphsAndWithout) {
    for (const Determinism determinism : {Determinism::kFast, Determinism::kBatchInvariant}) {
        const auto with = open(/*has_graphs=*/true, determinism);
        const auto without = open(/*has_graphs=*/false, determinism);
        const std::vector<TestRequest> a = run_together(*with);
        const std::vector<TestRequest> b = run_together(*without);
        expect_same(a, b);
        // All steps have one shape. The first step and the step without logits run without a graph.
        EXPECT_GE(num_launched(*with), 8);
        EXPECT_EQ(with->root().graphs()->num_graphs(), 1);
        EXPECT_EQ(num_launched(*without), 0);
        expect_same(run_together(*with), b);
    }
}

// A graph made from a step with one token per row runs steps whose prompts have more tokens per
// row. Heads of 128 have separate attention kernels for the two.
TEST_F(GpuSmallSteps, AreNotThoseThatTheirGraphWasMadeOf) {
    const test::TempDir directory;
    write_random_checkpoint({.head_dim = 128}, directory);
    const auto open_it = [&](bool has_graphs) {
        return open(has_graphs, Determinism::kFast, directory.path());
    };
    const auto with = open_it(/*has_graphs=*/true);
    const auto without = open_it(/*has_graphs=*/false);
    std::vector<TestRequest> two = make_requests_with_prompts();
    two.resize(2);
    run_together(*with, std::move(two), /*chunk=*/1);
    const std::int64_t num_graphs = with->root().graphs()->num_graphs();
    const std::int64_t num_before = num_launched(*with);
    expect_same(run_together(*with), run_together(*without));
    EXPECT_EQ(with->root().graphs()->num_graphs(), num_graphs);
    EXPECT_GE(num_launched(*with), num_before + 8);
}

// Padding needs positions of its own; a step that cannot be padded has no graph.
TEST_F(GpuSmallSteps, AreNotPaddedInAContextThatHasNoPositionsForIt) {
    for (const std::int64_t num_tokens : {kPaddingTokenStep - kPageSize, kPaddingTokenStep}) {
        ReplicaOptions options;
        options.engine.model_dir = model_dir("stories");
        options.engine.device = DeviceKind::kCuda;
        options.engine.isa = best_isa();
        options.engine.page_size = kPageSize;
        options.engine.max_total_tokens = num_tokens;
        options.engine.num_slots = 2;
        options.engine.tokens_per_step_max = 64;
        const auto replica = TestReplica::make(options);
        ASSERT_TRUE(replica.has_value()) << replica.error().message;
        std::vector<TestRequest> one = make_requests_with_prompts();
        one.resize(1);
        one[0].slot = SlotId{1};
        one[0].pages.resize(static_cast<std::size_t>(num_tokens / kPageSize));
        run_together(**replica, std::move(one));
        EXPECT_EQ((*replica)->root().graphs()->num_graphs(), num_tokens == kPaddingTokenStep)
            << num_tokens << " tokens";
    }
}

TEST_F(GpuSmallSteps, P6_PaddingDecidesNoBit) {
    const auto replica = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
    const std::vector<TestRequest> together = run_together(*replica);
    const auto without = open(/*has_graphs=*/false, Determinism::kBatchInvariant);
    expect_same(together, run_alone_as_far(*without, together));
}

// Steps without a row of padding, with one token of padding, and with a bucket's last tokens.
TEST_F(GpuSmallSteps, P6_AreThoseOfAnyNumberOfTokens) {
    const auto replica = open(/*has_graphs=*/true, Determinism::kBatchInvariant);
    const auto first_of = [&](std::int64_t prompt_len, std::int64_t chunk) {
        std::vector<TestRequest> requests(1);
        TestRequest& request = requests[0];
        request.sampling = greedy();
        request.logprobs.enabled = true;
        request.prompt_len = prompt_len;
        for (std::int64_t t = 0; t < prompt_len; ++t)
            request.tokens.push_back(static_cast<TokenId>(20 + t % 50));
        for (std::int64_t page = 0; page * kPageSize <= prompt_len; ++page)
            request.pages.push_back(static_cast<PageId>(page));
        while (request.outputs.empty()) {
            messages::StepPlan plan;
            add_row(&request, std::min(chunk, prompt_len - request.num_done), &plan);
            run_step(replica.get(), std::move(plan), {&request});
        }
        return requests;
    };
    for (const std::int64_t prompt_len : {31, 32, 33, 63, 64})
        expect_same(first_of(prompt_len, prompt_len), first_of(prompt_len, 5));
}

// A row that decodes reads pages that a prompt of the same step fills. In a graph, attention's
// kernels start early and wait for the kernels that write the pages.
TEST_F(GpuSmallSteps, ReadWhatAnotherRowOfTheStepWrites) {
    const test::TempDir directory;
    write_random_checkpoint({.head_dim = 128}, directory);
    constexpr int kRounds = 4;
    for (const Determinism determinism : {Determinism::kFast, Determinism::kBatchInvariant}) {
        const auto with = open(/*has_graphs=*/true, determinism, directory.path());
        const auto without = open(/*has_graphs=*/false, determinism, directory.path());
        for (int round = 0; round < kRounds; ++round) {
            SCOPED_TRACE(testing::Message() << "round " << round);
            const std::int64_t num_before = num_launched(*with);
            const std::vector<TestRequest> together = run_siblings(*with, round);
            EXPECT_EQ(num_launched(*with), num_before + (round > 0 ? kSiblingTokens : 1));
            expect_same(together, run_siblings(*without, round));
            if (determinism == Determinism::kBatchInvariant && round == kRounds - 1)
                expect_same(together, run_siblings_alone(*without, round));
        }
    }
}

// A step that scores its prompt is not a small step.
TEST_F(GpuSmallSteps, ThatScoreRunAsTheyAre) {
    const auto replica = open(/*has_graphs=*/true);
    const auto run_twice = [&](std::int64_t prompt_len, std::optional<std::int64_t> prompt_start) {
        for (int i = 0; i < 2; ++i) {
            TestRequest request;
            request.sampling = greedy();
            request.logprobs.enabled = true;
            request.logprobs.prompt_start = prompt_start;
            request.prompt_len = prompt_len;
            request.tokens.assign(static_cast<std::size_t>(prompt_len), TokenId{9});
            for (std::int64_t page = 0; page * kPageSize <= prompt_len; ++page)
                request.pages.push_back(static_cast<PageId>(page));
            messages::StepPlan plan;
            add_row(&request, prompt_len, &plan);
            run_step(replica.get(), std::move(plan), {&request});
        }
        return num_launched(*replica);
    };
    EXPECT_EQ(run_twice(6, 1), 0);
    EXPECT_EQ(run_twice(6, std::nullopt), 1);
}

}  // namespace
}  // namespace pitstop::tp_worker
