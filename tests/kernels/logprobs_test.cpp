#include "kernels/logprobs.h"

#include "tests/kernels/backend.h"

#include <limits>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Logprobs : public OnBackend {
  protected:
    // The stats of logits in the backend's memory.
    std::vector<SoftmaxStats> stats_of(
        View2<const float> logits, const std::vector<SoftmaxRow>& rows, Stream stream
    ) {
        const auto device_rows = put(rows);
        const auto stats = put(std::vector<SoftmaxStats>(rows.size(), {.max = kNan, .sum = -1.0}));
        const Scratch space =
            scratch(ops().softmax_stats_workspace_bytes(logits.rows, logits.cols));
        ops().softmax_stats(
            {.logits = logits,
             .rows = device_rows.data(),
             .stats = stats.data(),
             .workspace = space.workspace(),
             .stream = stream}
        );
        return stats.fetch();
    }

    // Terms are positive, so the sum errs relatively: on the CPU by 256 lane sums, 4 of the tree
    // and exp's 2^-21; on a GPU by 16 sums in a thread, 5 in the warp, 8 over the warps and exp's 2
    // ulp; and by the effect of rounding x - max (at most e * 100 for a term that counts).
    [[nodiscard]] double sum_bound() const {
        return is_gpu() ? (16.0 + 5.0 + 8.0 + 4.0 + 100.0) * kEps32
                        : (256.0 + 4.0 + 100.0) * kEps32 + 0x1p-21;
    }
};
PITSTOP_ON_BACKENDS(Logprobs, Order::kDefault);

TEST_P(Logprobs, MeetTheReferenceInEveryMode) {
    for (const std::int64_t V : {1, 15, 16, 17, 100, 1024, 4095, 4096, 4097, 20011, 20012}) {
        for (const double deviation : {0.1, 3.0, 30.0}) {
            SCOPED_TRACE(testing::Message() << "V " << V << " deviation " << deviation);
            const Matrix<float> logits = random_matrix<float>(3, V, 1, deviation);
            const auto there = put(logits);
            const std::vector<SoftmaxRow> rows = {
                {},
                {.temperature = 0.6f},
                {.temperature = 1.5f, .kept_min = logits(2, V / 2) * (1.f / 1.5f)}};
            std::vector<SoftmaxStats> expected(3);
            softmax_stats_ref(
                {.logits = logits.view(), .rows = rows.data(), .stats = expected.data()}
            );
            const std::vector<SoftmaxStats> actual = stats_of(there.view(), rows, stream());
            for (std::size_t r = 0; r < 3; ++r) {
                EXPECT_EQ(actual[r].max, expected[r].max);
                const double error = std::abs(std::log(actual[r].sum) - std::log(expected[r].sum));
                EXPECT_LE(error, sum_bound());
                record_error(error, error / sum_bound());
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
    const auto there = put(logits);
    const std::vector<SoftmaxStats> stats = stats_of(there.view(), {{}, {}}, one_thread());
    EXPECT_EQ(stats[0].max, 1.f);
    EXPECT_EQ(stats[0].sum, 19.0);
    EXPECT_EQ(stats[1].sum, 0.0);
    EXPECT_FLOAT_EQ(logprob(1.f, -kInf, stats[0]), -std::log(19.f));
    EXPECT_EQ(logprob(-kInf, -kInf, stats[0]), -kInf);
    EXPECT_EQ(logprob(1.f, 2.f, stats[0]), -kInf);
    EXPECT_EQ(merge(stats[0], stats[1]).sum, stats[0].sum);
    EXPECT_EQ(merge(stats[1], stats[0]).max, 1.f);
}

TEST_P(Logprobs, P6_StatsDoNotDependOnBatchThreadsOrAddress) {
    const std::int64_t V = 12345;
    const std::int64_t num_rows = is_gpu() ? 9 : 40;
    const Matrix<float> logits = random_matrix<float>(num_rows, V, 2, 4.0);
    const auto there = put(logits);
    const std::vector<SoftmaxRow> rows(static_cast<std::size_t>(num_rows), {.temperature = 0.9f});
    const std::vector<SoftmaxStats> batch = stats_of(there.view(), rows, stream());
    Matrix<float> shifted(1, V + 1, 0x7f);
    for (std::int64_t r = 0; r < num_rows; r += 4) {
        for (std::int64_t i = 0; i < V; ++i) shifted(0, i + 1) = logits(r, i);
        const auto device_shifted = put(shifted);
        const View2<float> view = columns(device_shifted.view(), 1, V);
        const SoftmaxStats alone = stats_of(view, {rows[0]}, one_thread())[0];
        EXPECT_EQ(alone.max, batch[static_cast<std::size_t>(r)].max);
        EXPECT_EQ(alone.sum, batch[static_cast<std::size_t>(r)].sum);
    }
}

TEST_P(Logprobs, PickedLogitsAreMinusInfinityOnOtherRanks) {
    const Matrix<float> logits = random_matrix<float>(2, 30, 3);
    const auto there = put(logits);
    const auto picks = put(std::vector<LogitPick>{
        {.row = 1, .id = TokenId{100}},
        {.row = 0, .id = TokenId{129}},
        {.row = 0, .id = TokenId{130}},
        {.row = 1, .id = TokenId{99}}});
    const auto values = put(std::vector<float>(4, kNan));
    ops().pick_logits(
        {.logits = there.view(),
         .vocab_begin = 100,
         .picks = picks.data(),
         .num_picks = 4,
         .values = values.data(),
         .stream = stream()}
    );
    EXPECT_EQ(values.fetch(), (std::vector<float>{logits(1, 0), logits(0, 29), -kInf, -kInf}));
}

// Four rows, and some ids of each. The rows have random logits; ties; some banned ids; and NaNs
// with banned ids.
struct CountBeforeCase {
    explicit CountBeforeCase(std::int64_t V) : logits(random_matrix<float>(4, V, 7)) {
        for (std::int64_t i = 0; i < V; ++i) {
            logits(1, i) = static_cast<float>(-(i / 3));
            logits(2, i) = i % 2 == 0 ? -kInf : logits(2, i);
            logits(3, i) = i % 5 == 0 ? -kInf : i % 5 == 1 ? kNan : 1.f;
        }
        for (std::int32_t r = 0; r < 4; ++r) {
            for (std::int64_t i = 0; i < V; i += V / 11 + 1) {
                picks.push_back({.row = r, .id = static_cast<TokenId>(i)});
                values.push_back(logits(r, i));
            }
        }
    }
    Matrix<float> logits;
    std::vector<LogitPick> picks{};
    std::vector<float> values{};
};

// Logprobs of each part of a vocabulary split over ranks; the counts add up to the place in the
// whole order.
TEST_P(Logprobs, CountsBeforeAPickAddUpToItsRank) {
    for (const std::int64_t V : {1, 15, 16, 17, 100, 257, 5003}) {
        const CountBeforeCase one(V);
        const std::size_t num_picks = one.picks.size();
        const auto logits = put(one.logits);
        const auto picks = put(one.picks);
        const auto values = put(one.values);
        std::vector<std::int32_t> total(num_picks, 0);
        const std::int64_t cut = V / 3;
        for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, V}}) {
            SCOPED_TRACE(testing::Message() << "V " << V << " from " << begin);
            if (begin == end) continue;
            std::vector<std::int32_t> expected(num_picks, -1);
            const auto counts = put(std::vector<std::int32_t>(num_picks, -2));
            CountBeforeArgs args{
                .logits = columns(one.logits.view(), begin, end - begin),
                .vocab_begin = begin,
                .picks = one.picks.data(),
                .values = one.values.data(),
                .num_picks = static_cast<std::int64_t>(num_picks),
                .counts = expected.data()};
            count_before_ref(args);
            args.logits = columns(logits.view(), begin, end - begin);
            args.picks = picks.data();
            args.values = values.data();
            args.counts = counts.data();
            args.stream = stream();
            ops().count_before(args);
            const std::vector<std::int32_t> actual = counts.fetch();
            EXPECT_EQ(actual, expected);
            for (std::size_t i = 0; i < num_picks; ++i) total[i] += actual[i];
        }
        if (V > TopLogitsArgs::kTopMax) continue;
        Matrix<TokenId> order(4, V, 0x11);
        Matrix<float> sorted(4, V, 0x11);
        top_logits_ref({.logits = one.logits.view(), .ids = order.view(), .values = sorted.view()});
        for (std::size_t i = 0; i < num_picks && one.picks[i].row < 3; ++i) {
            EXPECT_EQ(order(one.picks[i].row, total[i]), one.picks[i].id)
                << "V " << V << " pick " << i;
        }
    }
}

