#include "kernels/sampling.h"

#include "kernels/philox.h"
#include "tests/kernels/backend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Returns the score of one id, in double, by the header's formula.
double score_of(const SampleRow& row, float x, std::int64_t id) {
    const auto words = philox(
        {static_cast<std::uint32_t>(id / 4), row.position, 0, 0},
        {static_cast<std::uint32_t>(row.seed), static_cast<std::uint32_t>(row.seed >> 32)}
    );
    const double v = (words[static_cast<std::size_t>(id % 4)] + 0.5) * 0x1p-32;
    return static_cast<double>(x) - std::log(-std::log1p(-v));
}

std::vector<Choice> reference(View2<const float> logits, const std::vector<SampleRow>& rows) {
    std::vector<Choice> choices(rows.size());
    const Scratch space(sample_workspace_bytes(logits.rows, logits.cols), Place{});
    sample_ref(
        {.logits = logits,
         .rows = rows.data(),
         .choices = choices.data(),
         .workspace = space.workspace()}
    );
    return choices;
}

class Sample : public OnBackend {
  protected:
    // Samples from logits in the backend's memory.
    std::vector<Choice> run(
        View2<const float> logits, const std::vector<SampleRow>& rows, std::int64_t vocab_begin = 0
    ) {
        return run_on(stream(), logits, rows, vocab_begin);
    }
    std::vector<Choice> run_on(
        Stream stream,
        View2<const float> logits,
        const std::vector<SampleRow>& rows,
        std::int64_t vocab_begin = 0
    ) {
        const auto device_rows = put(rows);
        const auto choices =
            put(std::vector<Choice>(rows.size(), {.id = TokenId{-7}, .score = kNan}));
        const Scratch space = scratch(ops().sample_workspace_bytes(logits.rows, logits.cols));
        ops().sample(
            {.logits = logits,
             .vocab_begin = vocab_begin,
             .rows = device_rows.data(),
             .choices = choices.data(),
             .workspace = space.workspace(),
             .stream = stream}
        );
        return choices.fetch();
    }
};
PITSTOP_ON_BACKENDS(Sample, Order::kDefault);

// Expects that the choice is a kept id, whose exact score is within rounding of the best kept one.
// x is exact. A Gumbel number errs by 2^-19 at most. The errors are those of two logs of up to 23,
// each good to 2^-22 of its size (on a GPU to 2 ulp), and of their input.
void expect_fair(
    const Choice& choice, const SampleRow& row, const Matrix<float>& logits, std::int64_t r = 0
) {
    const float inverse = 1.f / row.temperature;
    double best = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < logits.num_cols(); ++i) {
        const float x = logits(r, i) * inverse;
        if (x >= choice.kept_min) best = std::max(best, score_of(row, x, i));
    }
    ASSERT_GE(raw(choice.id), 0);
    ASSERT_LT(raw(choice.id), logits.num_cols());
    const float x = logits(r, raw(choice.id)) * inverse;
    const double score = score_of(row, x, raw(choice.id));
    const double tolerance = 0x1p-19 + 4.0 * kEps32 * std::abs(score);
    EXPECT_GE(x, choice.kept_min);
    EXPECT_GE(score, best - tolerance);
    const double error = std::abs(static_cast<double>(choice.score) - score);
    EXPECT_LE(error, tolerance);
    record_error(error, error / tolerance);
}

TEST_P(Sample, GreedyTakesTheBestAndTheLowestIdOnATie) {
    for (const std::int64_t V : {1, 2, 15, 16, 17, 63, 64, 65, 1000, 8191, 8192, 8193, 20000}) {
        SCOPED_TRACE(testing::Message() << "V " << V);
        Matrix<float> logits = random_matrix<float>(4, V, static_cast<unsigned>(V));
        logits(1, V - 1) = 100.f;                    // the largest is the last
        logits(2, V / 2) = logits(2, V - 1) = 50.f;  // a tie
        for (std::int64_t i = 0; i < V; ++i) logits(3, i) = -kInf;
        const std::vector<SampleRow> rows(4);
        const auto there = put(logits);
        const std::vector<Choice> expected = reference(logits.view(), rows);
        const std::vector<Choice> actual = run(there.view(), rows);
        for (std::size_t r = 0; r < 4; ++r) {
            EXPECT_EQ(actual[r].id, expected[r].id) << "row " << r;
            EXPECT_EQ(actual[r].score, expected[r].score);
            EXPECT_EQ(actual[r].kept_min, -kInf);
        }
        EXPECT_EQ(actual[1].id, TokenId(V - 1));
        EXPECT_EQ(actual[2].id, TokenId(V / 2));
        EXPECT_EQ(actual[3].id, TokenId{0});
    }
}

