#include "kernels/sampling.h"

#include "kernels/philox.h"
#include "tests/kernels/support.h"

#include <algorithm>
#include <map>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Known answers of Random123's kat_vectors, philox4x32 10.
TEST(Philox, GivesTheKnownAnswers) {
    using Words = std::array<std::uint32_t, 4>;
    EXPECT_EQ(
        philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8})
    );
    const std::uint32_t ones = 0xffffffff;
    EXPECT_EQ(
        philox({ones, ones, ones, ones}, {ones, ones}),
        (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd})
    );
    EXPECT_EQ(
        philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
        (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1})
    );
}

// Returns the score of one id, in double: what the header's formula says.
double score_of(const SampleRow& row, float x, std::int64_t id) {
    const auto words = philox(
        {static_cast<std::uint32_t>(id / 4), row.position, 0, 0},
        {static_cast<std::uint32_t>(row.seed), static_cast<std::uint32_t>(row.seed >> 32)}
    );
    const double v = (words[static_cast<std::size_t>(id % 4)] + 0.5) * 0x1p-32;
    return static_cast<double>(x) - std::log(-std::log1p(-v));
}

std::vector<Choice> sample_rows(
    const Ops& ops,
    View2<const float> logits,
    const std::vector<SampleRow>& rows,
    Stream stream,
    std::int64_t vocab_begin = 0
) {
    std::vector<Choice> choices(static_cast<std::size_t>(logits.rows), Choice{.id = TokenId{-7}});
    Scratch scratch(ops.sample_workspace_bytes(logits.rows, logits.cols));
    ops.sample(
        {.logits = logits,
         .vocab_begin = vocab_begin,
         .rows = rows.data(),
         .choices = choices.data(),
         .workspace = scratch.workspace(),
         .stream = stream}
    );
    return choices;
}

class Sample : public OnLevel {
  protected:
    std::vector<Choice> run(
        View2<const float> logits, const std::vector<SampleRow>& rows, std::int64_t vocab_begin = 0
    ) {
        return sample_rows(ops(), logits, rows, stream_of(pool_), vocab_begin);
    }
};
PITSTOP_ON_EVERY_LEVEL(Sample);

TEST_P(Sample, GreedyTakesTheBestAndTheLowestIdOnATie) {
    for (const std::int64_t V : {1, 2, 15, 16, 17, 63, 64, 65, 1000, 8191, 8192, 8193, 20000}) {
        SCOPED_TRACE(testing::Message() << "V " << V);
        Matrix<float> logits = random_matrix<float>(4, V, static_cast<unsigned>(V));
        logits(1, V - 1) = 100.f;                    // at the end
        logits(2, V / 2) = logits(2, V - 1) = 50.f;  // a tie
        for (std::int64_t i = 0; i < V; ++i) logits(3, i) = -kInf;
        const std::vector<SampleRow> rows(4);
        const std::vector<Choice> expected = sample_rows(*reference_ops(), logits.view(), rows, {});
        const std::vector<Choice> actual = run(logits.view(), rows);
        for (std::size_t r = 0; r < 4; ++r) {
            EXPECT_EQ(actual[r].id, expected[r].id);
            EXPECT_EQ(actual[r].score, expected[r].score);
        }
        EXPECT_EQ(actual[1].id, TokenId(V - 1));
        EXPECT_EQ(actual[2].id, TokenId(V / 2));
        EXPECT_EQ(actual[3].id, TokenId{0});
    }
}

TEST_P(Sample, NanLosesAndInfinityWins) {
    Matrix<float> logits = random_matrix<float>(3, 100, 1);
    for (const std::int64_t i : {0, 1, 50, 99}) logits(0, i) = logits(1, i) = kNan;
    logits(2, 40) = logits(2, 70) = kInf;
    for (const float temperature : {0.f, 1.f}) {
        for (const float top_p : {1.f, 0.5f}) {
            const SampleRow row{.temperature = temperature, .top_p = top_p, .seed = 3};
            const std::vector<Choice> choices = run(logits.view(), {row, row, row});
            EXPECT_FALSE(std::isnan(logits(0, raw(choices[0].id))));
            EXPECT_EQ(
                choices[0].id, choices[1].id == choices[0].id ? choices[1].id : choices[0].id
            );
            EXPECT_EQ(choices[2].id, TokenId{40});
        }
    }
}

