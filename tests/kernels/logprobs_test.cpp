#include "kernels/logprobs.h"

#include "tests/kernels/support.h"

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<SoftmaxStats> stats_of(
    const Ops& ops, View2<const float> logits, const std::vector<SoftmaxRow>& rows, Stream stream
) {
    std::vector<SoftmaxStats> stats(
        static_cast<std::size_t>(logits.rows), {.max = kNan, .sum = -1.0}
    );
    Scratch scratch(ops.softmax_stats_workspace_bytes(logits.rows, logits.cols));
    ops.softmax_stats(
        {.logits = logits,
         .rows = rows.data(),
         .stats = stats.data(),
         .workspace = scratch.workspace(),
         .stream = stream}
    );
    return stats;
}

class Logprobs : public OnLevel {};
PITSTOP_ON_EVERY_LEVEL(Logprobs);

TEST_P(Logprobs, MeetTheReferenceInEveryMode) {
    for (const std::int64_t V : {1, 15, 16, 17, 100, 4095, 4096, 4097, 20011}) {
        for (const double deviation : {0.1, 3.0, 30.0}) {
            SCOPED_TRACE(testing::Message() << "V " << V << " deviation " << deviation);
            const Matrix<float> logits = random_matrix<float>(3, V, 1, deviation);
            const std::vector<SoftmaxRow> rows = {
                {},
                {.temperature = 0.6f},
                {.temperature = 1.5f, .kept_min = logits(2, V / 2) / 1.5f}};
            const std::vector<SoftmaxStats> expected =
                stats_of(*reference_ops(), logits.view(), rows, {});
            const std::vector<SoftmaxStats> actual =
                stats_of(ops(), logits.view(), rows, stream_of(pool_));
            for (std::size_t r = 0; r < 3; ++r) {
                EXPECT_EQ(actual[r].max, expected[r].max);
                // Terms are positive: the sum errs relatively by 256 lane sums, 4 of the tree,
                // exp's 2^-21 and what the rounding of x - max does to it (e * 100 at most where a
                // term counts).
                const double bound = (256.0 + 4.0 + 100.0) * kEps32 + 0x1p-21;
                EXPECT_NEAR(std::log(actual[r].sum), std::log(expected[r].sum), bound);
            }
        }
    }
}

TEST_P(Logprobs, BannedAndNanLogitsHaveNoMass) {
    Matrix<float> logits(2, 40, 0);
    for (std::int64_t i = 0; i < 40; ++i) {
        logits(0, i) = i % 2 == 0 ? -kInf : i == 7 ? kNan : 1.f;
        logits(1, i) = -kInf;
    }
    const std::vector<SoftmaxStats> stats = stats_of(ops(), logits.view(), {{}, {}}, {});
    EXPECT_EQ(stats[0].max, 1.f);
    EXPECT_EQ(stats[0].sum, 19.0);
    EXPECT_EQ(stats[1].sum, 0.0);
    EXPECT_FLOAT_EQ(logprob(1.f, -kInf, stats[0]), -std::log(19.f));
    EXPECT_EQ(logprob(-kInf, -kInf, stats[0]), -kInf);
    EXPECT_EQ(logprob(1.f, 2.f, stats[0]), -kInf);
    EXPECT_EQ(merge(stats[0], stats[1]).sum, stats[0].sum);
    EXPECT_EQ(merge(stats[1], stats[0]).max, 1.f);
}

TEST_P(Logprobs, P6_StatsDoNotDependOnBatchOrThreads) {
    Matrix<float> logits = random_matrix<float>(40, 12345, 2, 4.0);
    const std::vector<SoftmaxRow> rows(40, {.temperature = 0.9f});
    const std::vector<SoftmaxStats> batch = stats_of(ops(), logits.view(), rows, stream_of(pool_));
    for (std::int64_t r = 0; r < 40; r += 7) {
        const SoftmaxStats alone = stats_of(ops(), logits.rows(r, 1), {rows[0]}, {})[0];
        EXPECT_EQ(alone.max, batch[static_cast<std::size_t>(r)].max);
        EXPECT_EQ(alone.sum, batch[static_cast<std::size_t>(r)].sum);
    }
}

