// P6: a request's tokens and logprobs are the same bits whatever else is in the batch, however its
// prompt was chunked, wherever its pages are, whether its prefix was another request's, and whether
// it was retracted and recomputed on the way.
#include "kernels/isa.h"
#include "tests/tp_worker/test_replica.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace pitstop {
namespace {

constexpr std::int64_t kNumOutput = 24;
constexpr std::size_t kNumRequests = 7;
constexpr std::int64_t kPoolTokens = 1600;
constexpr std::int64_t kSharedLen = 40;  // tokens that the first two prompts have in common

std::unique_ptr<TestReplica> open(
    Compute compute, int tp, int num_threads, std::int64_t page_size
) {
    ReplicaOptions options;
    options.engine.model_dir = model_dir("stories");
    options.engine.compute = compute;
    options.engine.isa = best_isa();
    options.engine.page_size = page_size;
    options.engine.max_total_tokens = kPoolTokens;
    options.engine.num_slots = kNumRequests;
    options.tp = tp;
    options.num_threads = num_threads;
    auto replica = TestReplica::make(options);
    EXPECT_TRUE(replica.has_value()) << replica.error().message;
    return *std::move(replica);
}

// A bit of everything: greedy and seeded draws, truncation, penalties, every logprobs mode.
std::vector<TestRequest> make_requests() {
    std::mt19937 random(7);
    const std::vector<std::int64_t> lengths{70, 55, 1, 17, 130, 64, 33};
    std::vector<TestRequest> requests(kNumRequests);
    for (std::size_t i = 0; i < kNumRequests; ++i) {
        TestRequest& request = requests[i];
        request.slot = static_cast<SlotId>(i);
        request.prompt_len = lengths[i];
        for (std::int64_t t = 0; t < lengths[i]; ++t) {
            request.tokens.push_back(static_cast<TokenId>(random() % 2045));
        }
        request.sampling.seed = 1000 + i;
        request.logprobs.enabled = true;
        request.logprobs.top = static_cast<std::int64_t>(i % 3);
    }
    std::copy_n(requests[0].tokens.begin(), kSharedLen, requests[1].tokens.begin());
    requests[0].sampling = greedy();
    requests[0].logprobs.prompt_start = 0;
    requests[1].sampling.temperature = 0.7;
    requests[1].sampling.top_k = 40;
    requests[1].logprobs.prompt_start = kSharedLen + 1;
    requests[2].sampling.temperature = 1.3;
    requests[3].sampling.top_p = 0.9;
    requests[3].sampling.repetition_penalty = 1.2;
    requests[3].sampling.presence_penalty = 0.5;
    requests[3].sampling.frequency_penalty = 0.25;
    requests[4].sampling.min_p = 0.05;
    requests[4].sampling.logit_bias = {{11, 4.0}, {13, -100.0}};
    requests[4].logprobs.mode = LogprobsMode::kScaled;
    requests[5].sampling.temperature = 0.9;
    requests[5].sampling.top_p = 0.8;
    requests[5].logprobs.mode = LogprobsMode::kTruncated;
    requests[5].logprobs.ids = {TokenId{3}, TokenId{999}};
    requests[6].sampling.min_new_tokens = 10;
    requests[6].stop_ids = {TokenId{2045}, TokenId{2047}, TokenId{13}};
    requests[6].logprobs.prompt_start = 1;
    return requests;
}

bool is_finished(const TestRequest& request) {
    return static_cast<std::int64_t>(request.tokens.size()) == request.prompt_len + kNumOutput;
}

// Each alone, its prompt in one piece.
std::vector<TestRequest> run_alone(TestReplica* replica) {
    std::vector<TestRequest> requests = make_requests();
    const std::int64_t page_size = replica->root().describe().page_size;
    for (TestRequest& request : requests) {
        const std::int64_t len_max = request.prompt_len + kNumOutput;
        for (std::int64_t i = 0; i * page_size < len_max; ++i) {
            request.pages.push_back(static_cast<PageId>(i));
        }
        while (!is_finished(request)) {
            StepPlan plan;
            const auto len = static_cast<std::int64_t>(request.tokens.size());
            add_row(&request, len - request.num_done, &plan);
            run_step(replica, std::move(plan), {&request});
        }
    }
    return requests;
}

// Hands pages out in random order. A shared page is held as often as it is in use.
class RandomPool {
  public:
    RandomPool(std::int64_t num_pages, std::mt19937* random)
        : uses_(static_cast<std::size_t>(num_pages)), random_(random) {}

    bool extend(TestRequest* request, std::int64_t num_pages) {
        while (static_cast<std::int64_t>(request->pages.size()) < num_pages) {
            std::vector<std::size_t> free;
            for (std::size_t i = 0; i < uses_.size(); ++i) {
                if (uses_[i] == 0) free.push_back(i);
            }
            if (free.empty()) return false;
            const std::size_t page = free[(*random_)() % free.size()];
            ++uses_[page];
            request->pages.push_back(static_cast<PageId>(page));
        }
        return true;
    }
    void release(TestRequest* request) {
        for (const PageId page : request->pages) --uses_[static_cast<std::size_t>(raw(page))];
        retract(request);
    }
    // `to` starts on the first pages of `from`, which hold its first tokens.
    void share(
        const TestRequest& from, TestRequest* to, std::int64_t num_pages, std::int64_t page_size
    ) {
        for (std::int64_t i = 0; i < num_pages; ++i) {
            to->pages.push_back(from.pages[static_cast<std::size_t>(i)]);
            ++uses_[static_cast<std::size_t>(raw(to->pages.back()))];
        }
        to->num_done = num_pages * page_size;
    }

