// Requests of every kind, each alone or in random batches: P6 promises the same bits.
#pragma once

#include "tests/tp_worker/test_replica.h"

#include <cstdint>
#include <vector>

namespace pitstop::tp_worker {

struct BatchMix {
    std::size_t num_requests = 7;  // at most 7
    std::int64_t num_output = 24;  // output tokens per request
    std::int64_t prompt_len_max = 130;
    bool wants_routes = false;  // the model has experts
    bool shares_prefix = true;  // one request begins on the pages of another
    // The finished requests. Drafts are copies of their outputs, some with wrong tokens.
    const std::vector<TestRequest>* outputs = nullptr;
};

// Requests of many kinds: greedy and seeded draws, truncation, penalties, bans, every logprobs
// mode.
[[nodiscard]] std::vector<TestRequest> make_requests(const BatchMix& mix);

// Runs each request alone, with its prompt in one piece.
[[nodiscard]] std::vector<TestRequest> run_alone(TestReplica* replica, const BatchMix& mix);

// Runs all requests together: random subsets in random order, random chunks and pages, retractions,
// a shared prefix.
[[nodiscard]] std::vector<TestRequest> run_mixed(
    TestReplica* replica, const BatchMix& mix, unsigned seed
);

// Expects equal bits of tokens, logprobs, ranks and scores.
void expect_same(const std::vector<TestRequest>& a, const std::vector<TestRequest>& b);

}  // namespace pitstop::tp_worker
