#include "kernels/logprobs.h"
#include "tests/kernels/cuda_support.h"

#include <limits>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CudaLogprobs : public OnCuda {
  protected:
    std::vector<SoftmaxStats> stats_of(
        View2<const float> logits, const std::vector<SoftmaxRow>& rows
    ) {
        const DeviceArray<SoftmaxRow> rows_there(rows, stream());
        const DeviceArray<SoftmaxStats> stats(
            std::vector<SoftmaxStats>(
                static_cast<std::size_t>(logits.rows), {.max = kNan, .sum = -1.0}
            ),
            stream()
        );
        const DeviceScratch scratch(
            cuda_ops()->softmax_stats_workspace_bytes(logits.rows, logits.cols), stream()
        );
        softmax_stats_cuda(
            {.logits = logits,
             .rows = rows_there.data(),
             .stats = stats.data(),
             .workspace = scratch.workspace(),
             .stream = stream()}
        );
        return stats.fetch();
    }
};

TEST_F(CudaLogprobs, MeetTheReferenceInEveryMode) {
    for (const std::int64_t V : {1, 15, 100, 1024, 4095, 4096, 4097, 20012}) {
        for (const double deviation : {0.1, 3.0, 30.0}) {
            SCOPED_TRACE(testing::Message() << "V " << V << " deviation " << deviation);
            const Matrix<float> logits = random_matrix<float>(3, V, 1, deviation);
            const OnDevice<float> there(logits, stream());
            const std::vector<SoftmaxRow> rows = {
                {},
                {.temperature = 0.6f},
                {.temperature = 1.5f, .kept_min = logits(2, V / 2) * (1.f / 1.5f)}};
            std::vector<SoftmaxStats> expected(3);
            softmax_stats_ref(
                {.logits = logits.view(), .rows = rows.data(), .stats = expected.data()}
            );
            const std::vector<SoftmaxStats> actual = stats_of(there.view(), rows);
            for (std::size_t r = 0; r < 3; ++r) {
                EXPECT_EQ(actual[r].max, expected[r].max);
                // Terms are positive: 16 sums in a thread, 5 in the warp, 8 over the warps, exp's 2
                // ulp and what the rounding of x - max does to it (e * 100 at most where it
                // counts).
                const double bound = (16.0 + 5.0 + 8.0 + 4.0 + 100.0) * kEps32;
                const double error = std::abs(std::log(actual[r].sum) - std::log(expected[r].sum));
                EXPECT_LE(error, bound);
                record_error(error, error / bound);
            }
        }
    }
}

TEST_F(CudaLogprobs, BannedAndNanLogitsHaveNoMass) {
    Matrix<float> logits(2, 40, 0);
    for (std::int64_t i = 0; i < 40; ++i) {
        logits(0, i) = i % 2 == 0 ? -kInf : i == 7 ? kNan : 1.f;
        logits(1, i) = -kInf;
    }
    const OnDevice<float> there(logits, stream());
    const std::vector<SoftmaxStats> stats = stats_of(there.view(), {{}, {}});
    EXPECT_EQ(stats[0].max, 1.f);
    EXPECT_EQ(stats[0].sum, 19.0);
    EXPECT_EQ(stats[1].sum, 0.0);
}

TEST_F(CudaLogprobs, P6_StatsDoNotDependOnBatchOrAddress) {
    Matrix<float> logits = random_matrix<float>(9, 12345, 2, 4.0);
    const OnDevice<float> there(logits, stream());
    const std::vector<SoftmaxRow> rows_of(9, {.temperature = 0.9f});
    const std::vector<SoftmaxStats> batch = stats_of(there.view(), rows_of);
    Matrix<float> shifted(1, 12346, 0x7f);
    for (const std::int64_t r : {0, 4, 8}) {
        for (std::int64_t i = 0; i < 12345; ++i) shifted(0, i + 1) = logits(r, i);
        const OnDevice<float> shifted_there(shifted, stream());
        View2<float> view = shifted_there.view();
        view.data += 1;
        view.cols -= 1;
        const SoftmaxStats alone = stats_of(view, {rows_of[0]})[0];
        EXPECT_EQ(alone.max, batch[static_cast<std::size_t>(r)].max);
        EXPECT_EQ(alone.sum, batch[static_cast<std::size_t>(r)].sum);
    }
}

