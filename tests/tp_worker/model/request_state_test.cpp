#include "tp_worker/model/request_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(RequestState, CountsItsOwnOutputAsAHistoryWould) {
    messages::RequestSetup setup;
    setup.prompt_len = 2;
    setup.sampling.frequency_penalty = 1.0;
    setup.history = {TokenId{4}, TokenId{5}};
    RequestState running(setup, 100);
    running.record_sampled(TokenId{5});
    running.record_sampled(TokenId{9});
    running.record_sampled(TokenId{-1});  // not finite: ignored
    setup.history = {TokenId{4}, TokenId{5}, TokenId{5}, TokenId{9}};
    const RequestState resumed(setup, 100);
    ASSERT_EQ(running.counts().size(), resumed.counts().size());
    for (std::size_t i = 0; i < resumed.counts().size(); ++i) {
        EXPECT_EQ(running.counts()[i].id, resumed.counts()[i].id);
        EXPECT_EQ(running.counts()[i].num_output, resumed.counts()[i].num_output);
    }
    EXPECT_EQ(running.last_token(), TokenId{-1});
}

std::vector<TokenId> banned(const RequestState& request, std::int64_t output_index) {
    std::vector<TokenId> ids;
    for (const kernels::LogitBias& bias : request.biases(output_index)) {
        if (bias.bias == -kInfinity) ids.push_back(bias.id);
    }
    return ids;
}

// A bad sequence is matched against the output alone, not the prompt. A recomputed request is given
// its output again.
TEST(RequestState, TheLastTokenOfABadSequenceIsBannedAfterTheOthers) {
    messages::RequestSetup setup;
    setup.prompt_len = 2;
    setup.history = {TokenId{1}, TokenId{2}};
    setup.sampling.logit_bias = {{3, 2.0}, {8, 1.0}};
    setup.sampling.bad_tokens = {
        {TokenId{1}, TokenId{2}, TokenId{3}}, {TokenId{2}, TokenId{5}}, {TokenId{9}}};
    RequestState request(setup, 10);
    const auto ids = [](std::initializer_list<int> numbers) {
        std::vector<TokenId> all;
        for (const int number : numbers) all.push_back(TokenId{number});
        return all;
    };
    const std::vector<std::pair<int, std::vector<TokenId>>> steps{
        {1, ids({9})}, {1, ids({9})}, {2, ids({3, 5, 9})}, {4, ids({9})}, {2, ids({5, 9})}};
    EXPECT_EQ(banned(request, 0), ids({9}));  // 1 and 2 are in the prompt
    for (std::size_t i = 0; i < steps.size(); ++i) {
        request.record_sampled(TokenId{steps[i].first});
        setup.history.push_back(TokenId{steps[i].first});
        const auto index = static_cast<std::int64_t>(i) + 1;
        EXPECT_EQ(banned(request, index), steps[i].second) << i;
        EXPECT_EQ(banned(RequestState(setup, 10), index), steps[i].second) << i;
    }
    EXPECT_EQ(request.biases(9).size(), 4u);  // the biases of 3 and 8, the bans of 5 and 9
    setup.sampling.num_output_in_prompt = 2;
    setup.history.resize(2);
    EXPECT_EQ(banned(RequestState(setup, 10), 0), ids({3, 5, 9}));
}

// The bias, added to a logit and divided by the smallest temperature, is still finite.
TEST(RequestState, ABiasOfAnySizeStaysFinite) {
    messages::RequestSetup setup;
    setup.sampling.logit_bias = {{0, 1e300}, {1, -1e300}, {2, 3.0}};
    const RequestState request(setup, 10);
    std::vector<float> biases;
    for (const kernels::LogitBias& bias : request.biases(0)) biases.push_back(bias.bias);
    EXPECT_EQ(biases, (std::vector{1e30f, -1e30f, 3.f}));
    EXPECT_TRUE(std::isfinite((1e30f + 1e5f) / static_cast<float>(kTemperatureMin)));
}

TEST(RequestState, ATemperatureTooSmallToDivideByIsGreedy) {
    messages::RequestSetup setup;
    setup.sampling.temperature = 1e-30;
    EXPECT_EQ(RequestState(setup, 10).draw(0).temperature, 0.f);
    setup.sampling.temperature = 1e-3;
    EXPECT_EQ(RequestState(setup, 10).draw(0).temperature, 1e-3f);
}

}  // namespace
}  // namespace pitstop::tp_worker
