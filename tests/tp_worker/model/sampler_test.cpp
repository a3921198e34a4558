// A worker's reports for given logits. Expected values are computed here, in double, from the
// definitions in messages/generation.h.
#include "tp_worker/model/sampler.h"

#include "tests/tp_worker/model/sampled_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <random>

namespace pitstop::tp_worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// log-softmax in double.
std::vector<double> log_softmax(const std::vector<double>& logits) {
    double sum = 0.0;
    for (const double x : logits) sum += std::exp(x);
    std::vector<double> result;
    for (const double x : logits) result.push_back(x - std::log(sum));
    return result;
}

std::vector<double> to_doubles(const std::vector<float>& values) {
    return {values.begin(), values.end()};
}

class SamplerTest : public testing::Test, protected SampledRows {};

messages::RequestSetup greedy_setup() {
    messages::RequestSetup setup;
    setup.prompt_len = 5;
    setup.sampling.temperature = 0;
    return setup;
}

TEST_F(SamplerTest, GreedyTakesTheLargestLogitAndTheLowestIdOfEquals) {
    add_sample(greedy_setup(), {0.f, 3.f, -1.f, 3.f});
    add_sample(greedy_setup(), {-5.f, -6.f, -4.f, -9.f});
    const messages::StepResult result = run();
    EXPECT_EQ(result.sampled.values, (std::vector<TokenId>{TokenId{1}, TokenId{2}}));
    EXPECT_NEAR(result.logprobs.values[0], log_softmax({0, 3, -1, 3})[1], 1e-6);
    EXPECT_NEAR(result.logprobs.values[1], log_softmax({-5, -6, -4, -9})[2], 1e-6);
}

TEST_F(SamplerTest, ReportsTopAndChosenIds) {
    messages::RequestSetup setup = greedy_setup();
    setup.logprobs.top = 3;
    setup.logprobs.ids = {TokenId{0}, TokenId{4}};
    const std::vector<float> logits{0.5f, 2.f, 1.f, 2.f, -3.f};
    add_sample(setup, logits);
    const messages::StepResult result = run();
    const std::vector<double> expected = log_softmax(to_doubles(logits));
    EXPECT_EQ(result.top_ids.values, (std::vector<TokenId>{TokenId{1}, TokenId{3}, TokenId{2}}));
    EXPECT_NEAR(result.top_logprobs.values[2], expected[2], 1e-6);
    EXPECT_NEAR(result.ids_logprobs.values[0], expected[0], 1e-6);
    EXPECT_NEAR(result.ids_logprobs.values[1], expected[4], 1e-6);
}

// A token's rank is its place in the distribution of its logprob.
TEST_F(SamplerTest, RanksAreAmongTheWholeVocabularyWhereLogprobsAreAskedFor) {
    const std::vector<float> logits{0.5f, 2.f, 1.f, 2.f, -3.f};
    messages::RequestSetup setup = greedy_setup();
    setup.sampling.logit_bias = {{2, 10.0}};
    add_sample(setup, logits);  // without logprobs
    setup.logprobs.enabled = true;
    add_sample(setup, logits);  // raw: two logits are larger
    setup.logprobs.mode = messages::LogprobsMode::kScaled;
    add_sample(setup, logits);
    for (const int target : {0, 1, 3, 4}) add_score(setup, logits, TokenId{target});
    const messages::StepResult result = run();
    EXPECT_EQ(result.sampled.values, std::vector<TokenId>(3, TokenId{2}));
    EXPECT_EQ(result.ranks.values, (std::vector<std::int32_t>{0, 3, 1}));
    EXPECT_EQ(result.scores.ranks.values, (std::vector<std::int32_t>{4, 1, 2, 5}));
}

