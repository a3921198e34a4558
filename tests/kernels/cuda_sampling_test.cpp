#include "kernels/philox.h"
#include "kernels/sampling.h"
#include "tests/kernels/cuda_support.h"

#include <algorithm>
#include <limits>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Returns the score of one id, in double: what the header's formula says.
double score_of(const SampleRow& row, float x, std::int64_t id) {
    const auto words = philox(
        {static_cast<std::uint32_t>(id / 4), row.position, 0, 0},
        {static_cast<std::uint32_t>(row.seed), static_cast<std::uint32_t>(row.seed >> 32)}
    );
    const double v = (words[static_cast<std::size_t>(id % 4)] + 0.5) * 0x1p-32;
    return static_cast<double>(x) - std::log(-std::log1p(-v));
}

std::vector<Choice> reference(
    View2<const float> logits, const std::vector<SampleRow>& rows, std::int64_t vocab_begin = 0
) {
    std::vector<Choice> choices(rows.size());
    Scratch scratch(sample_workspace_bytes(logits.rows, logits.cols));
    sample_ref(
        {.logits = logits,
         .vocab_begin = vocab_begin,
         .rows = rows.data(),
         .choices = choices.data(),
         .workspace = scratch.workspace()}
    );
    return choices;
}

class CudaSample : public OnCuda {
  protected:
    // Samples from logits on the device.
    std::vector<Choice> run(
        View2<const float> logits, const std::vector<SampleRow>& rows, std::int64_t vocab_begin = 0
    ) {
        const DeviceArray<SampleRow> rows_there(rows, stream());
        const DeviceArray<Choice> choices(
            std::vector<Choice>(rows.size(), {.id = TokenId{-7}, .score = kNan}), stream()
        );
        const DeviceScratch scratch(
            sample_cuda_workspace_bytes(logits.rows, logits.cols), stream()
        );
        sample_cuda(
            {.logits = logits,
             .vocab_begin = vocab_begin,
             .rows = rows_there.data(),
             .choices = choices.data(),
             .workspace = scratch.workspace(),
             .stream = stream()}
        );
        return choices.fetch();
    }

