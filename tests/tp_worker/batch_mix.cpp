#include "tests/tp_worker/batch_mix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace pitstop::tp_worker {
namespace {

// The length of the prefix that the first two prompts share.
std::int64_t shared_len(const BatchMix& mix) {
    constexpr std::int64_t kSharedMax = 40;
    return std::min(kSharedMax, mix.prompt_len_max * 2 / 3);
}

// Allows sixteen tokens. None may follow itself or the token whose id is one lower.
void allow_few(messages::SamplingParams* sampling) {
    for (std::int32_t i = 0; i < 16; ++i) {
        sampling->allowed_token_ids.push_back(TokenId{300 + i});
        sampling->bad_tokens.push_back({TokenId{300 + i}, TokenId{300 + i}});
        sampling->bad_tokens.push_back({TokenId{300 + i}, TokenId{301 + i}});
    }
}

}  // namespace

std::vector<TestRequest> make_requests(const BatchMix& mix) {
    std::mt19937 random(7);
    const std::vector<std::int64_t> lengths{70, 55, 1, 17, 130, 64, 33};
    std::vector<TestRequest> requests(lengths.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
        TestRequest& request = requests[i];
        request.slot = static_cast<SlotId>(i);
        request.prompt_len = std::min(lengths[i], mix.prompt_len_max);
        for (std::int64_t t = 0; t < request.prompt_len; ++t) {
            request.tokens.push_back(static_cast<TokenId>(random() % 2045));
        }
        request.sampling.seed = 1000 + i;
        request.logprobs.enabled = true;
        request.logprobs.top = static_cast<std::int64_t>(i % 3);
        request.wants_routes = mix.wants_routes;
    }
    const std::int64_t shared = shared_len(mix);
    std::copy_n(requests[0].tokens.begin(), shared, requests[1].tokens.begin());
    requests[0].sampling = greedy();
    requests[0].logprobs.prompt_start = 0;
    requests[1].sampling.temperature = 0.7;
    requests[1].sampling.top_k = 40;
    requests[1].logprobs.prompt_start = shared + 1;
    requests[2].sampling.temperature = 1.3;
    allow_few(&requests[2].sampling);
    requests[2].logprobs.mode = messages::LogprobsMode::kScaled;
    requests[3].sampling.top_p = 0.9;
    requests[3].sampling.repetition_penalty = 1.2;
    requests[3].sampling.presence_penalty = 0.5;
    requests[3].sampling.frequency_penalty = 0.25;
    requests[4].sampling.min_p = 0.05;
    requests[4].sampling.logit_bias = {{11, 4.0}, {13, -100.0}};
    requests[4].logprobs.mode = messages::LogprobsMode::kScaled;
    requests[5].sampling.temperature = 0.9;
    requests[5].sampling.top_p = 0.8;
    requests[5].logprobs.mode = messages::LogprobsMode::kTruncated;
    requests[5].logprobs.ids = {TokenId{3}, TokenId{999}};
    requests[6].sampling.min_new_tokens = 10;
    requests[6].stop_ids = {TokenId{2045}, TokenId{2047}, TokenId{13}};
    requests[6].logprobs.prompt_start = 1;
    requests.resize(mix.num_requests);
    return requests;
}

namespace {

bool is_finished(const TestRequest& request, const BatchMix& mix) {
    return static_cast<std::int64_t>(request.tokens.size()) == request.prompt_len + mix.num_output;
}

}  // namespace

std::vector<TestRequest> run_alone(TestReplica* replica, const BatchMix& mix) {
    std::vector<TestRequest> requests = make_requests(mix);
    const std::int64_t page_size = replica->root().describe().page_size;
    for (TestRequest& request : requests) {
        const std::int64_t len_max = request.prompt_len + mix.num_output;
        for (std::int64_t i = 0; i * page_size < len_max; ++i) {
            request.pages.push_back(static_cast<PageId>(i));
        }
        while (!is_finished(request, mix)) {
            messages::StepPlan plan;
            const auto len = static_cast<std::int64_t>(request.tokens.size());
            add_row(&request, len - request.num_done, &plan);
            run_step(replica, std::move(plan), {&request});
        }
    }
    return requests;
}

namespace {

// Hands out pages in random order. A shared page counts its users.
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
    // `to` begins with the first pages of `from`, whose KV is that of `from`'s first tokens.
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

// Up to six drafts: the tokens that follow in `done`, with about every third token replaced.
std::vector<TokenId> some_drafts(
    const TestRequest& request, const TestRequest& done, std::mt19937* random
) {
    const std::size_t len = request.tokens.size();
    const std::size_t num_max = std::min<std::size_t>(6, done.tokens.size() - len - 1);
    std::vector<TokenId> drafts;
    for (std::size_t i = 0; i < num_max && (*random)() % 8 != 0; ++i) {
        const bool is_wrong = (*random)() % 3 == 0;
        drafts.push_back(
            is_wrong ? static_cast<TokenId>((*random)() % 2048) : done.tokens[len + i]
        );
    }
    return drafts;
}

}  // namespace

std::vector<TestRequest> run_mixed(TestReplica* replica, const BatchMix& mix, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<TestRequest> requests = make_requests(mix);
    const std::int64_t page_size = replica->root().describe().page_size;
    RandomPool pool(replica->root().describe().num_pages, &random);
    const std::int64_t shared = mix.shares_prefix ? shared_len(mix) : 0;
    bool has_shared = false;
    const auto is_done = [&](const TestRequest& request) { return is_finished(request, mix); };
    while (!std::all_of(requests.begin(), requests.end(), is_done)) {
        std::vector<std::size_t> order(requests.size());
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        messages::StepPlan plan;
        std::vector<TestRequest*> in_step;
        for (const std::size_t i : order) {
            TestRequest& request = requests[i];
            if (is_done(request) || random() % 4 == 0) continue;
            if (random() % 32 == 0) {
                pool.release(&request);
                continue;
            }
            // As in the scheduler, only tokens that are not scored may be taken from the cache.
            const std::int64_t shareable = std::min(shared, requests[0].num_done);
            if (i == 1 && !has_shared && shareable < page_size && page_size <= shared) continue;
            if (i == 1 && request.num_done == 0 && request.pages.empty() &&
                shareable >= page_size) {
                pool.share(requests[0], &request, shareable / page_size, page_size);
                has_shared = true;
            }
            const auto len = static_cast<std::int64_t>(request.tokens.size());
            const std::int64_t left = len - request.num_done;
            std::int64_t num_new =
                1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(left));
            // Past the prompt a chunk has outputs again (after a retraction): those are not scored.
            if (request.num_done < request.prompt_len) {
                num_new = std::min(num_new, request.prompt_len - request.num_done);
            }
            std::vector<TokenId> drafts;
            if (mix.outputs != nullptr && num_new == left && len > request.prompt_len)
                drafts = some_drafts(request, (*mix.outputs)[i], &random);
            const std::int64_t end = request.num_done + num_new + std::ssize(drafts);
            if (!pool.extend(&request, (end + page_size - 1) / page_size)) continue;
            add_row(&request, num_new, &plan, drafts);
            in_step.push_back(&request);
        }
        if (!in_step.empty()) run_step(replica, std::move(plan), in_step);
    }
    EXPECT_TRUE(has_shared || page_size > shared);
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
        // A request that begins with another request's prefix has no routes for that prefix.
        EXPECT_EQ(a[i].routes.empty(), b[i].routes.empty());
        for (const auto& [position, row] : b[i].routes)
            EXPECT_EQ(a[i].routes.at(position), row) << "position " << position;
    }
}

}  // namespace pitstop::tp_worker