TEST_P(Sample, NanLosesAndInfinityWins) {
    Matrix<float> logits = random_matrix<float>(4, 100, 1);
    for (const std::int64_t i : {0, 1, 50, 99}) logits(0, i) = logits(1, i) = kNan;
    logits(2, 40) = logits(2, 70) = kInf;
    for (std::int64_t i = 0; i < 100; ++i) logits(3, i) = -kInf;
    const auto there = put(logits);
    for (const float temperature : {0.f, 1.f}) {
        for (const float top_p : {1.f, 0.5f}) {
            for (const std::int32_t top_k : {kTopKOff, 3}) {
                const SampleRow row{
                    .temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = 3};
                const std::vector<Choice> choices = run(there.view(), {row, row, row, row});
                EXPECT_FALSE(std::isnan(logits(0, raw(choices[0].id))));
                EXPECT_FALSE(std::isnan(logits(1, raw(choices[1].id))));
                EXPECT_EQ(choices[2].id, TokenId{40});
                EXPECT_EQ(choices[3].id, TokenId{0});
            }
        }
    }
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
            const auto there = put(logits);
            const std::vector<Choice> choices = run(there.view(), rows);
            for (std::size_t r = 0; r < 6; ++r) {
                expect_fair(choices[r], rows[r], logits, static_cast<std::int64_t>(r));
                EXPECT_EQ(choices[r].kept_min, -kInf);
            }
        }
    }
}

// Ids of a small vocabulary come up as often as the softmax says: chi-squared with 15 degrees of
// freedom passes 45 with probability 8e-5. Seeds are fixed, so it passes always or never.
TEST_P(Sample, FrequenciesAreTheSoftmax) {
    constexpr std::int64_t V = 16;
    constexpr std::int64_t kDraws = 40000;
    if (is_small()) return;
    const Matrix<float> row = random_matrix<float>(1, V, 5);
    Matrix<float> logits(kDraws, V, 0x7f);
    std::vector<SampleRow> draws;
    for (std::int64_t draw = 0; draw < kDraws; ++draw) {
        for (std::int64_t i = 0; i < V; ++i) logits(draw, i) = row(0, i);
        draws.push_back(
            {.temperature = 0.7f, .seed = 42, .position = static_cast<std::uint32_t>(draw)}
        );
    }
    const auto there = put(logits);
    std::vector<int> hits(V);
    for (const Choice& choice : run(there.view(), draws))
        ++hits[static_cast<std::size_t>(raw(choice.id))];
    std::vector<double> p(V);
    double sum = 0.0;
    for (std::int64_t i = 0; i < V; ++i)
        sum += p[static_cast<std::size_t>(i)] = std::exp(double{row(0, i)} / double{0.7f});
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
        const auto there = put(logits);
        for (const std::int32_t k : {1, 2, 4, 5, 63, 64, 1000, 9000}) {
            SCOPED_TRACE(testing::Message() << "V " << V << " k " << k);
            const SampleRow row{.temperature = 0.9f, .top_k = k, .seed = 8};
            const Choice actual = run(there.view(), {row})[0];
            EXPECT_EQ(actual.kept_min, reference(logits.view(), {row})[0].kept_min);
            expect_fair(actual, row, logits);
        }
    }
}

TEST_P(Sample, TiesAtTheThresholdAreAllKept) {
    const std::int64_t num_draws = is_small() ? 40 : 4000;
    Matrix<float> logits(num_draws, 100, 0);
    std::vector<SampleRow> draws;
    for (std::int64_t r = 0; r < num_draws; ++r) {
        for (std::int64_t i = 0; i < 100; ++i) logits(r, i) = i < 3 ? 2.f : i < 40 ? 1.f : -1.f;
        draws.push_back({.temperature = 1.f, .top_k = 4, .position = static_cast<std::uint32_t>(r)}
        );
    }
    const auto there = put(logits);
    std::set<std::int32_t> drawn;
    for (const Choice& choice : run(there.view(), draws)) {
        EXPECT_EQ(choice.kept_min, 1.f);
        drawn.insert(raw(choice.id));
    }
    EXPECT_LT(*drawn.rbegin(), 40);
    EXPECT_EQ(drawn.size(), is_small() ? drawn.size() : 40u);
}