TEST_F(SamplerTest, ReportsTheWholeVocabularyInItsOrder) {
    constexpr std::size_t V = 3000;
    std::mt19937 random(5);
    std::vector<float> logits;
    for (std::size_t i = 0; i < V; ++i)
        logits.push_back(static_cast<float>(static_cast<int>(random() % 700) - 350) / 16.f);
    logits[17] = -0.f;
    messages::RequestSetup setup = greedy_setup();
    setup.logprobs.enabled = true;
    setup.logprobs.top = V;
    add_sample(setup, logits);
    setup.logprobs.top = 1500;
    add_score(setup, logits, TokenId{7});
    setup.logprobs.top = 2;
    add_score(setup, logits, TokenId{7});
    const messages::StepResult result = run();
    std::vector<TokenId> order;
    for (std::size_t i = 0; i < V; ++i) order.push_back(static_cast<TokenId>(i));
    const auto logit_of = [&](TokenId id) { return logits[static_cast<std::size_t>(raw(id))]; };
    std::ranges::stable_sort(order, std::ranges::greater{}, logit_of);
    EXPECT_EQ(result.top_ids.values, order);
    const std::vector<double> expected = log_softmax(to_doubles(logits));
    for (std::size_t i = 0; i < V; ++i) {
        const auto id = static_cast<std::size_t>(raw(order[i]));
        ASSERT_NEAR(result.top_logprobs.values[i], expected[id], 4e-6) << i;
    }
    std::vector<TokenId> of_scores(order.begin(), order.begin() + 1500);
    of_scores.insert(of_scores.end(), order.begin(), order.begin() + 2);
    EXPECT_EQ(result.scores.top_ids.values, of_scores);
}

TEST_F(SamplerTest, MoreTopIdsThanTheVocabularyHasArePadded) {
    messages::RequestSetup setup = greedy_setup();
    setup.logprobs.top = 5;
    add_sample(setup, {1.f, 0.f, 2.f});
    const messages::StepResult result = run();
    EXPECT_EQ(
        result.top_ids.values,
        (std::vector<TokenId>{TokenId{2}, TokenId{0}, TokenId{1}, TokenId{-1}, TokenId{-1}})
    );
}

TEST_F(SamplerTest, ScoresAreOfTheRawDistribution) {
    messages::RequestSetup setup;
    setup.sampling.temperature = 0.3;
    setup.sampling.top_k = 1;
    setup.sampling.logit_bias = {{0, 50.0}};
    setup.logprobs.mode = messages::LogprobsMode::kTruncated;
    setup.logprobs.top = 1;
    const std::vector<float> logits{1.f, 2.f, 0.f, -1.f};
    add_score(setup, logits, TokenId{2});
    const messages::StepResult result = run();
    EXPECT_NEAR(result.scores.logprobs.values[0], log_softmax(to_doubles(logits))[2], 1e-6);
    EXPECT_EQ(result.scores.top_ids.values[0], TokenId{1});
}

// repetition, then frequency and presence, then bias, then temperature.
TEST_F(SamplerTest, ScaledLogprobsFollowThePenaltiesInTheirOrder) {
    messages::RequestSetup setup;
    setup.prompt_len = 2;
    setup.history = {TokenId{0}, TokenId{3}, TokenId{1}, TokenId{1}, TokenId{3}};
    setup.sampling.temperature = 0.5;
    setup.sampling.repetition_penalty = 2.0;
    setup.sampling.frequency_penalty = 0.25;
    setup.sampling.presence_penalty = 0.5;
    setup.sampling.logit_bias = {{2, 1.5}, {3, -0.5}};
    setup.logprobs.mode = messages::LogprobsMode::kScaled;
    setup.logprobs.ids = {TokenId{0}, TokenId{1}, TokenId{2}, TokenId{3}, TokenId{4}};
    add_sample(setup, {1.f, 2.f, 0.5f, -1.f, 0.25f}, 3);
    const messages::StepResult result = run();
    const std::vector<double> edited{
        1.0 / 2.0,                          // in the prompt only
        2.0 / 2.0 - 2 * 0.25 - 0.5,         // twice in the output
        0.5 + 1.5,                          // biased
        -1.0 * 2.0 - 1 * 0.25 - 0.5 - 0.5,  // negative: multiplied; once in the output; biased
        0.25,
    };
    std::vector<double> scaled;
    for (const double x : edited) scaled.push_back(x / 0.5);
    const std::vector<double> expected = log_softmax(scaled);
    for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_NEAR(result.ids_logprobs.values[i], expected[i], 2e-6) << i;
    }
    const auto sampled = static_cast<std::size_t>(raw(result.sampled.values[0]));
    EXPECT_NEAR(result.logprobs.values[0], expected[sampled], 2e-6);
}

