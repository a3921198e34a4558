// P6: a request's tokens and logprobs have the same bits in any batch. They do not depend on the
// chunks of its prompt, on the places of its pages, on sharing a prefix, or on a retraction.
#include "base/isa.h"
#include "tests/tp_worker/batch_mix.h"
#include "tests/tp_worker/model/random_checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace pitstop::tp_worker {
namespace {

const BatchMix kMix{};
constexpr std::int64_t kPoolTokens = 1600;

std::unique_ptr<TestReplica> open(
    Compute compute,
    int tp,
    int num_threads,
    std::int64_t page_size,
    const std::string& directory = model_dir("stories")
) {
    ReplicaOptions options;
    options.engine.model_dir = directory;
    options.engine.compute = compute;
    options.engine.isa = best_isa();
    options.engine.page_size = page_size;
    options.engine.max_total_tokens = kPoolTokens;
    options.engine.num_slots = static_cast<std::int64_t>(kMix.num_requests);
    options.tp = tp;
    options.num_threads = num_threads;
    auto replica = TestReplica::make(options);
    EXPECT_TRUE(replica.has_value()) << replica.error().message;
    return *std::move(replica);
}

class BatchInvariance : public testing::TestWithParam<std::tuple<Compute, int>> {};

TEST_P(BatchInvariance, P6_NothingAroundARequestChangesItsBits) {
    const auto& [compute, tp] = GetParam();
    const std::vector<TestRequest> alone = run_alone(open(compute, tp, 1, 16).get(), kMix);
    unsigned seed = 1;
    for (const int num_threads : {1, 3}) {
        for (const std::int64_t page_size : {1, 7, 16, 64}) {
            SCOPED_TRACE(
                testing::Message()
                << num_threads << " threads, page size " << page_size << ", seed " << seed
            );
            const auto replica = open(compute, tp, num_threads, page_size);
            expect_same(alone, run_mixed(replica.get(), kMix, seed++));
            expect_same(alone, run_mixed(replica.get(), kMix, seed++));
        }
    }
}

// A row with drafts gives the bits of the one-token rows that it replaces. Each position has its
// own penalties, bans and bias, as if the drafts before it were right. A wrong draft leaves no
// trace.
TEST_P(BatchInvariance, P11_DraftsChangeNoBit) {
    const auto& [compute, tp] = GetParam();
    const std::vector<TestRequest> alone = run_alone(open(compute, tp, 1, 16).get(), kMix);
    BatchMix mix = kMix;
    mix.outputs = &alone;
    unsigned seed = 1;
    for (const int num_threads : {1, 3}) {
        for (const std::int64_t page_size : {1, 7, 64}) {
            SCOPED_TRACE(
                testing::Message()
                << num_threads << " threads, page size " << page_size << ", seed " << seed
            );
            const auto replica = open(compute, tp, num_threads, page_size);
            for (int i = 0; i < 4; ++i) expect_same(alone, run_mixed(replica.get(), mix, seed++));
        }
    }
}

// Sampling gives the logprobs that scoring the sampled tokens gives.
TEST_P(BatchInvariance, P6_ScoringGivesTheBitsThatSamplingGave) {
    const auto& [compute, tp] = GetParam();
    const auto replica = open(compute, tp, 1, 16);
    const std::vector<TestRequest> sampled = run_alone(replica.get(), kMix);
    for (const TestRequest& request : sampled) {
        if (request.logprobs.mode != messages::LogprobsMode::kRaw) continue;
        TestRequest scoring;
        scoring.tokens = request.tokens;
        scoring.prompt_len = static_cast<std::int64_t>(request.tokens.size());
        scoring.sampling = greedy();
        scoring.logprobs = request.logprobs;
        scoring.logprobs.prompt_start = 0;
        for (std::int64_t i = 0; i * 16 < scoring.prompt_len; ++i) {
            scoring.pages.push_back(static_cast<PageId>(i));
        }
        for (std::int64_t done = 0; done < scoring.prompt_len; done = scoring.num_done) {
            messages::StepPlan plan;
            add_row(&scoring, std::min<std::int64_t>(29, scoring.prompt_len - done), &plan);
            run_step(replica.get(), std::move(plan), {&scoring});
        }
        for (std::int64_t k = 0; k < kMix.num_output; ++k) {
            EXPECT_EQ(
                scoring.scores.at(request.prompt_len - 1 + k),
                request.outputs[static_cast<std::size_t>(k)]
            ) << "output "
              << k;
        }
        for (const auto& [position, numbers] : request.scores) {
            EXPECT_EQ(scoring.scores.at(position), numbers) << "position " << position;
        }
    }
}

// The other tokens of an expert's pass differ in every batch.
class BatchInvarianceOfExperts : public testing::TestWithParam<std::tuple<Compute, int>> {};

TEST_P(BatchInvarianceOfExperts, P6_NothingAroundARequestChangesItsBits) {
    const auto& [compute, tp] = GetParam();
    BatchMix mix = kMix;
    mix.wants_routes = true;
    for (const std::int64_t shared_ffn : {0, 40}) {
        const test::TempDir directory;
        write_random_checkpoint(
            {.head_dim = 32,
             .num_layers = 3,
             .num_experts = 11,
             .num_experts_per_token = 3,
             .expert_ffn = 24,
             .shared_ffn = shared_ffn},
            directory
        );
        const std::vector<TestRequest> alone =
            run_alone(open(compute, tp, 1, 16, directory.path()).get(), mix);
        unsigned seed = 1;
        for (const int num_threads : {1, 3}) {
            SCOPED_TRACE(testing::Message() << num_threads << " threads, shared " << shared_ffn);
            const auto replica = open(compute, tp, num_threads, 7, directory.path());
            expect_same(alone, run_mixed(replica.get(), mix, seed++));
            expect_same(alone, run_mixed(replica.get(), mix, seed++));
            BatchMix with_drafts = mix;
            with_drafts.outputs = &alone;
            expect_same(alone, run_mixed(replica.get(), with_drafts, seed++));
        }
    }
}

// In every batch a request's tokens reach a recurrent state in other chunks, together with other
// requests.
class BatchInvarianceOfHybrids : public testing::TestWithParam<std::tuple<Compute, int>> {
  protected:
    struct Hybrid {
        explicit Hybrid(bool is_next) {
            CheckpointShape shape{
                .num_kv_heads = 2,
                .head_dim = 32,
                .num_layers = 4,
                .hybrid = is_next ? "qwen3_next" : "qwen3_5",
                .kernel = is_next ? 2 : 4,
                .layer_types = {
                    "linear_attention", "full_attention", "linear_attention", "linear_attention"}};
            mix.shares_prefix = false;
            mix.wants_routes = is_next;
            if (is_next) {
                shape.num_experts = 5;
                shape.num_experts_per_token = 2;
                shape.expert_ffn = 24;
                shape.shared_ffn = 40;
            }
            write_random_checkpoint(shape, directory);
        }
        test::TempDir directory{};
        BatchMix mix = kMix;
    };
};

TEST_P(BatchInvarianceOfHybrids, P6_NothingAroundARequestChangesItsBits) {
    const auto& [compute, tp] = GetParam();
    for (const bool is_next : {false, true}) {
        SCOPED_TRACE(is_next ? "qwen3_next" : "qwen3_5");
        const Hybrid hybrid(is_next);
        const std::string& directory = hybrid.directory.path();
        const std::vector<TestRequest> alone =
            run_alone(open(compute, tp, 1, 16, directory).get(), hybrid.mix);
        unsigned seed = 1;
        for (const int num_threads : {1, 3}) {
            SCOPED_TRACE(testing::Message() << num_threads << " threads");
            const auto replica = open(compute, tp, num_threads, 7, directory);
            expect_same(alone, run_mixed(replica.get(), hybrid.mix, seed++));
            expect_same(alone, run_mixed(replica.get(), hybrid.mix, seed++));
        }
    }
}

// A state contains every right draft and no wrong one.
TEST_P(BatchInvarianceOfHybrids, P11_DraftsOverStatesChangeNoBit) {
    const auto& [compute, tp] = GetParam();
    for (const bool is_next : {false, true}) {
        SCOPED_TRACE(is_next ? "qwen3_next" : "qwen3_5");
        const Hybrid hybrid(is_next);
        const std::string& directory = hybrid.directory.path();
        const std::vector<TestRequest> alone =
            run_alone(open(compute, tp, 1, 16, directory).get(), hybrid.mix);
        BatchMix mix = hybrid.mix;
        mix.outputs = &alone;
        unsigned seed = 1;
        for (const int num_threads : {1, 3}) {
            SCOPED_TRACE(testing::Message() << num_threads << " threads");
            const auto replica = open(compute, tp, num_threads, 7, directory);
            for (int i = 0; i < 4; ++i) expect_same(alone, run_mixed(replica.get(), mix, seed++));
        }
    }
}

// A request that continues from a checkpoint among drafts has the bits of an undisturbed request.
TEST_P(BatchInvarianceOfHybrids, P11_ACheckpointOfAStateMayFollowADraft) {
    const auto& [compute, tp] = GetParam();
    const Hybrid hybrid(/*is_next=*/false);
    const auto replica = open(compute, tp, 2, 16, hybrid.directory.path());
    const TestRequest alone = run_alone(replica.get(), hybrid.mix).front();
    constexpr std::int64_t kNumBefore = 3;  // outputs
    constexpr std::int64_t kNumRight = 4;   // of six drafts
    for (std::int64_t num_saved = 0; num_saved <= kNumRight; ++num_saved) {
        SCOPED_TRACE(testing::Message() << "saved after " << num_saved << " drafts");
        TestRequest drafted = make_requests(hybrid.mix).front();
        for (std::int32_t page = 0; page < 8; ++page) drafted.pages.push_back(PageId{page});
        while (std::ssize(drafted.outputs) < kNumBefore) {
            messages::StepPlan plan;
            add_row(&drafted, std::ssize(drafted.tokens) - drafted.num_done, &plan);
            run_step(replica.get(), std::move(plan), {&drafted});
        }
        const auto first = alone.tokens.begin() + std::ssize(drafted.tokens);
        std::vector<TokenId> drafts(first, first + 6);
        drafts[kNumRight] = static_cast<TokenId>((raw(drafts[kNumRight]) + 1) % 2000);
        messages::StepPlan plan;
        add_row(&drafted, 1, &plan, drafts);
        messages::PlanRow& row = plan.rows.back();
        row.save_to = messages::CheckpointId{num_saved == 0 ? 1 : 0};
        row.save_at = row.begin + 1 + num_saved;
        const auto save_at = static_cast<std::ptrdiff_t>(row.save_at);
        const messages::CheckpointId place = *row.save_to;
        run_step(replica.get(), std::move(plan), {&drafted});
        EXPECT_EQ(std::ssize(drafted.outputs), kNumBefore + 1 + kNumRight);

        TestRequest other = make_requests(hybrid.mix).front();
        other.slot = SlotId{1};
        other.pages = drafted.pages;
        other.logprobs.prompt_start.reset();
        other.tokens.assign(alone.tokens.begin(), alone.tokens.begin() + save_at + 1);
        other.num_done = save_at;
        messages::StepPlan restoring;
        add_row(&other, 1, &restoring);
        restoring.rows.back().state_from = place;
        run_step(replica.get(), std::move(restoring), {&other});
        const auto output = static_cast<std::size_t>(save_at + 1 - other.prompt_len);
        EXPECT_EQ(other.tokens.back(), alone.tokens[static_cast<std::size_t>(save_at) + 1]);
        EXPECT_EQ(other.outputs.front(), alone.outputs[output]);
    }
}

// With a random model whose experts' weights are normalized over the chosen experts or over all.
class BroughtRoutes : public testing::TestWithParam<std::tuple<Compute, int>> {};

// Scores in chunks, together with a request that brings no routes.
void score_in_chunks(TestReplica* replica, TestRequest* scoring, TestRequest* other) {
    for (std::int64_t i = 0; i * 16 < scoring->prompt_len; ++i)
        scoring->pages.push_back(static_cast<PageId>(i));
    while (scoring->num_done < scoring->prompt_len) {
        messages::StepPlan plan;
        std::vector<TestRequest*> requests;
        const std::int64_t num_left = scoring->prompt_len - scoring->num_done;
        if (other->num_done < std::ssize(other->tokens)) {
            add_row(
                other, std::min<std::int64_t>(3, std::ssize(other->tokens) - other->num_done), &plan
            );
            requests.push_back(other);
        }
        add_row(scoring, std::min<std::int64_t>(29, num_left), &plan);
        requests.push_back(scoring);
        run_step(replica, std::move(plan), requests);
    }
}

TEST_P(BroughtRoutes, P6_ScoringWithThemGivesTheBitsThatSamplingGave) {
    const auto& [compute, tp] = GetParam();
    BatchMix mix = kMix;
    mix.wants_routes = true;
    for (const bool norm_chosen : {false, true}) {
        SCOPED_TRACE(norm_chosen);
        const test::TempDir directory;
        write_random_checkpoint(
            {.head_dim = 32,
             .num_layers = 3,
             .num_experts = 11,
             .num_experts_per_token = 3,
             .expert_ffn = 24,
             .norm_chosen = norm_chosen},
            directory
        );
        const auto replica = open(compute, tp, 1, 16, directory.path());
        for (const TestRequest& request : run_alone(replica.get(), mix)) {
            if (request.logprobs.mode != messages::LogprobsMode::kRaw) continue;
            TestRequest scoring;
            scoring.slot = SlotId{0};
            scoring.tokens = request.tokens;
            scoring.prompt_len = std::ssize(request.tokens);
            scoring.sampling = greedy();
            scoring.logprobs = request.logprobs;
            scoring.logprobs.prompt_start = 0;
            scoring.wants_routes = true;
            scoring.brought = request.routes;
            TestRequest other;
            other.slot = SlotId{1};
            other.tokens = request.tokens;
            other.prompt_len = std::ssize(request.tokens);
            other.sampling = greedy();
            for (PageId page{60}; raw(page) < 80; page = next(page)) other.pages.push_back(page);
            score_in_chunks(replica.get(), &scoring, &other);
            for (std::int64_t k = 0; k < mix.num_output; ++k) {
                EXPECT_EQ(
                    scoring.scores.at(request.prompt_len - 1 + k),
                    request.outputs[static_cast<std::size_t>(k)]
                ) << "output "
                  << k;
            }
            scoring.routes.erase(scoring.prompt_len - 1);  // sampling ended before that pass
            EXPECT_EQ(scoring.routes, request.routes) << "those that it brought are its routes";
            // Other routes change the numbers: the worker uses the given routes.
            TestRequest turned;
            turned.tokens = request.tokens;
            turned.prompt_len = scoring.prompt_len;
            turned.sampling = greedy();
            turned.logprobs = scoring.logprobs;
            turned.wants_routes = true;
            turned.brought = request.routes;
            for (auto& [position, row] : turned.brought) {
                for (std::uint8_t& expert : row) expert = static_cast<std::uint8_t>(10 - expert);
            }
            TestRequest none;
            score_in_chunks(replica.get(), &turned, &none);
            turned.routes.erase(turned.prompt_len - 1);
            EXPECT_EQ(turned.routes, turned.brought);
            EXPECT_NE(turned.scores, scoring.scores);
        }
    }
}

// This prompt needs more rows than kLogitRowsMax, the most that a chunk of logits has.
TEST(BatchInvarianceOfLogitChunks, P6_ScoringALongPromptInOneStepOrManyIsTheSame) {
    const auto replica = open(Compute::kBf16, 1, 2, 16);
    std::mt19937 random(3);
    TestRequest whole;
    for (int i = 0; i < 900; ++i) whole.tokens.push_back(static_cast<TokenId>(random() % 2045));
    whole.prompt_len = 900;
    whole.sampling = greedy();
    whole.logprobs.enabled = true;
    whole.logprobs.prompt_start = 0;
    for (int i = 0; i < 57; ++i) whole.pages.push_back(static_cast<PageId>(i));
    TestRequest pieces = whole;
    messages::StepPlan plan;
    add_row(&whole, 900, &plan);
    run_step(replica.get(), std::move(plan), {&whole});
    while (pieces.num_done < 900) {
        messages::StepPlan piece;
        add_row(&pieces, std::min<std::int64_t>(113, 900 - pieces.num_done), &piece);
        run_step(replica.get(), std::move(piece), {&pieces});
    }
    EXPECT_EQ(whole.scores.size(), 899u);
    EXPECT_EQ(whole.scores, pieces.scores);
    EXPECT_EQ(whole.outputs, pieces.outputs);
}

const auto kModes = testing::Values(
    std::tuple(Compute::kBf16, 1), std::tuple(Compute::kFp32, 1), std::tuple(Compute::kBf16, 2)
);
std::string mode_name(const testing::TestParamInfo<std::tuple<Compute, int>>& suite) {
    const auto& [compute, tp] = suite.param;
    return std::string(name_of(compute)) + "Tp" + std::to_string(tp);
}
INSTANTIATE_TEST_SUITE_P(Modes, BatchInvariance, kModes, mode_name);
INSTANTIATE_TEST_SUITE_P(Modes, BatchInvarianceOfExperts, kModes, mode_name);
INSTANTIATE_TEST_SUITE_P(Modes, BatchInvarianceOfHybrids, kModes, mode_name);
INSTANTIATE_TEST_SUITE_P(Modes, BroughtRoutes, kModes, mode_name);

}  // namespace
}  // namespace pitstop::tp_worker