// More ties than a GPU's list of survivors holds.
TEST_P(Sample, ManyTiesAtTheThresholdAreAllKept) {
    Matrix<float> logits(1, 6000, 0);
    for (std::int64_t i = 0; i < 6000; ++i) logits(0, i) = i < 5 ? 9.f : 1.f;
    const auto there = put(logits);
    const auto kept_min = [&](const SampleRow& row) {
        return run(there.view(), {row})[0].kept_min;
    };
    EXPECT_EQ(kept_min({.temperature = 1.f, .top_k = 7, .seed = 1}), 1.f);
    EXPECT_EQ(kept_min({.temperature = 1.f, .top_k = 3, .seed = 1}), 9.f);
    EXPECT_EQ(kept_min({.temperature = 1.f, .top_p = 0.1f, .seed = 1}), 9.f);
}

// Expects that the kept ids have at least top_p of the mass of the top_k largest, and that those
// above kept_min alone have less. `slack` covers exp's error in each mass: 2^-21 on the CPU, 2 ulp
// on a GPU.
void expect_top_p(
    const Choice& choice, const SampleRow& row, const Matrix<float>& logits, double slack
) {
    const float inverse = 1.f / row.temperature;
    std::vector<float> x;
    for (std::int64_t i = 0; i < logits.num_cols(); ++i) x.push_back(logits(0, i) * inverse);
    std::sort(x.begin(), x.end(), std::greater<>());
    if (std::ssize(x) > row.top_k) x.resize(static_cast<std::size_t>(row.top_k));
    double total = 0.0, kept = 0.0, above = 0.0;
    for (const float value : x) {
        const double mass = std::exp(double{value} - double{x[0]});
        total += mass;
        kept += value >= choice.kept_min ? mass : 0.0;
        above += value > choice.kept_min ? mass : 0.0;
    }
    EXPECT_GE(kept / total, double{row.top_p} - slack);
    EXPECT_LT(above / total, double{row.top_p} + slack);
}

// On a GPU peaked rows use the list of survivors. Flat rows, with more survivors than it holds, are
// drawn while survivors are collected; rows with a bin that it cannot hold use the whole row.
TEST_P(Sample, TopPKeepsTheSmallestSetThatHoldsTheMass) {
    for (const std::int64_t V : {1, 2, 4, 64, 100, 5000, 12001}) {
        const double slack = is_gpu() ? 4.0 * kEps32 + static_cast<double>(V) * 0x1p-41 : 0x1p-20;
        for (const double deviation : {0.01, 1.0, 6.0}) {
            const Matrix<float> logits = random_matrix<float>(1, V, 31, deviation);
            const auto there = put(logits);
            for (const float top_p : {1e-6f, 0.1f, 0.5f, 0.95f, 0.9999f}) {
                for (const std::int32_t top_k : {kTopKOff, 50}) {
                    if (top_k != kTopKOff && deviation < 1.0) continue;  // a tie at the 50th
                    SCOPED_TRACE(
                        testing::Message() << "V " << V << " deviation " << deviation << " p "
                                           << top_p << " k " << top_k
                    );
                    const SampleRow row{
                        .temperature = 0.8f, .top_k = top_k, .top_p = top_p, .seed = 8};
                    const Choice choice = run(there.view(), {row})[0];
                    expect_top_p(choice, row, logits, slack);
                    expect_fair(choice, row, logits);
                }
            }
        }
    }
}

TEST_P(Sample, MinPIsRelativeToTheBest) {
    const Matrix<float> logits = random_matrix<float>(1, 9000, 41, 2.0);
    const auto there = put(logits);
    for (const float min_p : {1.f, 0.5f, 0.1f, 0.05f, 0.001f, 1e-9f}) {
        const SampleRow row{.temperature = 0.7f, .min_p = min_p, .seed = 8};
        const Choice choice = run(there.view(), {row})[0];
        const Choice expected = reference(logits.view(), {row})[0];
        if (is_gpu()) {
            // The same double arithmetic, except for a logarithm that may differ in its last bit.
            EXPECT_FLOAT_EQ(choice.kept_min, expected.kept_min);
        } else {
            EXPECT_EQ(choice.kept_min, expected.kept_min);
        }
        expect_fair(choice, row, logits);
    }
}