// A request that moved from another replica: the output in its prompt counts as its own.
TEST_F(SamplerTest, PenaltiesCountTheOutputInThePrompt) {
    for (const bool is_carried : {false, true}) {
        messages::RequestSetup setup;
        setup.prompt_len = is_carried ? 4 : 2;
        setup.sampling.num_output_in_prompt = is_carried ? 2 : 0;
        setup.history = {TokenId{0}, TokenId{3}, TokenId{1}, TokenId{1}, TokenId{3}};
        setup.sampling.frequency_penalty = 0.25;
        setup.sampling.presence_penalty = 0.5;
        setup.sampling.seed = 7;
        setup.logprobs.mode = messages::LogprobsMode::kScaled;
        setup.logprobs.ids = {TokenId{0}, TokenId{1}, TokenId{2}, TokenId{3}, TokenId{4}};
        add_sample(setup, {1.f, 2.f, 0.5f, -1.f, 0.25f}, is_carried ? 1 : 3);
    }
    const messages::StepResult result = run();
    EXPECT_EQ(result.sampled.values[0], result.sampled.values[1]);
    const std::vector<float>& scaled = result.ids_logprobs.values;
    EXPECT_EQ(
        std::vector(scaled.begin(), scaled.begin() + 5),
        std::vector(scaled.begin() + 5, scaled.end())
    );
}

TEST_F(SamplerTest, RawLogprobsIgnorePenaltiesThatTheDrawObeys) {
    messages::RequestSetup setup = greedy_setup();
    setup.sampling.logit_bias = {{1, -100.0}};
    const std::vector<float> logits{1.f, 5.f, 2.f};
    add_sample(setup, logits);
    const messages::StepResult result = run();
    EXPECT_EQ(result.sampled.values[0], TokenId{2});
    EXPECT_NEAR(result.logprobs.values[0], log_softmax(to_doubles(logits))[2], 1e-6);
}

TEST_F(SamplerTest, TruncatedLogprobsAreRenormalizedOverWhatIsLeft) {
    messages::RequestSetup setup;
    setup.sampling.temperature = 1.0;
    setup.sampling.top_k = 2;
    setup.sampling.seed = 3;
    setup.logprobs.mode = messages::LogprobsMode::kTruncated;
    setup.logprobs.ids = {TokenId{0}, TokenId{1}, TokenId{2}};
    add_sample(setup, {1.f, 2.f, 0.f});
    const messages::StepResult result = run();
    const std::vector<double> expected = log_softmax({1.0, 2.0});
    EXPECT_NEAR(result.ids_logprobs.values[0], expected[0], 1e-6);
    EXPECT_NEAR(result.ids_logprobs.values[1], expected[1], 1e-6);
    EXPECT_EQ(result.ids_logprobs.values[2], -kInfinity);
}

// Rows of every kind of truncation, with the ids that each leaves, from the definitions.
TEST_F(SamplerTest, ASupportHasTheIdsThatTheDrawWasAmong) {
    const std::vector<float> logits{1.f, 2.f, 0.f, 2.f, -1.f};
    messages::RequestSetup setup;
    setup.sampling.seed = 3;
    setup.logprobs.support = true;
    setup.sampling.top_k = 1;
    add_sample(setup, logits);  // a tie with the first is kept
    setup.sampling.top_k = 3;
    add_sample(setup, logits);
    setup.sampling.top_k.reset();
    setup.sampling.top_p = 0.5;
    add_sample(setup, logits);
    setup.sampling.top_p = 1.0;
    setup.sampling.min_p = 0.2;  // x >= 2 + log(0.2) = 0.39
    add_sample(setup, logits);
    setup.sampling.min_p = 0.0;
    setup.sampling.allowed_token_ids = {TokenId{4}, TokenId{2}};
    add_sample(setup, logits);
    setup.sampling.allowed_token_ids = {};
    setup.sampling.logit_bias = {{4, 50.0}};
    setup.sampling.top_k = 2;
    add_sample(setup, logits);  // of the edited logits: ids 4, and the tie of 1 and 3
    setup.sampling.logit_bias = {};
    setup.sampling.temperature = 0;
    add_sample(setup, logits);
    setup.logprobs.support = false;
    add_sample(setup, logits);
    const messages::StepResult result = run();
    const std::vector<std::vector<int>> expected{
        {1, 3}, {0, 1, 3}, {1, 3}, {0, 1, 3}, {2, 4}, {1, 3, 4}, {1}};
    ASSERT_EQ(result.supports.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        SCOPED_TRACE(i);
        const messages::DrawSupport& support = result.supports[i];
        std::vector<int> ids;
        for (const TokenId id : support.ids) ids.push_back(raw(id));
        EXPECT_EQ(ids, expected[i]);
        EXPECT_EQ(support.num_ids, std::ssize(ids));
        EXPECT_EQ(std::ranges::count(support.ids, result.sampled.values[i]), 1);
    }
    EXPECT_EQ(result.supports[6].logprob, 0.f);  // greed has one choice
    const std::vector<double> of_three = log_softmax({1.0, 2.0, 2.0});
    const std::size_t drawn = result.sampled.values[1] == TokenId{0} ? 0 : 1;
    EXPECT_NEAR(result.supports[1].logprob, of_three[drawn], 1e-6);
}

