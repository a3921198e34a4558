// Tests the records of ranks that hold a part of the vocabulary each: together they give the result
// of one rank with whole rows.
#include "kernels/rank_records.h"

#include "tests/kernels/backend.h"

#include <cmath>
#include <limits>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr TokenId kGarbageId{-77};

// The ranks' records of rows whose vocabulary is cut: the first ids of the ranks' parts, and the
// end of the last.
struct Merged {
    std::vector<TokenId> ids{};
    std::vector<TokenId> tokens{};
    std::vector<LogitPick> picks{};
    std::vector<float> logits{};
    std::vector<SoftmaxStats> stats{};
};

class RankRecords : public OnBackend {
  protected:
    // Rows with a draw of their own are drawn, for other rows the given ids are looked up.
    Merged merge_of(
        const Matrix<float>& logits,
        const std::vector<SampleRow>& draws,
        const std::vector<TokenId>& given,
        const std::vector<std::int64_t>& cuts
    ) {
        const std::size_t R = given.size();
        const auto num_rows = static_cast<std::int64_t>(R);
        const auto num_ranks = cuts.size() - 1;
        const auto bytes = static_cast<std::size_t>(rank_records_bytes(num_rows));
        const auto there = put(logits);
        const auto device_draws = put(draws);
        const auto softmax = put(softmax_rows(draws));
        const auto all = put(std::vector<std::byte>(bytes * num_ranks, std::byte{0x5a}));
        const auto tokens = put(std::vector<TokenId>(R, kGarbageId));
        std::vector<RankRow> rows(R);
        for (std::size_t rank = 0; rank < num_ranks; ++rank) {
            const std::int64_t begin = cuts[rank];
            const View2<float> part = columns(there.view(), begin, cuts[rank + 1] - begin);
            const auto choices = put(std::vector<Choice>(R));
            const auto num_nonfinite = put(std::vector<std::int32_t>(R, 9));
            const auto stats = put(std::vector<SoftmaxStats>(R, {.max = 3.f, .sum = -1.0}));
            for (std::size_t r = 0; r < R; ++r) {
                rows[r] = {.given = given[r], .kind = RankRowKind::kGiven};
                if (given[r] != kGarbageId) continue;
                rows[r].kind = RankRowKind::kDrawn;
                rows[r].token = tokens.data() + r;
                if (part.cols > 0) rows[r].choice = choices.data() + r;
            }
            const auto device_rows = put(rows);
            if (part.cols > 0) {
                reduce(part, begin, device_draws, softmax, choices, num_nonfinite, stats);
            }
            ops().make_rank_records(
                {.logits = part,
                 .vocab_begin = begin,
                 .rows = device_rows.data(),
                 .num_nonfinite = num_nonfinite.data(),
                 .stats = stats.data(),
                 .records = reinterpret_cast<RankRecord*>(all.data() + rank * bytes),
                 .stream = stream()}
            );
        }
        const auto device_rows = put(rows);
        const auto ids = put(std::vector<TokenId>(R, kGarbageId));
        const auto picks = put(std::vector<LogitPick>(R));
        const auto picked = put(std::vector<float>(R, 7.f));
        const auto stats = put(std::vector<SoftmaxStats>(R, {.max = 7.f, .sum = -7.0}));
        ops().merge_rank_records(
            {.all = all.data(),
             .num_ranks = static_cast<int>(num_ranks),
             .rows = device_rows.data(),
             .num_rows = num_rows,
             .ids = ids.data(),
             .picks = picks.data(),
             .logits = picked.data(),
             .stats = stats.data(),
             .stream = stream()}
        );
        return {ids.fetch(), tokens.fetch(), picks.fetch(), picked.fetch(), stats.fetch()};
    }

    static std::vector<SoftmaxRow> softmax_rows(const std::vector<SampleRow>& draws) {
        std::vector<SoftmaxRow> rows;
        for (const SampleRow& draw : draws)
            rows.push_back({.temperature = draw.temperature > 0.f ? draw.temperature : 1.f});
        return rows;
    }