TEST_F(CudaLogprobs, PickedLogitsAreMinusInfinityOnOtherRanks) {
    const Matrix<float> logits = random_matrix<float>(2, 30, 3);
    const OnDevice<float> there(logits, stream());
    const DeviceArray<LogitPick> picks(
        std::vector<LogitPick>{
            {.row = 1, .id = TokenId{100}},
            {.row = 0, .id = TokenId{129}},
            {.row = 0, .id = TokenId{130}},
            {.row = 1, .id = TokenId{99}}},
        stream()
    );
    const DeviceArray<float> values(std::vector<float>(4, kNan), stream());
    pick_logits_cuda(
        {.logits = there.view(),
         .vocab_begin = 100,
         .picks = picks.data(),
         .num_picks = 4,
         .values = values.data(),
         .stream = stream()}
    );
    EXPECT_EQ(values.fetch(), (std::vector<float>{logits(1, 0), logits(0, 29), -kInf, -kInf}));
}

TEST_F(CudaLogprobs, CountsBeforeAPickMeetTheReference) {
    for (const std::int64_t V : {1, 31, 256, 257, 5003}) {
        Matrix<float> logits = random_matrix<float>(3, V, 7);
        for (std::int64_t i = 0; i < V; ++i) {
            logits(1, i) = static_cast<float>(-(i / 3));                  // ties
            logits(2, i) = i % 5 == 0 ? -kInf : i % 5 == 1 ? kNan : 1.f;  // banned ones, and NaN
        }
        const OnDevice<float> there(logits, stream());
        std::vector<LogitPick> picks;
        std::vector<float> values;
        for (std::int32_t r = 0; r < 3; ++r) {
            for (std::int64_t i = 0; i < V; i += V / 11 + 1) {
                picks.push_back({.row = r, .id = static_cast<TokenId>(500 + i)});
                values.push_back(logits(r, i));
            }
        }
        std::vector<std::int32_t> expected(picks.size(), -1);
        CountBeforeArgs args{
            .logits = logits.view(),
            .vocab_begin = 500,
            .picks = picks.data(),
            .values = values.data(),
            .num_picks = static_cast<std::int64_t>(picks.size()),
            .counts = expected.data()};
        count_before_ref(args);
        const DeviceArray<LogitPick> picks_there(picks, stream());
        const DeviceArray<float> values_there(values, stream());
        const DeviceArray<std::int32_t> counts(
            std::vector<std::int32_t>(picks.size(), -2), stream()
        );
        args.logits = there.view();
        args.picks = picks_there.data();
        args.values = values_there.data();
        args.counts = counts.data();
        args.stream = stream();
        count_before_cuda(args);
        EXPECT_EQ(counts.fetch(), expected) << "V " << V;
    }
}

TEST_F(CudaLogprobs, TopLogitsAreStable) {
    for (const std::int64_t V : {1, 20, 64, 1000, 5003}) {
        Matrix<float> logits = random_matrix<float>(5, V, 4);
        for (std::int64_t i = 0; i < V; ++i) {
            logits(1, i) = static_cast<float>(i);         // the worst order
            logits(2, i) = static_cast<float>(-(i / 3));  // ties
            logits(3, i) = i % 4 == 0 ? kNan : -kInf;     // nothing but -inf
            logits(4, i) = i % 4 == 0 ? kNan : i % 4 == 1 ? -0.f : 0.f;
        }
        const OnDevice<float> there(logits, stream());
        for (const std::int64_t n : {0, 1, 2, 20, 1000}) {
            if (n > V) continue;
            SCOPED_TRACE(testing::Message() << "V " << V << " n " << n);
            Matrix<TokenId> expected_ids(5, n, 0x11), actual_ids(5, n, 0x22);
            Matrix<float> expected_values(5, n, 0x11), actual_values(5, n, 0x22);
            top_logits_ref(
                {.logits = logits.view(),
                 .vocab_begin = 500,
                 .ids = expected_ids.view(),
                 .values = expected_values.view()}
            );
            const OnDevice<TokenId> ids(actual_ids, stream());
            const OnDevice<float> values(actual_values, stream());
            top_logits_cuda(
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