  private:
    std::vector<int> uses_;
    std::mt19937* random_;
};

// All together: random subsets in random order, random chunks, retractions, a shared prefix.
std::vector<TestRequest> run_mixed(TestReplica* replica, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<TestRequest> requests = make_requests();
    const std::int64_t page_size = replica->root().describe().page_size;
    RandomPool pool(replica->root().describe().num_pages, &random);
    bool has_shared = false;
    while (!std::all_of(requests.begin(), requests.end(), is_finished)) {
        std::vector<std::size_t> order(requests.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        StepPlan plan;
        std::vector<TestRequest*> in_step;
        for (const std::size_t i : order) {
            TestRequest& request = requests[i];
            if (is_finished(request) || random() % 4 == 0) continue;
            if (random() % 32 == 0) {
                pool.release(&request);
                continue;
            }
            // Only what is not scored may come from the cache, as the scheduler does it.
            const std::int64_t shareable = std::min(kSharedLen, requests[0].num_done);
            if (i == 1 && !has_shared && shareable < page_size && page_size <= kSharedLen) continue;
            if (i == 1 && request.num_done == 0 && request.pages.empty() &&
                shareable >= page_size) {
                pool.share(requests[0], &request, shareable / page_size, page_size);
                has_shared = true;
            }
            const auto len = static_cast<std::int64_t>(request.tokens.size());
            const std::int64_t left = len - request.num_done;
            std::int64_t num_new =
                1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(left));
            // Past the prompt a chunk holds outputs again (after a retraction): those are not
            // scored.
            if (request.num_done < request.prompt_len) {
                num_new = std::min(num_new, request.prompt_len - request.num_done);
            }
            const std::int64_t end = request.num_done + num_new;
            if (!pool.extend(&request, (end + page_size - 1) / page_size)) continue;
            add_row(&request, num_new, &plan);
            in_step.push_back(&request);
        }
        if (!in_step.empty()) run_step(replica, std::move(plan), in_step);
    }
    EXPECT_TRUE(has_shared || page_size > kSharedLen);
    return requests;
}

void expect_same(const std::vector<TestRequest>& a, const std::vector<TestRequest>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "request " << i);
        EXPECT_EQ(a[i].tokens, b[i].tokens);
        EXPECT_EQ(a[i].outputs, b[i].outputs);  // floats compared for equality: the same bits
        EXPECT_EQ(a[i].scores.size(), b[i].scores.size());
        EXPECT_EQ(a[i].scores, b[i].scores);
    }
}

class BatchInvariance : public testing::TestWithParam<std::tuple<Compute, int>> {};

TEST_P(BatchInvariance, P6_NothingAroundARequestChangesItsBits) {
    const auto& [compute, tp] = GetParam();
    const std::vector<TestRequest> alone = run_alone(open(compute, tp, 1, 16).get());
    unsigned seed = 1;
    for (const int num_threads : {1, 3}) {
        for (const std::int64_t page_size : {1, 7, 16, 64}) {
            SCOPED_TRACE(
                testing::Message()
                << num_threads << " threads, page size " << page_size << ", seed " << seed
            );
            const auto replica = open(compute, tp, num_threads, page_size);
            expect_same(alone, run_mixed(replica.get(), seed++));
            expect_same(alone, run_mixed(replica.get(), seed++));
        }
    }
}

// The logprobs of sampling are those of scoring what was sampled.
TEST_P(BatchInvariance, P6_ScoringGivesTheBitsThatSamplingGave) {
    const auto& [compute, tp] = GetParam();
    const auto replica = open(compute, tp, 1, 16);
    const std::vector<TestRequest> sampled = run_alone(replica.get());
    for (const TestRequest& request : sampled) {
        if (request.logprobs.mode != LogprobsMode::kRaw) continue;
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
            StepPlan plan;
            add_row(&scoring, std::min<std::int64_t>(29, scoring.prompt_len - done), &plan);
            run_step(replica.get(), std::move(plan), {&scoring});
        }
        for (std::int64_t k = 0; k < kNumOutput; ++k) {
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

// A chunk of logits holds at most kLogitRowsMax rows; more are asked for here.
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
    StepPlan plan;
    add_row(&whole, 900, &plan);
    run_step(replica.get(), std::move(plan), {&whole});
    while (pieces.num_done < 900) {
        StepPlan piece;
        add_row(&pieces, std::min<std::int64_t>(113, 900 - pieces.num_done), &piece);
        run_step(replica.get(), std::move(piece), {&pieces});
    }
    EXPECT_EQ(whole.scores.size(), 899u);
    EXPECT_EQ(whole.scores, pieces.scores);
    EXPECT_EQ(whole.outputs, pieces.outputs);
}

INSTANTIATE_TEST_SUITE_P(
    Modes,
    BatchInvariance,
    testing::Values(
        std::tuple(Compute::kBf16, 1), std::tuple(Compute::kFp32, 1), std::tuple(Compute::kBf16, 2)
    ),
    [](const auto& suite) {
        return std::string(name_of(std::get<0>(suite.param))) + "Tp" +
               std::to_string(std::get<1>(suite.param));
    }
);

}  // namespace
}  // namespace pitstop