// The support's logprob equals that of the truncated mode, bit for bit.
TEST_F(SamplerTest, ALogprobWithinTheSupportIsTheTruncatedOne) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0.f, 2.f);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        messages::RequestSetup setup;
        setup.sampling = {.temperature = 0.7, .top_k = 40, .top_p = 0.9, .seed = seed};
        setup.logprobs.mode = messages::LogprobsMode::kTruncated;
        setup.logprobs.support = true;
        if (seed % 2 == 1) setup.sampling.logit_bias = {{7, 3.0}};
        std::vector<float> logits;
        for (int i = 0; i < 1003; ++i) logits.push_back(normal(random));
        add_sample(setup, logits);
    }
    const messages::StepResult result = run();
    ASSERT_EQ(result.supports.size(), result.logprobs.values.size());
    for (std::size_t i = 0; i < result.supports.size(); ++i)
        EXPECT_EQ(result.supports[i].logprob, result.logprobs.values[i]) << i;
}

TEST_F(SamplerTest, ASupportOfMoreIdsThanAreReportedIsOnlyCounted) {
    for (const std::int64_t num : {messages::kSupportMax, messages::kSupportMax + 1}) {
        messages::RequestSetup setup;
        setup.sampling = {.top_k = num, .seed = 1};
        setup.logprobs.support = true;
        std::vector<float> logits(5000, 0.f);
        for (std::size_t i = 0; i < static_cast<std::size_t>(num); ++i) logits[4999 - i] = 1.f;
        add_sample(setup, logits);
    }
    const messages::StepResult result = run();
    ASSERT_EQ(result.supports.size(), 2u);
    EXPECT_EQ(std::ssize(result.supports[0].ids), messages::kSupportMax);
    EXPECT_EQ(result.supports[0].ids.back(), TokenId{4999});
    EXPECT_EQ(result.supports[1].num_ids, messages::kSupportMax + 1);
    EXPECT_TRUE(result.supports[1].ids.empty());
}

TEST_F(SamplerTest, IdsThatEndTheRequestAreBannedBeforeMinNewTokens) {
    messages::RequestSetup setup = greedy_setup();
    setup.sampling.min_new_tokens = 2;
    setup.stop_ids = {TokenId{1}, TokenId{3}};
    const std::vector<float> logits{0.f, 9.f, 1.f, 8.f};
    for (std::int64_t i = 0; i < 4; ++i) add_sample(setup, logits, i);
    EXPECT_EQ(
        run().sampled.values, (std::vector<TokenId>{TokenId{2}, TokenId{2}, TokenId{1}, TokenId{1}})
    );
}

TEST_F(SamplerTest, OnlyAllowedTokensAreDrawn) {
    messages::RequestSetup setup = greedy_setup();
    const std::vector<float> logits{0.f, 9.f, 1.f, 8.f};
    setup.sampling.allowed_token_ids = {TokenId{2}, TokenId{0}, TokenId{2}};
    add_sample(setup, logits);
    setup.sampling.logit_bias = {{1, 100.0}, {0, 1e200}};  // a bias allows no token
    add_sample(setup, logits);
    setup.logprobs.mode = messages::LogprobsMode::kScaled;
    setup.sampling.logit_bias = {};
    setup.logprobs.ids = {TokenId{0}, TokenId{1}, TokenId{2}};
    add_sample(setup, logits);
    const messages::StepResult result = run();
    EXPECT_EQ(result.sampled.values, (std::vector<TokenId>{TokenId{2}, TokenId{0}, TokenId{2}}));
    const std::vector<double> expected = log_softmax({0.0, 1.0});
    EXPECT_NEAR(result.ids_logprobs.values[0], expected[0], 1e-6);
    EXPECT_EQ(result.ids_logprobs.values[1], -kInfinity);
    EXPECT_NEAR(result.ids_logprobs.values[2], expected[1], 1e-6);
}