  private:
    void reduce(
        View2<float> part,
        std::int64_t begin,
        const PlacedArray<SampleRow>& draws,
        const PlacedArray<SoftmaxRow>& softmax,
        const PlacedArray<Choice>& choices,
        const PlacedArray<std::int32_t>& num_nonfinite,
        const PlacedArray<SoftmaxStats>& stats
    ) {
        const Scratch for_draws = scratch(ops().sample_workspace_bytes(part.rows, part.cols));
        const Scratch for_sums = scratch(ops().softmax_stats_workspace_bytes(part.rows, part.cols));
        ops().sample(
            {.logits = part,
             .vocab_begin = begin,
             .rows = draws.data(),
             .choices = choices.data(),
             .num_nonfinite = num_nonfinite.data(),
             .workspace = for_draws.workspace(),
             .stream = stream()}
        );
        ops().softmax_stats(
            {.logits = part,
             .rows = softmax.data(),
             .stats = stats.data(),
             .workspace = for_sums.workspace(),
             .stream = stream()}
        );
    }
};
PITSTOP_ON_BACKENDS(RankRecords, Order::kDefault);

// Greedy and drawn rows, and given ids in every part. Parts of one id, of none, and unequal ones.
TEST_P(RankRecords, TogetherAreWhatTheWholeRowGives) {
    constexpr std::int64_t V = 1003;
    const std::size_t R = is_gpu() ? 130 : 40;  // rows of more than one block
    const Matrix<float> logits = random_matrix<float>(static_cast<std::int64_t>(R), V, 3, 2.0);
    std::vector<SampleRow> draws(R);
    std::vector<TokenId> given(R, kGarbageId);
    for (std::size_t r = 0; r < R; ++r) {
        if (r % 3 == 2) {
            given[r] = static_cast<TokenId>(r * 7919 % V);
        } else if (r % 3 == 1) {
            draws[r] = {.temperature = 0.8f, .seed = 100 + r, .position = 5};
        }
    }
    std::vector<Choice> expected(R);
    std::vector<SoftmaxStats> sums(R);
    std::vector<Choice> space(R);
    sample_ref(
        {.logits = logits.view(),
         .rows = draws.data(),
         .choices = expected.data(),
         .workspace = {space.data(), static_cast<std::int64_t>(R * sizeof(Choice))}}
    );
    const std::vector<SoftmaxRow> softmax = softmax_rows(draws);
    softmax_stats_ref({.logits = logits.view(), .rows = softmax.data(), .stats = sums.data()});
    for (const std::vector<std::int64_t>& cuts : std::vector<std::vector<std::int64_t>>{
             {0, V}, {0, 502, V}, {0, 251, 502, 753, V}, {0, 1, 400, V, V}}) {
        SCOPED_TRACE(testing::Message() << cuts.size() - 1 << " ranks");
        const Merged merged = merge_of(logits, draws, given, cuts);
        for (std::size_t r = 0; r < R; ++r) {
            SCOPED_TRACE(testing::Message() << "row " << r);
            const bool is_drawn = r % 3 != 2;
            const TokenId id = is_drawn ? expected[r].id : given[r];
            EXPECT_EQ(merged.ids[r], is_drawn ? id : TokenId{0});
            EXPECT_EQ(merged.tokens[r], is_drawn ? id : kGarbageId);
            EXPECT_EQ(merged.picks[r].row, static_cast<std::int32_t>(r));
            EXPECT_EQ(merged.picks[r].id, id);
            EXPECT_EQ(merged.logits[r], logits(static_cast<std::int64_t>(r), raw(id)));
            const double whole = double{sums[r].max} + std::log(sums[r].sum);
            const double parts = double{merged.stats[r].max} + std::log(merged.stats[r].sum);
            // Each part is within logprobs' bound; the merge adds roundings of doubles.
            EXPECT_NEAR(parts, whole, 360 * 0x1p-24 + 0x1p-21);
        }
    }
}

