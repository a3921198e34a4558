// Sampling by ranks that hold a part of the vocabulary each: their reports together equal one
// rank's report of the whole rows; and how many bytes of a row they exchange.
#include "base/isa.h"
#include "kernels/rank_records.h"
#include "tests/checkpoint/temp_dir.h"
#include "tests/tp_worker/model/rank_rows.h"
#include "tests/tp_worker/test_replica.h"
#include "tp_worker/model/sampler.h"
#include "tp_worker/ranks/shm_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

namespace pitstop::tp_worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::int64_t V, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.f, 3.f);
    std::vector<float> logits;
    for (std::int64_t i = 0; i < V; ++i) logits.push_back(normal(random));
    return logits;
}

messages::RequestSetup setup_of(std::uint64_t seed) {
    messages::RequestSetup setup;
    setup.prompt_len = 5;
    setup.sampling.temperature = 1.2;
    setup.sampling.seed = seed;
    setup.logprobs.enabled = true;
    return setup;
}

// One request of each kind: some need only the ranks' parts, the others need the whole row.
std::vector<messages::RequestSetup> all_kinds() {
    std::vector<messages::RequestSetup> setups;
    for (std::uint64_t seed = 0; seed < 12; ++seed) setups.push_back(setup_of(seed));
    setups[0].sampling.temperature = 0;
    setups[1].logprobs.mode = messages::LogprobsMode::kScaled;
    setups[2].logprobs.mode = messages::LogprobsMode::kTruncated;
    setups[3].logprobs.enabled = false;
    setups[4].sampling.top_p = 0.7;
    setups[5].sampling.top_k = 5;
    setups[5].logprobs.mode = messages::LogprobsMode::kTruncated;
    setups[6].logprobs.top = 4;
    setups[6].logprobs.mode = messages::LogprobsMode::kScaled;
    setups[7].logprobs.ids = {TokenId{0}, TokenId{999}};
    setups[8].sampling.logit_bias = {{17, 9.0}, {990, 9.0}};
    setups[8].logprobs.mode = messages::LogprobsMode::kScaled;
    setups[9].sampling.logit_bias = {{17, 30.0}};  // its logprobs are those before the bias
    setups[10].sampling.min_p = 0.1;
    setups[11].sampling.temperature = 0;
    setups[11].logprobs.top = 2;
    return setups;
}

Rows rows_of(const std::vector<messages::RequestSetup>& setups, std::int64_t V) {
    Rows rows;
    for (std::size_t i = 0; i < setups.size(); ++i) {
        const auto seed = static_cast<unsigned>(i);
        rows.add(setups[i], random_logits(V, seed));
        rows.add(
            setups[i],
            random_logits(V, 100 + seed),
            LogitRow::Kind::kScore,
            static_cast<TokenId>((i * 337 + 3) % static_cast<std::size_t>(V))
        );
    }
    return rows;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
    constexpr float kError = 4e-5f;  // the bound of each side's sum of exponentials, in logs
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (std::isinf(a[i])) {
            EXPECT_EQ(a[i], b[i]) << i;
        } else {
            EXPECT_NEAR(a[i], b[i], kError) << i;
        }
    }
}