TEST_P(Sample, ThresholdsCombineAsTheReferences) {
    for (const double deviation : {0.5, 4.0}) {
        const Matrix<float> logits = random_matrix<float>(1, 9000, 51, deviation);
        const auto there = put(logits);
        for (const std::int32_t top_k : {1, 50, 3000, 8000, kTopKOff}) {
            for (const float top_p : {0.3f, 0.9f, 1.f}) {
                for (const float min_p : {0.f, 0.01f, 0.3f}) {
                    SCOPED_TRACE(
                        testing::Message() << "k " << top_k << " top_p " << top_p << " min_p "
                                           << min_p << " deviation " << deviation
                    );
                    const SampleRow row{
                        .temperature = 1.1f,
                        .top_k = top_k,
                        .top_p = top_p,
                        .min_p = min_p,
                        .seed = 77};
                    const Choice actual = run(there.view(), {row})[0];
                    const Choice expected = reference(logits.view(), {row})[0];
                    expect_fair(actual, row, logits);
                    // exp is fp32 here, so the threshold may be off by one id. Near it, no two
                    // neighbours of 9000 normal numbers are 0.05 apart.
                    if (std::isinf(expected.kept_min)) {
                        EXPECT_EQ(actual.kept_min, expected.kept_min);
                    } else {
                        EXPECT_NEAR(actual.kept_min, expected.kept_min, 0.05);
                    }
                }
            }
        }
    }
}

// P6: a choice depends neither on the batch nor on the number of threads nor on the split over
// ranks.
TEST_P(Sample, P6_ChoiceDoesNotDependOnBatchThreadsOrSplit) {
    const std::int64_t V = is_gpu() ? 9000 : 20011;
    const std::int64_t num_rows = is_gpu() ? 8 : 16;
    const Matrix<float> logits = random_matrix<float>(num_rows, V, 61, 2.0);
    const auto there = put(logits);
    std::vector<SampleRow> rows_of;
    for (std::int64_t r = 0; r < num_rows; ++r) {
        rows_of.push_back(
            {.temperature = r % 5 == 3 ? 0.f : 0.9f,
             .top_k = r % 3 == 1 ? 40 : kTopKOff,
             .top_p = r % 4 == 1 ? 0.8f : 1.f,
             .seed = static_cast<std::uint64_t>(1000 + r),
             .position = static_cast<std::uint32_t>(r * 3)}
        );
    }
    const std::vector<Choice> batch = run(there.view(), rows_of);
    for (std::size_t r = 0; r < rows_of.size(); ++r) {
        const View2<float> one = rows(there.view(), static_cast<std::int64_t>(r), 1);
        const Choice alone = run_on(one_thread(), one, {rows_of[r]})[0];
        EXPECT_EQ(alone.id, batch[r].id);
        EXPECT_EQ(alone.score, batch[r].score);
        EXPECT_EQ(alone.kept_min, batch[r].kept_min);
        if (alone.kept_min != -kInf) continue;  // a truncated row is not split
        for (const std::int64_t cut :
             {std::int64_t{1},
              std::int64_t{2},
              std::int64_t{3},
              std::int64_t{63},
              std::int64_t{64},
              std::int64_t{66},
              V / 2,
              V - 1}) {
            const Choice low = run(columns(one, 0, cut), {rows_of[r]})[0];
            const Choice high = run(columns(one, cut, V - cut), {rows_of[r]}, cut)[0];
            for (const Choice& merged : {better(low, high), better(high, low)}) {
                EXPECT_EQ(merged.id, batch[r].id) << "cut at " << cut;
                EXPECT_EQ(merged.score, batch[r].score);
            }
        }
    }
}

// On a GPU this is one launch in place of four, and the last block of a row merges.
TEST_P(Sample, RowsThatDoNotTruncateAreThoseOfAnyCall) {
    const std::int64_t V = is_small() ? 9000 : 30011;
    const std::int64_t num_rows = is_small() ? 6 : 600;
    const Matrix<float> logits = random_matrix<float>(num_rows, V, 81, 2.0);
    std::vector<SampleRow> rows_of;
    for (std::uint32_t r = 0; r < num_rows; ++r)
        rows_of.push_back({.temperature = r % 3 == 0 ? 0.f : 0.7f, .seed = 9 + r, .position = r});
    const auto there = put(logits);
    const auto device_rows = put(rows_of);
    const std::vector<Choice> expected = run(there.view(), rows_of);
    const auto arrivals = put(std::vector<std::uint32_t>(SampleArgs::kArrivals, 0));
    const Scratch space = scratch(ops().sample_workspace_bytes(num_rows, V));
    for (int i = 0; i < 2; ++i) {  // each call leaves the workspace ready for the next
        const auto choices = put(std::vector<Choice>(rows_of.size(), {.score = kNan}));
        ops().sample(
            {.logits = there.view(),
             .rows = device_rows.data(),
             .may_truncate = false,
             .choices = choices.data(),
             .workspace = space.workspace(),
             .arrivals = arrivals.data(),
             .stream = stream()}
        );
        const std::vector<Choice> actual = choices.fetch();
        for (std::size_t r = 0; r < rows_of.size(); ++r) {
            EXPECT_EQ(actual[r].id, expected[r].id) << "row " << r;
            EXPECT_EQ(actual[r].score, expected[r].score);
            EXPECT_EQ(actual[r].kept_min, -kInf);
        }
    }
}