// The choice is one whose exact score is within rounding of the best kept one: x is exact, a Gumbel
// number errs by 2^-19 at most (two logs of up to 23, each good to 2^-22 of its size, and their
// input).
void expect_fair_choice(
    const Choice& choice,
    const SampleRow& row,
    View2<const float> logits,
    std::int64_t r,
    std::int64_t vocab_begin
) {
    const float* const l = logits.data + r * logits.stride;
    const float inverse = 1.f / row.temperature;
    double best = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < logits.cols; ++i) {
        const float x = l[i] * inverse;
        if (x >= choice.kept_min) best = std::max(best, score_of(row, x, vocab_begin + i));
    }
    const float x = l[raw(choice.id) - vocab_begin] * inverse;
    const double score = score_of(row, x, raw(choice.id));
    const double tolerance = 0x1p-19 + 4.0 * kEps32 * std::abs(score);
    EXPECT_GE(x, choice.kept_min);
    EXPECT_GE(score, best - tolerance);
    EXPECT_NEAR(static_cast<double>(choice.score), score, tolerance);
}

TEST_P(Sample, RandomChoiceHasTheBestScore) {
    for (const std::int64_t V : {1, 3, 64, 1000, 8200, 30011}) {
        for (const double deviation : {0.0, 1.0, 8.0}) {
            SCOPED_TRACE(testing::Message() << "V " << V << " deviation " << deviation);
            const Matrix<float> logits = random_matrix<float>(6, V, 11, deviation);
            std::vector<SampleRow> rows;
            for (std::uint32_t r = 0; r < 6; ++r) {
                rows.push_back(
                    {.temperature = 0.3f + 0.4f * static_cast<float>(r),
                     .seed = 0x123456789abcdefULL * r,
                     .position = 77 * r}
                );
            }
            const std::vector<Choice> choices = run(logits.view(), rows);
            for (std::size_t r = 0; r < 6; ++r) {
                expect_fair_choice(
                    choices[r], rows[r], logits.view(), static_cast<std::int64_t>(r), 0
                );
                EXPECT_EQ(choices[r].kept_min, -kInf);
            }
        }
    }
}

// Ids of a small vocabulary come up as often as the softmax says: chi-squared with 15 degrees of
// freedom passes 45 with probability 8e-5. Seeds are fixed, so it passes always or never.
TEST_P(Sample, FrequenciesAreTheSoftmax) {
    constexpr std::int64_t V = 16;
    constexpr int kDraws = 40000;
    const Matrix<float> logits = random_matrix<float>(1, V, 5);
    const float temperature = 0.7f;
    std::vector<double> p(V);
    double sum = 0.0;
    for (std::int64_t i = 0; i < V; ++i)
        sum += p[static_cast<std::size_t>(i)] =
            std::exp(static_cast<double>(logits(0, i)) / static_cast<double>(temperature));
    std::vector<int> hits(V);
    for (int draw = 0; draw < kDraws; ++draw) {
        const SampleRow row{
            .temperature = temperature, .seed = 42, .position = static_cast<std::uint32_t>(draw)};
        ++hits[static_cast<std::size_t>(raw(run(logits.view(), {row})[0].id))];
    }
    double chi_squared = 0.0;
    for (std::size_t i = 0; i < V; ++i) {
        const double expected = p[i] / sum * kDraws;
        chi_squared += (hits[i] - expected) * (hits[i] - expected) / expected;
    }
    EXPECT_LT(chi_squared, 45.0);
}