TEST(RankSampling, RanksReportTogetherWhatOneRankDoes) {
    for (const std::int64_t V : {1003, 1024}) {
        const Rows rows = rows_of(all_kinds(), V);
        const Sampled one = sample(rows, 1);
        for (const int num_ranks : {2, 3, 4}) {
            SCOPED_TRACE(testing::Message() << V << " ids, " << num_ranks << " ranks");
            const Sampled ranks = sample(rows, num_ranks);
            for (const std::vector<TokenId>& ids : ranks.ids) EXPECT_EQ(ids, one.ids[0]);
            EXPECT_EQ(ranks.result.sampled.values, one.result.sampled.values);
            EXPECT_EQ(ranks.result.undrawn, one.result.undrawn);
            EXPECT_EQ(ranks.result.ranks.values, one.result.ranks.values);
            EXPECT_EQ(ranks.result.top_ids.values, one.result.top_ids.values);
            expect_near(ranks.result.logprobs.values, one.result.logprobs.values);
            expect_near(ranks.result.top_logprobs.values, one.result.top_logprobs.values);
            expect_near(ranks.result.ids_logprobs.values, one.result.ids_logprobs.values);
            EXPECT_EQ(ranks.result.scores.ranks.values, one.result.scores.ranks.values);
            EXPECT_EQ(ranks.result.scores.top_ids.values, one.result.scores.top_ids.values);
            expect_near(ranks.result.scores.logprobs.values, one.result.scores.logprobs.values);
            expect_near(
                ranks.result.scores.ids_logprobs.values, one.result.scores.ids_logprobs.values
            );
        }
    }
}

// A row that reports its support is gathered: its draw has the same bits.
TEST(RankSampling, P6_RanksReportTheSupportsOfOneRankAndDrawTheSame) {
    std::vector<messages::RequestSetup> setups = all_kinds();
    const Rows without = rows_of(setups, 1003);
    for (messages::RequestSetup& setup : setups) setup.logprobs.support = true;
    const Rows rows = rows_of(setups, 1003);
    const Sampled one = sample(rows, 1);
    ASSERT_EQ(one.result.supports.size(), setups.size());
    for (const int num_ranks : {2, 3}) {
        const Sampled ranks = sample(rows, num_ranks);
        const Sampled plain = sample(without, num_ranks);
        ASSERT_EQ(ranks.result.supports.size(), setups.size());
        for (std::size_t i = 0; i < setups.size(); ++i)
            EXPECT_EQ(ranks.result.supports[i].ids, one.result.supports[i].ids) << i;
        EXPECT_TRUE(plain.result.supports.empty());
        EXPECT_EQ(ranks.ids, plain.ids);
        EXPECT_EQ(ranks.result.logprobs.values, plain.result.logprobs.values);
        EXPECT_EQ(ranks.result.scores.logprobs.values, plain.result.scores.logprobs.values);
    }
}

// No request's slot equals the index of its row.
TEST(RankSampling, EveryRankKeepsWhatWasDrawnByItsSlot) {
    Rows rows = rows_of(all_kinds(), 1003);
    std::ranges::reverse(rows.rows);
    std::ranges::reverse(rows.logits);
    const Sampled ranks = sample(rows, 3);
    for (std::size_t rank = 0; rank < 3; ++rank) {
        for (std::size_t i = 0; i < rows.rows.size(); ++i) {
            if (rows.rows[i].kind != LogitRow::Kind::kSample) continue;
            const auto slot = static_cast<std::size_t>(raw(rows.rows[i].slot));
            EXPECT_EQ(ranks.kept[rank][slot], ranks.ids[0][i]) << "rank " << rank << " row " << i;
        }
    }
}

// Rows whose logits are gathered share calls with rows whose logits are not.
TEST(RankSampling, P6_RowsThatShareACallDecideNoBit) {
    const std::vector<messages::RequestSetup> setups = all_kinds();
    const Sampled together = sample(rows_of(setups, 1003), 3);
    for (std::size_t i = 0; i < setups.size(); ++i) {
        SCOPED_TRACE(testing::Message() << "row " << i);
        Rows alone;
        alone.add(setups[i], random_logits(1003, static_cast<unsigned>(i)));
        const Sampled sampled = sample(alone, 3);
        EXPECT_EQ(sampled.result.sampled.values[0], together.result.sampled.values[i]);
        EXPECT_EQ(sampled.result.logprobs.values[0], together.result.logprobs.values[i]);
        EXPECT_EQ(sampled.result.ranks.values[0], together.result.ranks.values[i]);
    }
}