TEST_F(SamplerTest, ARowWhoseIdsAreAllBannedIsToldApartFromOneThatIsNotFinite) {
    messages::RequestSetup setup = greedy_setup();
    setup.sampling.allowed_token_ids = {TokenId{1}};
    setup.sampling.min_new_tokens = 1;
    setup.stop_ids = {TokenId{1}};
    for (const double temperature : {0.0, 1.0}) {
        setup.sampling.temperature = temperature;
        add_sample(setup, {0.f, 9.f, 1.f}, 0);
        add_sample(setup, {0.f, 9.f, 1.f}, 1);
    }
    const messages::StepResult result = run();
    EXPECT_EQ(result.undrawn, (std::vector<std::int64_t>{0, 2}));
    EXPECT_EQ(
        result.sampled.values,
        (std::vector<TokenId>{TokenId{0}, TokenId{1}, TokenId{0}, TokenId{1}})
    );
}

// Equal seeds and positions draw equal ids, in any row. Other positions draw independently.
TEST_F(SamplerTest, P6_DrawsDependOnSeedAndPositionAlone) {
    messages::RequestSetup setup;
    setup.prompt_len = 10;
    setup.sampling.seed = 77;
    messages::RequestSetup longer =
        setup;  // the same position, as a longer prompt and an earlier output
    longer.prompt_len = 13;
    const std::vector<float> flat(1000, 0.f);
    add_sample(setup, flat, 3);
    add_sample(greedy_setup(), flat);
    add_sample(longer, flat, 0);
    add_sample(setup, flat, 4);
    const std::vector<TokenId> sampled = run().sampled.values;
    EXPECT_EQ(sampled[0], sampled[2]);
    EXPECT_NE(sampled[0], sampled[3]);  // equal for one seed in a thousand, but not for this one
}