// Rows that advance by one position per call need not be changed between calls.
TEST_P(Sample, PositionsCountFromTheFirst) {
    const std::int64_t V = 9000;
    constexpr std::uint32_t kFirst = 77;
    const Matrix<float> logits = random_matrix<float>(4, V, 82, 2.0);
    std::vector<SampleRow> rows_of = {
        {.temperature = 1.f, .seed = 3, .position = 5},
        {.temperature = 1.f, .top_p = 0.9f, .seed = 4, .position = 6},
        {.temperature = 2.f, .top_k = 3000, .seed = 5, .position = 0u - kFirst},
        {}};
    const auto there = put(logits);
    const Scratch space = scratch(ops().sample_workspace_bytes(4, V));
    const auto run_from = [&](std::uint32_t first_position) {
        const auto device_rows = put(rows_of);
        const auto choices = put(std::vector<Choice>(rows_of.size(), {.score = kNan}));
        ops().sample(
            {.logits = there.view(),
             .rows = device_rows.data(),
             .first_position = first_position,
             .choices = choices.data(),
             .workspace = space.workspace(),
             .stream = stream()}
        );
        return choices.fetch();
    };
    const std::vector<Choice> from_first = run_from(kFirst);
    const std::vector<Choice> others = run_from(0);
    EXPECT_NE(from_first[0].score, others[0].score);
    for (SampleRow& row : rows_of) row.position += kFirst;
    const std::vector<Choice> expected = run_from(0);
    for (std::size_t r = 0; r < rows_of.size(); ++r) {
        EXPECT_EQ(from_first[r].id, expected[r].id) << "row " << r;
        EXPECT_EQ(from_first[r].score, expected[r].score);
    }
}

TEST_P(Sample, CountsWhatIsNotFinite) {
    for (const std::int64_t V : {1, 7, 8200, 9000}) {
        Matrix<float> logits = random_matrix<float>(5, V, 1, 5.0);
        logits(0, 0) = kInf;
        logits(0, V - 1) = kNan;
        logits(2, V / 2) = -kInf;
        logits(3, V / 3) = 3e38f;  // becomes infinite only when it is scaled
        const std::vector<SampleRow> rows_of = {
            {},
            {.temperature = 1.f},
            {.temperature = 0.5f, .top_p = 0.9f},
            {.temperature = 0.1f},
            {.temperature = 1.f, .top_k = 2}};
        const auto there = put(logits);
        const auto device_rows = put(rows_of);
        const auto arrivals = put(std::vector<std::uint32_t>(SampleArgs::kArrivals, 0));
        const Scratch space = scratch(ops().sample_workspace_bytes(5, V));
        for (const std::int64_t num_rows : {2, 5}) {  // the first two rows do not truncate
            const auto choices = put(std::vector<Choice>(5));
            const auto counts = put(std::vector<std::int32_t>(5, -7));
            ops().sample(
                {.logits = rows(there.view(), 0, num_rows),
                 .rows = device_rows.data(),
                 .may_truncate = num_rows == 5,
                 .choices = choices.data(),
                 .num_nonfinite = counts.data(),
                 .workspace = space.workspace(),
                 .arrivals = arrivals.data(),
                 .stream = stream()}
            );
            std::vector<std::int32_t> expected = {V == 1 ? 1 : 2, 0, 1, 0, 0};
            for (std::size_t r = static_cast<std::size_t>(num_rows); r < 5; ++r) expected[r] = -7;
            EXPECT_EQ(counts.fetch(), expected) << "V " << V;
        }
    }
}

// On a GPU rows beyond the 256 that share the workspace wait for their turn.
TEST_P(Sample, ManyRowsShareTheWorkspace) {
    const Matrix<float> logits = random_matrix<float>(600, 60, 71);
    const auto there = put(logits);
    std::vector<SampleRow> rows;
    for (std::uint32_t r = 0; r < 600; ++r)
        rows.push_back({.temperature = 1.f, .top_k = r % 2 == 0 ? 5 : kTopKOff, .seed = r});
    const std::vector<Choice> choices = run(there.view(), rows);
    for (std::size_t r = 0; r < 600; r += 37)
        expect_fair(choices[r], rows[r], logits, static_cast<std::int64_t>(r));
}

}  // namespace
}  // namespace pitstop::kernels::test