// Raw logprobs have the same bits however the row was drawn and whatever else it reports.
TEST(RankSampling, P6_OtherReportsOfARowDecideNoBitOfItsLogprob) {
    constexpr unsigned kNum = 40;  // about one in ten logprobs shows the order of a sum
    constexpr std::size_t kWays = 4;
    Rows rows;
    for (unsigned seed = 0; seed < kNum; ++seed) {
        const std::vector<float> logits = random_logits(5003, seed);
        messages::RequestSetup setup = setup_of(seed);
        rows.add(setup, logits);
        setup.logprobs.top = 3;
        rows.add(setup, logits);
        setup.sampling.top_k = 5002;
        rows.add(setup, logits);
        setup.sampling.presence_penalty = 1e-3;  // no token has occurred yet
        rows.add(setup, logits);
    }
    const Sampled sampled = sample(rows, 2);
    const std::vector<TokenId>& ids = sampled.result.sampled.values;
    for (unsigned seed = 0; seed < kNum; ++seed)
        rows.add(setup_of(0), random_logits(5003, seed), LogitRow::Kind::kScore, ids[seed * kWays]);
    const Sampled scored = sample(rows, 2);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        SCOPED_TRACE(i);
        EXPECT_EQ(ids[i], ids[i / kWays * kWays]);
        EXPECT_EQ(
            sampled.result.logprobs.values[i], scored.result.scores.logprobs.values[i / kWays]
        );
    }
}

// A row with such logits is neither drawn nor scored. Rows next to it are not affected.
TEST(RankSampling, LogitsThatAreNotFiniteAreNeitherDrawnFromNorScored) {
    Rows rows;
    std::vector<TokenId> expected;
    for (const bool is_bad : {true, false}) {
        for (const int asked : {0, 1, 2}) {
            messages::RequestSetup setup = setup_of(3);
            setup.logprobs.enabled = true;
            if (asked == 1) setup.logprobs.top = 2;
            if (asked == 2) setup.logprobs.ids = {TokenId{2}};
            std::vector<float> logits = random_logits(9, 5);
            if (is_bad) logits[7] = -kInfinity;
            rows.add(setup, logits, LogitRow::Kind::kScore, TokenId{1});
            expected.push_back(is_bad ? kernels::kNotFiniteDraw : TokenId{0});
        }
    }
    for (const int num_ranks : {1, 2, 4}) {
        const Sampled sampled = sample(rows, num_ranks);
        for (const auto& ids : sampled.ids) EXPECT_EQ(ids, expected);
        const messages::StepScores& scores = sampled.result.scores;
        for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(scores.logprobs.values[i] < 0.f, i >= 3);
    }
}

// The result names the draws that have no token, whose ids are negative.
void expect_tokens(const messages::StepResult& result, const std::vector<TokenId>& drawn) {
    std::vector<TokenId> tokens;
    std::vector<std::int64_t> undrawn;
    for (std::size_t i = 0; i < drawn.size(); ++i) {
        if (raw(drawn[i]) < 0) undrawn.push_back(static_cast<std::int64_t>(i));
        tokens.push_back(raw(drawn[i]) < 0 ? TokenId{0} : drawn[i]);
    }
    EXPECT_EQ(result.sampled.values, tokens);
    EXPECT_EQ(result.undrawn, undrawn);
}

// Finite logits, changed by an edit or by the temperature.
TEST(RankSampling, ScoresThatARequestMakesInfiniteAreToldApart) {
    Rows rows;
    std::vector<TokenId> expected;
    for (const float best : {3e37f, 3.f}) {
        for (const double top_p : {1.0, 0.5}) {
            messages::RequestSetup hot = setup_of(3);
            hot.sampling.temperature = 0.01;
            hot.sampling.top_p = top_p;
            rows.add(hot, {1.f, best, 2.f, 0.f});
        }
        messages::RequestSetup edited = setup_of(3);
        edited.sampling.temperature = 0;
        edited.sampling.repetition_penalty = 1e-3;
        edited.history = {TokenId{1}};
        rows.add(edited, {1.f, best, 2.f, 0.f});
        const TokenId token = best > 3.f ? kernels::kScoreNotFinite : TokenId{1};
        expected.insert(expected.end(), 3, token);
    }
    for (const int num_ranks : {1, 2, 4}) {
        const Sampled sampled = sample(rows, num_ranks);
        for (const auto& ids : sampled.ids) EXPECT_EQ(ids, expected);
        expect_tokens(sampled.result, expected);
    }
}