// A logit that is not finite on any rank makes the row's draw not finite. A row of equal scores
// gives its lowest id.
TEST_P(RankRecords, AFindingOfOneRankHoldsForTheRow) {
    Matrix<float> logits(4, 12, 0);
    for (std::int64_t i = 0; i < 12; ++i) {
        logits(0, i) = 1.f;
        logits(1, i) = i == 9 ? kInf : 0.f;
        logits(2, i) = i == 0 ? std::numeric_limits<float>::quiet_NaN() : 0.f;
        logits(3, i) = static_cast<float>(i);
    }
    const std::vector<TokenId> given{kGarbageId, kGarbageId, TokenId{7}, TokenId{7}};
    const Merged merged = merge_of(logits, std::vector<SampleRow>(4), given, {0, 4, 8, 12});
    EXPECT_EQ(
        merged.ids, (std::vector<TokenId>{TokenId{0}, kNotFiniteDraw, kNotFiniteDraw, TokenId{0}})
    );
    EXPECT_EQ(merged.tokens[1], kNotFiniteDraw);
    EXPECT_EQ(merged.logits[3], 7.f);
    EXPECT_NEAR(
        double{merged.stats[0].max} + std::log(merged.stats[0].sum), 1.0 + std::log(12.0), 1e-6
    );
}

// A rank that alone has candidates draws for all. If that rank could not draw, no rank did.
TEST_P(RankRecords, ADrawOfOneRankIsTheRows) {
    const std::vector<Choice> choices = {
        {.id = TokenId{70}, .score = -3.f}, {.id = TokenId{5}, .score = -kInf}};
    const auto device_choices = put(choices);
    const Matrix<float> logits = random_matrix<float>(2, 8, 5);
    const auto there = put(logits);
    const auto num_nonfinite = put(std::vector<std::int32_t>(2, 0));
    const auto stats = put(std::vector<SoftmaxStats>(2, {.max = 1.f, .sum = 2.0}));
    const auto bytes = static_cast<std::size_t>(rank_records_bytes(2));
    const auto all = put(std::vector<std::byte>(2 * bytes));
    std::vector<RankRow> rows(2);
    for (const std::size_t rank : {0u, 1u}) {
        for (std::size_t r = 0; r < 2; ++r)
            rows[r].choice = rank == 0 ? device_choices.data() + r : nullptr;
        const auto device_rows = put(rows);
        ops().make_rank_records(
            {.logits = there.view(),
             .vocab_begin = static_cast<std::int64_t>(8 * rank),
             .rows = device_rows.data(),
             .num_nonfinite = num_nonfinite.data(),
             .stats = stats.data(),
             .records = reinterpret_cast<RankRecord*>(all.data() + rank * bytes),
             .stream = stream()}
        );
    }
    const auto device_rows = put(rows);
    const auto ids = put(std::vector<TokenId>(2, kGarbageId));
    const auto picks = put(std::vector<LogitPick>(2));
    const auto picked = put(std::vector<float>(2));
    const auto sums = put(std::vector<SoftmaxStats>(2));
    ops().merge_rank_records(
        {.all = all.data(),
         .num_ranks = 2,
         .rows = device_rows.data(),
         .num_rows = 2,
         .ids = ids.data(),
         .picks = picks.data(),
         .logits = picked.data(),
         .stats = sums.data(),
         .stream = stream()}
    );
    EXPECT_EQ(ids.fetch(), (std::vector<TokenId>{TokenId{70}, kDrewNothing}));
    EXPECT_NEAR(sums.fetch()[0].sum * std::exp(double{sums.fetch()[0].max} - 1.0), 4.0, 1e-9);
}

}  // namespace
}  // namespace pitstop::kernels::test