TEST_P(Sample, TopKThresholdIsTheKthLargest) {
    for (const std::int64_t V : {5, 64, 1000, 9001}) {
        Matrix<float> logits = random_matrix<float>(1, V, 21, 3.0);
        logits(0, 3) = 0.f;
        logits(0, 4) = -0.f;
        for (const std::int32_t k : {1, 2, 4, 5, 63, 64, 1000, 9000}) {
            SCOPED_TRACE(testing::Message() << "V " << V << " k " << k);
            const SampleRow row{.temperature = 0.9f, .top_k = k, .seed = 8};
            const Choice expected = sample_rows(*reference_ops(), logits.view(), {row}, {})[0];
            const Choice actual = run(logits.view(), {row})[0];
            EXPECT_EQ(actual.kept_min, expected.kept_min);
            expect_fair_choice(actual, row, logits.view(), 0, 0);
        }
    }
}

TEST_P(Sample, TiesAtTheThresholdAreAllKept) {
    Matrix<float> logits(1, 100, 0);
    for (std::int64_t i = 0; i < 100; ++i) logits(0, i) = i < 3 ? 2.f : i < 40 ? 1.f : -1.f;
    std::map<std::int32_t, int> hits;
    for (std::uint32_t position = 0; position < 4000; ++position) {
        const Choice choice =
            run(logits.view(), {{.temperature = 1.f, .top_k = 4, .position = position}})[0];
        EXPECT_EQ(choice.kept_min, 1.f);
        ++hits[raw(choice.id)];
    }
    EXPECT_EQ(hits.size(), 40u);
    EXPECT_LT(hits.rbegin()->first, 40);
}

// The kept mass reaches top_p and would not without its smallest values; each mass may err by exp's
// 2^-21.
TEST_P(Sample, TopPKeepsTheSmallestSetThatHoldsTheMass) {
    for (const std::int64_t V : {2, 64, 1000, 9001}) {
        for (const double deviation : {0.5, 4.0}) {
            const Matrix<float> logits = random_matrix<float>(1, V, 31, deviation);
            for (const float top_p : {0.0001f, 0.1f, 0.5f, 0.9f, 0.99f, 0.9999f}) {
                for (const std::int32_t top_k : {kTopKOff, 50}) {
                    SCOPED_TRACE(
                        testing::Message() << "V " << V << " top_p " << top_p << " top_k " << top_k
                    );
                    const SampleRow row{
                        .temperature = 1.f, .top_k = top_k, .top_p = top_p, .seed = 2};
                    const Choice choice = run(logits.view(), {row})[0];
                    std::vector<float> x(&logits(0, 0), &logits(0, 0) + V);
                    std::sort(x.begin(), x.end(), std::greater<>());
                    if (V > top_k) x.resize(static_cast<std::size_t>(top_k));
                    double total = 0.0, kept = 0.0, above = 0.0;
                    for (const float value : x) {
                        const double mass =
                            std::exp(static_cast<double>(value) - static_cast<double>(x[0]));
                        total += mass;
                        kept += value >= choice.kept_min ? mass : 0.0;
                        above += value > choice.kept_min ? mass : 0.0;
                    }
                    const double tolerance = 0x1p-20 * total;
                    EXPECT_GE(kept, static_cast<double>(top_p) * total - tolerance);
                    EXPECT_LT(above, static_cast<double>(top_p) * total + tolerance);
                    expect_fair_choice(choice, row, logits.view(), 0, 0);
                }
            }
        }
    }
}

TEST_P(Sample, MinPKeepsWhatIsLikelyEnough) {
    const Matrix<float> logits = random_matrix<float>(1, 1000, 33, 2.0);
    for (const float min_p : {0.001f, 0.1f, 1.f}) {
        const SampleRow row{.temperature = 1.f, .min_p = min_p, .seed = 2};
        const Choice expected = sample_rows(*reference_ops(), logits.view(), {row}, {})[0];
        const Choice actual = run(logits.view(), {row})[0];
        EXPECT_EQ(actual.kept_min, expected.kept_min);
        expect_fair_choice(actual, row, logits.view(), 0, 0);
    }
}