// Logits that are not finite may be on any rank, in rows that are gathered and rows that are not.
TEST(RankSampling, LogitsThatAreNotFiniteAreKnownToAllRanks) {
    constexpr std::int64_t V = 9;
    Rows rows;
    for (const std::int64_t at : {0, 4, 8}) {
        for (const std::int64_t top : {0, 2}) {
            messages::RequestSetup setup = setup_of(3);
            setup.logprobs.top = top;
            std::vector<float> logits = random_logits(V, 5);
            logits[static_cast<std::size_t>(at)] = at == 4 ? -kInfinity : std::nanf("");
            rows.add(setup, logits);
        }
    }
    std::vector<TokenId> expected(6, kernels::kNotFiniteDraw);
    messages::RequestSetup banned = setup_of(4);  // all of its ids are banned
    banned.sampling.allowed_token_ids = {TokenId{6}};
    banned.sampling.bad_tokens = {{TokenId{6}}};
    rows.add(banned, random_logits(V, 6));
    expected.push_back(kernels::kDrewNothing);
    const Sampled sampled = sample(rows, 4);
    EXPECT_EQ(sampled.ids, std::vector(4, expected));
    expect_tokens(sampled.result, expected);
    EXPECT_EQ(sampled.result.logprobs.values[0], 0.f);
}

// The last rank's part is smaller than the others', or empty.
TEST(RankSampling, ARankWithoutIdsTakesPart) {
    for (const std::int64_t V : {5, 7}) {
        messages::RequestSetup scaled = setup_of(9);
        scaled.logprobs.mode = messages::LogprobsMode::kScaled;
        const Rows rows = rows_of({setup_of(8), scaled}, V);
        const Sampled one = sample(rows, 1);
        const Sampled four = sample(rows, 4);
        EXPECT_EQ(four.ids, std::vector(4, one.ids[0]));
        EXPECT_EQ(four.result.ranks.values, one.result.ranks.values);
        expect_near(four.result.logprobs.values, one.result.logprobs.values);
        expect_near(four.result.scores.logprobs.values, one.result.scores.logprobs.values);
    }
}

// The bytes that a rank sent to others.
struct Given {
    std::int64_t columns = 0;
    std::int64_t records = 0;
    std::int64_t broadcasts = 0;
    friend bool operator==(const Given&, const Given&) = default;
};

class CountedRanks final : public Communicator {
  public:
    CountedRanks(std::unique_ptr<Communicator> ranks, Given* given)
        : ranks_(std::move(ranks)), given_(given) {}

    [[nodiscard]] Rank rank() const override { return ranks_->rank(); }
    [[nodiscard]] int size() const override { return ranks_->size(); }
    Result<> all_reduce_sum(std::span<float> data) override { return ranks_->all_reduce_sum(data); }
    Result<> gather_columns(View2<const float> part, View2<float> whole) override {
        given_->columns += part.rows * part.cols * std::int64_t{sizeof(float)};
        return ranks_->gather_columns(part, whole);
    }
    Result<> broadcast(std::span<std::byte> data) override {
        given_->broadcasts += static_cast<std::int64_t>(data.size());
        return ranks_->broadcast(data);
    }
    Result<> all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
        return ranks_->all_gather(mine, all);
    }
    Result<> all_gather_records(std::span<const std::byte> mine, std::span<std::byte> all)
        override {
        given_->records += static_cast<std::int64_t>(mine.size());
        return ranks_->all_gather_records(mine, all);
    }
    Result<> barrier() override { return ranks_->barrier(); }
    Result<> barrier_within(Duration limit) override { return ranks_->barrier_within(limit); }

  private:
    std::unique_ptr<Communicator> ranks_;
    Given* given_;
};