TEST_P(Logprobs, PickedLogitsAreMinusInfinityOnOtherRanks) {
    const Matrix<float> logits = random_matrix<float>(2, 30, 3);
    const LogitPick picks[] = {
        {.row = 1, .id = TokenId{100}},
        {.row = 0, .id = TokenId{129}},
        {.row = 0, .id = TokenId{130}},
        {.row = 1, .id = TokenId{99}}};
    float values[4] = {kNan, kNan, kNan, kNan};
    ops().pick_logits(
        {.logits = logits.view(),
         .vocab_begin = 100,
         .picks = picks,
         .num_picks = 4,
         .values = values}
    );
    EXPECT_EQ(values[0], logits(1, 0));
    EXPECT_EQ(values[1], logits(0, 29));
    EXPECT_EQ(values[2], -kInf);
    EXPECT_EQ(values[3], -kInf);
}

// Of each part of a vocabulary split over ranks; the counts add up to the place in the whole order.
TEST_P(Logprobs, CountsBeforeAPickAddUpToItsRank) {
    for (const std::int64_t V : {1, 15, 16, 17, 100, 5003}) {
        Matrix<float> logits = random_matrix<float>(3, V, 7);
        for (std::int64_t i = 0; i < V; ++i) {
            logits(1, i) = static_cast<float>(-(i / 3));       // ties
            logits(2, i) = i % 2 == 0 ? -kInf : logits(2, i);  // banned ones
        }
        Matrix<TokenId> order(3, V, 0x11);
        Matrix<float> sorted(3, V, 0x11);
        if (V <= TopLogitsArgs::kTopMax) {
            top_logits_ref({.logits = logits.view(), .ids = order.view(), .values = sorted.view()});
        }
        std::vector<LogitPick> picks;
        std::vector<float> values;
        for (std::int32_t r = 0; r < 3; ++r) {
            for (std::int64_t i = 0; i < V; i += V / 11 + 1) {
                picks.push_back({.row = r, .id = static_cast<TokenId>(i)});
                values.push_back(logits(r, i));
            }
        }
        std::vector<std::int32_t> total(picks.size(), 0);
        const std::int64_t cut = V / 3;
        for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, V}}) {
            SCOPED_TRACE(testing::Message() << "V " << V << " from " << begin);
            if (begin == end) continue;
            View2<const float> part = logits.view();
            part.data += begin;
            part.cols = end - begin;
            std::vector<std::int32_t> expected(picks.size(), -1), actual(picks.size(), -2);
            CountBeforeArgs args{
                .logits = part,
                .vocab_begin = begin,
                .picks = picks.data(),
                .values = values.data(),
                .num_picks = static_cast<std::int64_t>(picks.size()),
                .counts = expected.data()};
            count_before_ref(args);
            args.counts = actual.data();
            args.stream = stream_of(pool_);
            ops().count_before(args);
            EXPECT_EQ(actual, expected);
            for (std::size_t i = 0; i < picks.size(); ++i) total[i] += actual[i];
        }
        for (std::size_t i = 0; V <= TopLogitsArgs::kTopMax && i < picks.size(); ++i) {
            EXPECT_EQ(order(picks[i].row, total[i]), picks[i].id) << "V " << V << " pick " << i;
        }
    }
}

TEST_P(Logprobs, TopLogitsAreStable) {
    for (const std::int64_t V : {1, 20, 64, 1000, 5003}) {
        Matrix<float> logits = random_matrix<float>(5, V, 4);
        for (std::int64_t i = 0; i < V; ++i) {
            logits(1, i) = static_cast<float>(i);         // the worst order
            logits(2, i) = static_cast<float>(-(i / 3));  // ties
            logits(3, i) = i % 4 == 0 ? kNan : -kInf;     // nothing but -inf
            logits(4, i) = i % 4 == 0 ? kNan : logits(4, i);
        }
        for (const std::int64_t n : {0, 1, 2, 20, 1000}) {
            if (n > V) continue;
            SCOPED_TRACE(testing::Message() << "V " << V << " n " << n);
            Matrix<TokenId> expected_ids(5, n, 0x11), actual_ids(5, n, 0x22);
            Matrix<float> expected_values(5, n, 0x11), actual_values(5, n, 0x22);
            top_logits_ref(
                {.logits = logits.view(),
                 .vocab_begin = 7,
                 .ids = expected_ids.view(),
                 .values = expected_values.view()}
            );
            ops().top_logits(
                {.logits = logits.view(),
                 .vocab_begin = 7,
                 .ids = actual_ids.view(),
                 .values = actual_values.view(),
                 .stream = stream_of(pool_)}
            );
            EXPECT_EQ(actual_ids.bits(), expected_ids.bits());
            EXPECT_EQ(actual_values.bits(), expected_values.bits());
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