    // The choice is kept, and its exact score is within rounding of the best kept one: x is exact,
    // a Gumbel number errs by 2^-19 at most (two logs of up to 23, each good to 2 ulp).
    static void expect_fair(
        const Choice& choice, const SampleRow& row, const Matrix<float>& logits, std::int64_t r
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

    // What is kept holds top_p of the mass, and nothing but the ties at its threshold could go:
    // within exp's 2 ulp of the masses.
    static void expect_top_p(
        const Choice& choice, const SampleRow& row, const Matrix<float>& logits
    ) {
        const float inverse = 1.f / row.temperature;
        float max = -kInf;
        for (std::int64_t i = 0; i < logits.num_cols(); ++i)
            max = std::max(max, logits(0, i) * inverse);
        double total = 0.0, kept = 0.0, above = 0.0;
        for (std::int64_t i = 0; i < logits.num_cols(); ++i) {
            const float x = logits(0, i) * inverse;
            const double mass = std::exp(double{x} - double{max});
            total += mass;
            kept += x >= choice.kept_min ? mass : 0.0;
            above += x > choice.kept_min ? mass : 0.0;
        }
        const double slack = 4.0 * kEps32 + static_cast<double>(logits.num_cols()) * 0x1p-41;
        EXPECT_GE(kept / total, double{row.top_p} - slack);
        EXPECT_LT(above / total, double{row.top_p} + slack);
    }
};

TEST_F(CudaSample, GreedyTakesTheBestAndTheLowestIdOnATie) {
    for (const std::int64_t V : {1, 2, 15, 64, 1000, 8191, 8192, 8193, 20000}) {
        SCOPED_TRACE(testing::Message() << "V " << V);
        Matrix<float> logits = random_matrix<float>(4, V, static_cast<unsigned>(V));
        logits(1, V - 1) = 100.f;                    // at the end
        logits(2, V / 2) = logits(2, V - 1) = 50.f;  // a tie
        for (std::int64_t i = 0; i < V; ++i) logits(3, i) = -kInf;
        const std::vector<SampleRow> rows_of(4);
        const OnDevice<float> there(logits, stream());
        const std::vector<Choice> expected = reference(logits.view(), rows_of);
        const std::vector<Choice> actual = run(there.view(), rows_of);
        for (std::size_t r = 0; r < 4; ++r) {
            EXPECT_EQ(actual[r].id, expected[r].id) << "row " << r;
            EXPECT_EQ(actual[r].score, expected[r].score);
            EXPECT_EQ(actual[r].kept_min, -kInf);
        }
    }
}

TEST_F(CudaSample, NanLosesAndInfinityWins) {
    Matrix<float> logits = random_matrix<float>(4, 100, 1);
    for (const std::int64_t i : {0, 1, 50, 99}) logits(0, i) = logits(1, i) = kNan;
    logits(2, 40) = logits(2, 70) = kInf;
    for (std::int64_t i = 0; i < 100; ++i) logits(3, i) = -kInf;
    const OnDevice<float> there(logits, stream());
    for (const float temperature : {0.f, 1.f}) {
        for (const float top_p : {1.f, 0.5f}) {
            for (const std::int32_t top_k : {kTopKOff, 3}) {
                const SampleRow row{
                    .temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = 3};
                const std::vector<Choice> choices = run(there.view(), {row, row, row, row});
                EXPECT_FALSE(std::isnan(logits(0, raw(choices[0].id))));
                EXPECT_EQ(choices[2].id, TokenId{40});
                EXPECT_EQ(choices[3].id, TokenId{0});
            }
        }
    }
}

TEST_F(CudaSample, RandomChoiceHasTheBestScore) {
    for (const std::int64_t V : {1, 3, 64, 1000, 8200, 30011}) {
        for (const double deviation : {0.0, 1.0, 8.0}) {
            SCOPED_TRACE(testing::Message() << "V " << V << " deviation " << deviation);
            const Matrix<float> logits = random_matrix<float>(6, V, 11, deviation);
            std::vector<SampleRow> rows_of;
            for (std::uint32_t r = 0; r < 6; ++r) {
                rows_of.push_back(
                    {.temperature = 0.3f + 0.4f * static_cast<float>(r),
                     .seed = 0x123456789abcdefULL * r,
                     .position = 77 * r}
                );
            }
            const OnDevice<float> there(logits, stream());
            const std::vector<Choice> choices = run(there.view(), rows_of);
            for (std::size_t r = 0; r < 6; ++r) {
                expect_fair(choices[r], rows_of[r], logits, static_cast<std::int64_t>(r));
                EXPECT_EQ(choices[r].kept_min, -kInf);
            }
        }
    }
}

TEST_F(CudaSample, TopKThresholdIsTheKthLargest) {
    for (const std::int64_t V : {5, 64, 1000, 9001}) {
        Matrix<float> logits = random_matrix<float>(1, V, 21, 3.0);
        logits(0, 3) = 0.f;
        logits(0, 4) = -0.f;
        const OnDevice<float> there(logits, stream());
        for (const std::int32_t k : {1, 2, 4, 5, 63, 64, 1000, 9000}) {
            SCOPED_TRACE(testing::Message() << "V " << V << " k " << k);
            const SampleRow row{.temperature = 0.9f, .top_k = k, .seed = 8};
            const Choice actual = run(there.view(), {row})[0];
            EXPECT_EQ(actual.kept_min, reference(logits.view(), {row})[0].kept_min);
            expect_fair(actual, row, logits, 0);
        }
    }
}

TEST_F(CudaSample, TiesAtTheThresholdAreAllKept) {
    Matrix<float> logits(1, 6000, 0);
    for (std::int64_t i = 0; i < 6000; ++i) logits(0, i) = i < 5 ? 9.f : 1.f;
    const OnDevice<float> there(logits, stream());
    const std::vector<SampleRow> rows_of = {{.temperature = 1.f, .top_k = 7, .seed = 1}};
    EXPECT_EQ(run(there.view(), rows_of)[0].kept_min, 1.f);
    EXPECT_EQ(run(there.view(), {{.temperature = 1.f, .top_k = 3, .seed = 1}})[0].kept_min, 9.f);
    EXPECT_EQ(run(there.view(), {{.temperature = 1.f, .top_p = 0.1f, .seed = 1}})[0].kept_min, 9.f);
}

// Peaked rows go by the list; flat ones, with more survivors than it holds, race where they are
// collected; those of a bin that it cannot hold by the whole row.
TEST_F(CudaSample, TopPKeepsTheSmallestSetThatHoldsTheMass) {
    for (const std::int64_t V : {1, 4, 100, 5000, 12001}) {
        for (const double deviation : {0.01, 1.0, 6.0}) {
            const Matrix<float> logits = random_matrix<float>(1, V, 31, deviation);
            const OnDevice<float> there(logits, stream());
            for (const float top_p : {1e-6f, 0.1f, 0.5f, 0.95f, 0.9999f}) {
                SCOPED_TRACE(
                    testing::Message() << "V " << V << " deviation " << deviation << " p " << top_p
                );
                const SampleRow row{.temperature = 0.8f, .top_p = top_p, .seed = 8};
                const Choice choice = run(there.view(), {row})[0];
                expect_top_p(choice, row, logits);
                expect_fair(choice, row, logits, 0);
            }
        }
    }
}

TEST_F(CudaSample, MinPIsRelativeToTheBest) {
    const Matrix<float> logits = random_matrix<float>(1, 9000, 41, 2.0);
    const OnDevice<float> there(logits, stream());
    for (const float min_p : {1.f, 0.5f, 0.05f, 1e-9f}) {
        const SampleRow row{.temperature = 0.7f, .min_p = min_p, .seed = 8};
        const Choice choice = run(there.view(), {row})[0];
        // It is the same double arithmetic, but for a logarithm that may differ in its last bit.
        EXPECT_FLOAT_EQ(choice.kept_min, reference(logits.view(), {row})[0].kept_min);
        expect_fair(choice, row, logits, 0);
    }
}

TEST_F(CudaSample, ThresholdsCombineAsTheReferences) {
    for (const double deviation : {0.5, 4.0}) {
        const Matrix<float> logits = random_matrix<float>(1, 9000, 51, deviation);
        const OnDevice<float> there(logits, stream());
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
                    expect_fair(actual, row, logits, 0);
                    // The masses are exp's in fp32 here: a threshold may be an id further on, but
                    // no two neighbours of 9000 normal numbers are 0.05 apart where it falls.
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

// P6: neither the batch nor the split over ranks shows in a choice.
TEST_F(CudaSample, P6_ChoiceDependsOnNeitherBatchNorRanks) {
    const std::int64_t V = 9000;
    const Matrix<float> logits = random_matrix<float>(7, V, 61, 2.0);
    const OnDevice<float> there(logits, stream());
    std::vector<SampleRow> rows_of;
    for (std::uint32_t r = 0; r < 7; ++r) {
        rows_of.push_back(
            {.temperature = r == 3 ? 0.f : 0.9f,
             .top_k = r == 4 ? 40 : kTopKOff,
             .top_p = r == 5 ? 0.8f : 1.f,
             .seed = 1000 + r,
             .position = r}
        );
    }
    const std::vector<Choice> batch = run(there.view(), rows_of);
    for (std::size_t r = 0; r < 7; ++r) {
        const View2<float> one = rows(there.view(), static_cast<std::int64_t>(r), 1);
        const Choice alone = run(one, {rows_of[r]})[0];
        EXPECT_EQ(alone.id, batch[r].id);
        EXPECT_EQ(alone.score, batch[r].score);
        EXPECT_EQ(alone.kept_min, batch[r].kept_min);
        if (rows_of[r].top_k != kTopKOff || rows_of[r].top_p != 1.f) continue;
        for (const std::int64_t cut : {1, 2, 3, 4500, 8999}) {
            View2<float> low = one;
            low.cols = cut;
            View2<float> high = one;
            high.data += cut;
            high.cols = V - cut;
            const Choice split = better(run(low, {rows_of[r]})[0], run(high, {rows_of[r]}, cut)[0]);
            EXPECT_EQ(split.id, batch[r].id) << "cut " << cut;
            EXPECT_EQ(split.score, batch[r].score);
        }
    }
}

// Rows beyond the 256 that share the workspace take their turn.
TEST_F(CudaSample, ManyRowsShareTheWorkspace) {
    const Matrix<float> logits = random_matrix<float>(600, 60, 71);
    const OnDevice<float> there(logits, stream());
    std::vector<SampleRow> rows_of;
    for (std::uint32_t r = 0; r < 600; ++r)
        rows_of.push_back({.temperature = 1.f, .top_k = r % 2 == 0 ? 5 : kTopKOff, .seed = r});
    const std::vector<Choice> choices = run(there.view(), rows_of);
    for (std::size_t r = 0; r < 600; r += 37)
        expect_fair(choices[r], rows_of[r], logits, static_cast<std::int64_t>(r));
}

}  // namespace
}  // namespace pitstop::kernels::test