// Steps of decodes: how many bytes a rank sends of each row.
class GivenBytes : public testing::Test {
  protected:
    static constexpr int kRanks = 2;

    void SetUp() override {
        ReplicaOptions options{.tp = kRanks};
        options.engine.model_dir = model_dir("stories");
        options.engine.isa = best_isa();
        options.engine.page_size = 16;
        options.engine.max_total_tokens = 1600;
        options.engine.num_slots = 16;
        options.wrap = [this](std::unique_ptr<Communicator> ranks) {
            Given* const given = &given_[static_cast<std::size_t>(raw(ranks->rank()))];
            return std::make_unique<CountedRanks>(std::move(ranks), given);
        };
        auto replica = TestReplica::make(options);
        ASSERT_TRUE(replica.has_value()) << replica.error().message;
        replica_ = *std::move(replica);
    }

    // Returns the bytes that each rank sends in a step of decodes of these requests. All ranks send
    // equally many.
    Given of_a_step(const std::vector<messages::RequestSetup>& setups) {
        std::vector<TestRequest> requests(setups.size());
        for (std::size_t i = 0; i < setups.size(); ++i) {
            requests[i].slot = static_cast<SlotId>(i);
            requests[i].tokens = {TokenId{5}, static_cast<TokenId>(6 + i)};
            requests[i].prompt_len = 2;
            requests[i].pages = {static_cast<PageId>(i)};
            requests[i].sampling = setups[i].sampling;
            requests[i].logprobs = setups[i].logprobs;
        }
        step(requests, 2);
        given_ = {};
        step(requests, 1);
        EXPECT_EQ(given_[0], given_[1]);
        return given_[0];
    }

  private:
    void step(std::vector<TestRequest>& requests, std::int64_t num_new) {
        messages::StepPlan plan;
        std::vector<TestRequest*> of_plan;
        for (TestRequest& request : requests) {
            add_row(&request, num_new, &plan);
            of_plan.push_back(&request);
        }
        run_step(replica_.get(), std::move(plan), of_plan);
    }

    std::array<Given, kRanks> given_{};
    std::unique_ptr<TestReplica> replica_{};
};

TEST_F(GivenBytes, AreTwentyARowAndFourMoreWhereItsRankIsWanted) {
    messages::RequestSetup greedy_one = setup_of(1);
    greedy_one.sampling.temperature = 0;
    messages::RequestSetup silent = setup_of(2);
    silent.logprobs.enabled = false;
    // Four rows: no padding bytes.
    EXPECT_EQ(of_a_step(std::vector(4, silent)), (Given{.records = 4 * 20}));
    EXPECT_EQ(of_a_step(std::vector(4, setup_of(1))), (Given{.records = 4 * 24}));
    EXPECT_EQ(of_a_step(std::vector(4, greedy_one)), (Given{.records = 4 * 24}));
    EXPECT_EQ(of_a_step({silent, setup_of(1), greedy_one, silent}), (Given{.records = 4 * 24}));
    EXPECT_EQ(of_a_step({silent}), (Given{.records = 32}));  // whole packs of 16
}

// A step exchanges the columns of rows that are needed whole, and of the rows between them.
TEST_F(GivenBytes, AreThePartOfARowThatIsNeededWhole) {
    constexpr std::int64_t kPartBytes = 2048 / kRanks * 4;
    messages::RequestSetup silent = setup_of(2);
    silent.logprobs.enabled = false;
    messages::RequestSetup truncated = silent;
    truncated.sampling.top_p = 0.9;
    EXPECT_EQ(
        of_a_step({silent, truncated, silent, silent}),
        (Given{.columns = kPartBytes, .records = 4 * 20})
    );
    EXPECT_EQ(
        of_a_step({silent, truncated, silent, truncated}),
        (Given{.columns = 3 * kPartBytes, .records = 4 * 20})
    );
}

}  // namespace
}  // namespace pitstop::tp_worker