// A row that scores, or samples with any mix of penalties, bias, truncation and logprobs asked for.
void add_random_row(std::mt19937& random, std::vector<SampledRows*> batches) {
    constexpr std::size_t kVocabLen = 40;
    std::uniform_real_distribution<float> uniform(0.f, 1.f);
    const auto is = [&] { return random() % 2 == 0; };
    const auto any_id = [&] { return static_cast<TokenId>(random() % kVocabLen); };
    messages::RequestSetup setup;
    setup.prompt_len = 5;
    setup.sampling.seed = random();
    setup.sampling.temperature = is() ? 0.7 : 0;
    if (is()) setup.sampling.top_k = 7;
    if (is()) {
        setup.sampling.repetition_penalty = 1.5;
        setup.sampling.presence_penalty = 0.25;
        setup.prompt_len = 2;
        setup.history = {any_id(), any_id(), any_id()};
    }
    if (is()) setup.sampling.logit_bias = {{raw(any_id()), 2.0}};
    const std::array modes{
        messages::LogprobsMode::kRaw,
        messages::LogprobsMode::kScaled,
        messages::LogprobsMode::kTruncated};
    setup.logprobs.mode = modes[random() % modes.size()];
    setup.logprobs.enabled = is();
    setup.logprobs.top = static_cast<std::int64_t>(random() % 4);
    const bool is_score = random() % 4 == 0;
    if (!is_score && is()) setup.logprobs.ids = {any_id(), any_id()};
    std::vector<float> logits;
    for (std::size_t i = 0; i < kVocabLen; ++i) logits.push_back(8.f * uniform(random));
    if (random() % 8 == 0) logits[3] = kInfinity;
    const TokenId target = any_id();
    for (SampledRows* batch : batches) {
        if (is_score) {
            batch->add_score(setup, logits, target);
        } else {
            batch->add_sample(setup, logits);
        }
    }
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

TEST_F(SamplerTest, P6_ReportsDependOnTheirOwnRowAlone) {
    std::mt19937 random(11);
    for (int round = 0; round < 50; ++round) {
        SampledRows together;
        messages::StepResult expected;
        std::vector<TokenId> expected_ids;
        for (int i = 0; i < 24; ++i) {
            SampledRows alone;
            add_random_row(random, {&together, &alone});
            const messages::StepResult one = alone.run();
            append(expected_ids, alone.ids());
            append(expected.sampled.values, one.sampled.values);
            append(expected.logprobs.values, one.logprobs.values);
            append(expected.ranks.values, one.ranks.values);
            append(expected.scores.ranks.values, one.scores.ranks.values);
            append(expected.top_ids.values, one.top_ids.values);
            append(expected.top_logprobs.values, one.top_logprobs.values);
            append(expected.ids_logprobs.values, one.ids_logprobs.values);
            append(expected.scores.logprobs.values, one.scores.logprobs.values);
            append(expected.scores.top_ids.values, one.scores.top_ids.values);
            append(expected.scores.top_logprobs.values, one.scores.top_logprobs.values);
        }
        const messages::StepResult all = together.run();
        EXPECT_EQ(together.ids(), expected_ids);
        EXPECT_EQ(all.sampled.values, expected.sampled.values);
        EXPECT_EQ(all.logprobs.values, expected.logprobs.values);
        EXPECT_EQ(all.ranks.values, expected.ranks.values);
        EXPECT_EQ(all.scores.ranks.values, expected.scores.ranks.values);
        EXPECT_EQ(all.top_ids.values, expected.top_ids.values);
        EXPECT_EQ(all.top_logprobs.values, expected.top_logprobs.values);
        EXPECT_EQ(all.ids_logprobs.values, expected.ids_logprobs.values);
        EXPECT_EQ(all.scores.logprobs.values, expected.scores.logprobs.values);
        EXPECT_EQ(all.scores.top_ids.values, expected.scores.top_ids.values);
        EXPECT_EQ(all.scores.top_logprobs.values, expected.scores.top_logprobs.values);
    }
}

// Over 20,000 positions each id is drawn as often as its probability, within 5 sigma.
TEST_F(SamplerTest, DrawsFollowTheDistribution) {
    constexpr int kDraws = 20'000;
    messages::RequestSetup setup;
    setup.prompt_len = 1;
    setup.sampling.temperature = 0.8;
    setup.sampling.seed = 12345;
    const std::vector<float> logits{0.f, 1.f, 0.5f, -1.f, 0.2f};
    for (int i = 0; i < kDraws; ++i) add_sample(setup, logits, i);
    std::map<std::int32_t, int> counts;
    for (const TokenId id : run().sampled.values) ++counts[raw(id)];
    std::vector<double> scaled;
    for (const float x : logits) scaled.push_back(static_cast<double>(x) / 0.8);
    const std::vector<double> logprobs = log_softmax(scaled);
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const double p = std::exp(logprobs[i]);
        const double sigma = std::sqrt(kDraws * p * (1.0 - p));
        EXPECT_NEAR(counts[static_cast<std::int32_t>(i)], kDraws * p, 5.0 * sigma) << i;
    }
}

TEST_F(SamplerTest, TruncationKeepsTheMostProbable) {
    constexpr int kDraws = 500;
    const std::vector<float> logits{
        0.f, 3.f, 2.f, 1.f, 2.5f};  // p: .026 .524 .193 .071 .318 / 1.13
    messages::RequestSetup top_p;
    top_p.sampling.top_p = 0.7;  // 1 and 4 hold 0.74
    messages::RequestSetup min_p;
    min_p.sampling.min_p = 0.3;  // e^-1 = 0.37 is kept, e^-2 is not
    messages::RequestSetup top_k;
    top_k.sampling.top_k = 1;
    for (int i = 0; i < kDraws; ++i) {
        add_sample(top_p, logits, i);
        add_sample(min_p, logits, i);
        add_sample(top_k, logits, i);
    }
    const std::vector<TokenId> sampled = run().sampled.values;
    std::map<int, std::map<std::int32_t, int>> counts;
    for (std::size_t i = 0; i < sampled.size(); ++i)
        ++counts[static_cast<int>(i % 3)][raw(sampled[i])];
    EXPECT_EQ(counts[0].size(), 2u);
    EXPECT_TRUE(counts[0].contains(1) && counts[0].contains(4));
    EXPECT_EQ(counts[1].size(), 3u);
    EXPECT_FALSE(counts[1].contains(0) || counts[1].contains(3));
    EXPECT_EQ(counts[2].size(), 1u);
    EXPECT_TRUE(counts[2].contains(1));
}

}  // namespace
}  // namespace pitstop::tp_worker