TEST_P(Logprobs, TopLogitsAreStable) {
    for (const std::int64_t V : {1, 20, 64, 1000, 5003}) {
        Matrix<float> logits = random_matrix<float>(6, V, 4);
        for (std::int64_t i = 0; i < V; ++i) {
            logits(1, i) = static_cast<float>(i);         // the worst order
            logits(2, i) = static_cast<float>(-(i / 3));  // ties
            logits(3, i) = i % 4 == 0 ? kNan : -kInf;     // nothing but -inf
            logits(4, i) = i % 4 == 0 ? kNan : logits(4, i);
            logits(5, i) = i % 4 == 0 ? kNan : i % 4 == 1 ? -0.f : 0.f;
        }
        const auto there = put(logits);
        for (const std::int64_t n : {0, 1, 2, 20, 1000}) {
            if (n > V) continue;
            SCOPED_TRACE(testing::Message() << "V " << V << " n " << n);
            Matrix<TokenId> expected_ids(6, n, 0x11), actual_ids(6, n, 0x22);
            Matrix<float> expected_values(6, n, 0x11), actual_values(6, n, 0x22);
            top_logits_ref(
                {.logits = logits.view(),
                 .vocab_begin = 500,
                 .ids = expected_ids.view(),
                 .values = expected_values.view()}
            );
            const auto ids = put(actual_ids);
            const auto values = put(actual_values);
            ops().top_logits(
                {.logits = there.view(),
                 .vocab_begin = 500,
                 .ids = ids.view(),
                 .values = values.view(),
                 .stream = stream()}
            );
            ids.fetch(actual_ids);
            values.fetch(actual_values);
            EXPECT_EQ(actual_ids.bits(), expected_ids.bits());
            EXPECT_EQ(actual_values.bits(), expected_values.bits());
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