TEST_P(Sample, P6_ChoiceDoesNotDependOnBatchThreadsOrSplit) {
    const std::int64_t V = 20011;
    Matrix<float> logits = random_matrix<float>(16, V, 51, 2.0);
    std::vector<SampleRow> rows;
    for (std::uint32_t r = 0; r < 16; ++r) {
        rows.push_back({
            .temperature = r % 5 == 0 ? 0.f : 0.8f,
            .top_k = r % 3 == 1 ? 40 : kTopKOff,
            .top_p = r % 4 == 1 ? 0.9f : 1.f,
            .seed = r,
            .position = r * 3,
        });
    }
    const std::vector<Choice> batch = run(logits.view(), rows);
    for (std::size_t r = 0; r < 16; ++r) {
        const auto row = static_cast<std::int64_t>(r);
        const Choice alone = sample_rows(ops(), logits.rows(row, 1), {rows[r]}, {})[0];
        EXPECT_EQ(alone.id, batch[r].id);
        EXPECT_EQ(alone.score, batch[r].score);
        EXPECT_EQ(alone.kept_min, batch[r].kept_min);
        if (alone.kept_min != -kInf) continue;  // a truncated row is not split
        for (const std::int64_t cut : {1, 63, 64, 66, 8192, 10007}) {
            const View2<float> whole = logits.rows(row, 1);
            const View2<const float> low{whole.data, 1, cut, whole.stride};
            const View2<const float> high{whole.data + cut, 1, V - cut, whole.stride};
            const Choice merged = better(run(high, {rows[r]}, cut)[0], run(low, {rows[r]}, 0)[0]);
            EXPECT_EQ(merged.id, batch[r].id) << "cut at " << cut;
            EXPECT_EQ(merged.score, batch[r].score);
        }
    }
}

class Penalties : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(Penalties);

TEST_P(Penalties, AreAppliedInTheStatedOrderToTheRanksOwnIds) {
    Matrix<float> logits = random_matrix<float>(3, 50, 1, 4.0);  // ids 100 .. 150
    logits(0, 10) = 2.f;
    logits(0, 11) = -2.f;
    const Matrix<float> before = logits;
    const PenaltyRow rows[] = {
        {.repetition = 1.25f, .frequency = 0.5f, .presence = 0.25f}, {}, {.frequency = -1.f}};
    const TokenCount counts[] = {
        {TokenId{110}, 3},
        {TokenId{111}, 0},
        {TokenId{99}, 1},
        {TokenId{150}, 1},
        {TokenId{149}, 2}};
    const std::int32_t count_starts[] = {0, 4, 4, 5};
    const LogitBias biases[] = {{TokenId{110}, 10.f}, {TokenId{100}, -kInf}, {TokenId{7}, 1.f}};
    const std::int32_t bias_starts[] = {0, 1, 3, 3};
    ops().penalties({
        .logits = logits.view(),
        .vocab_begin = 100,
        .rows = rows,
        .count_starts = count_starts,
        .counts = counts,
        .bias_starts = bias_starts,
        .biases = biases,
        .stream = stream_of(pool_),
    });
    EXPECT_FLOAT_EQ(logits(0, 10), 2.f / 1.25f - 0.5f * 3.f - 0.25f + 10.f);
    EXPECT_FLOAT_EQ(logits(0, 11), -2.f * 1.25f);
    EXPECT_EQ(logits(1, 0), -kInf);
    EXPECT_FLOAT_EQ(logits(2, 49), before(2, 49) + 2.f);
    int changed = 0;
    for (std::int64_t r = 0; r < 3; ++r) {
        for (std::int64_t i = 0; i < 50; ++i) changed += logits(r, i) != before(r, i);
    }
    EXPECT_EQ(changed, 4);
}

}  // namespace
}  // namespace pitstop::kernels::test
