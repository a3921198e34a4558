// Tests embedding, note_draws, rmsnorm, silu_mul, gather_rows, count_nonfinite and penalties: the
// ops whose rows are independent. Some widths fit 16-byte loads, and some do not.
#include "tests/kernels/backend.h"

#include <cmath>
#include <limits>

namespace pitstop::kernels::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kWidths[] = {
    1, 7, 8, 15, 16, 17, 24, 63, 64, 65, 128, 130, 1000, 1024, 2056, 4096, 8192, 8200};

class Embedding : public OnBackend {};
PITSTOP_ON_BACKENDS(Embedding, Order::kDefault);

TEST_P(Embedding, GivesItsRowsAndZerosForOtherRanks) {
    for (const std::int64_t H : kWidths) {
        SCOPED_TRACE(testing::Message() << "H " << H);
        const Matrix<bf16> table = random_matrix<bf16>(5, H, 1);
        const std::vector<TokenId> ids = {
            TokenId{10},
            TokenId{14},
            TokenId{9},
            TokenId{15},
            TokenId{-1},
            TokenId{12},
            TokenId{1 << 30}};
        Matrix<float> expected(7, H, 0x11);
        Matrix<float> actual(7, H, 0x22);
        embedding_ref(
            {.ids = ids.data(), .table = table.view(), .vocab_begin = 10, .y = expected.view()}
        );
        const auto device_ids = put(ids);
        const auto device_table = put(table);
        const auto y = put(actual);
        ops().embedding(
            {.ids = device_ids.data(),
             .table = device_table.view(),
             .vocab_begin = 10,
             .y = y.view(),
             .stream = stream()}
        );
        y.fetch(actual);
        EXPECT_EQ(actual.bits(), expected.bits());
        EXPECT_EQ(actual.value(1, 0), table.value(4, 0));
        EXPECT_EQ(actual.value(3, 0), 0.0);
    }
}

// Ids that the last step drew, which the host does not know.
TEST_P(Embedding, TakesWhatWasSampledInASlot) {
    const Matrix<bf16> table = random_matrix<bf16>(5, 24, 1);
    const std::vector<TokenId> ids = {
        sampled_in(2), TokenId{3}, sampled_in(0), TokenId{-1}, sampled_in(1), sampled_in(3)};
    const std::vector<TokenId> sampled = {TokenId{4}, TokenId{-1}, TokenId{1}, TokenId{-2}};
    const std::vector<TokenId> plain = {
        TokenId{1}, TokenId{3}, TokenId{4}, TokenId{-1}, TokenId{-1}, TokenId{-2}};
    Matrix<float> expected(6, 24, 0x11);
    Matrix<float> actual(6, 24, 0x22);
    embedding_ref({.ids = plain.data(), .table = table.view(), .y = expected.view()});
    const auto device_ids = put(ids);
    const auto device_sampled = put(sampled);
    const auto device_table = put(table);
    const auto y = put(actual);
    ops().embedding(
        {.ids = device_ids.data(),
         .sampled = device_sampled.data(),
         .table = device_table.view(),
         .y = y.view(),
         .stream = stream()}
    );
    y.fetch(actual);
    EXPECT_EQ(actual.bits(), expected.bits());
    EXPECT_EQ(actual.value(0, 0), table.value(1, 0));
    EXPECT_EQ(actual.value(5, 0), 0.0);
}

class NoteDraws : public OnBackend {};
PITSTOP_ON_BACKENDS(NoteDraws, Order::kDefault);

TEST_P(NoteDraws, GivesTheIdToWhoeverNeedsIt) {
    const std::vector<Choice> choices = {
        {.id = TokenId{7}, .score = 1.f, .kept_min = 0.5f},
        {.id = TokenId{9}, .score = -kInf, .kept_min = 2.f},
        {.id = TokenId{3}, .score = 2.f, .kept_min = -1.f}};
    constexpr std::size_t kRows = 300;  // rows of more than one block
    const auto device_choices = put(choices);
    const auto tokens = put(std::vector<TokenId>(kRows, TokenId{-7}));
    const auto picks = put(std::vector<LogitPick>(kRows, {.row = 5, .id = TokenId{-8}}));
    const auto softmax =
        put(std::vector<SoftmaxRow>(kRows, {.temperature = 0.5f, .kept_min = 9.f}));
    const auto ids = put(std::vector<TokenId>(kRows, TokenId{-9}));
    std::vector<DrawnRow> rows(kRows);
    std::vector<std::int32_t> num_nonfinite(kRows, 0);
    for (std::size_t r = 0; r + 2 < kRows; ++r) {
        rows[r].choice = device_choices.data() + r % 3;
        if (r % 5 != 4) rows[r].token = tokens.data() + r;
        if (r % 7 != 6) rows[r].pick = picks.data() + r;
        if (r % 2 == 1) rows[r].softmax = softmax.data() + r;
        num_nonfinite[r] = r % 11 == 10 ? 2 : 0;
    }
    num_nonfinite[kRows - 1] = 1;  // the last two are scored
    const auto device_rows = put(rows);
    const auto device_nonfinite = put(num_nonfinite);
    const auto kept_mins = put(std::vector<float>(kRows, 5.f));
    ops().note_draws(
        {.rows = device_rows.data(),
         .num_nonfinite = device_nonfinite.data(),
         .num_rows = std::int64_t{kRows},
         .ids = ids.data(),
         .kept_mins = kept_mins.data(),
         .stream = stream()}
    );
    const std::vector<TokenId> all = ids.fetch();
    const std::vector<float> all_kept_mins = kept_mins.fetch();
    const std::vector<TokenId> noted = tokens.fetch();
    const std::vector<LogitPick> picked = picks.fetch();
    const std::vector<SoftmaxRow> kept = softmax.fetch();
    for (std::size_t r = 0; r + 2 < kRows; ++r) {
        SCOPED_TRACE(testing::Message() << "row " << r);
        const Choice& choice = choices[r % 3];
        const TokenId drawn = r % 3 == 1 ? kDrewNothing : choice.id;
        const TokenId id = r % 11 == 10 ? kNotFiniteDraw : drawn;
        EXPECT_EQ(all[r], id);
        EXPECT_EQ(all_kept_mins[r], choice.kept_min);
        EXPECT_EQ(noted[r], r % 5 != 4 ? id : TokenId{-7});
        EXPECT_EQ(picked[r].id, r % 7 != 6 ? choice.id : TokenId{-8});
        EXPECT_EQ(picked[r].row, 5);
        EXPECT_EQ(kept[r].kept_min, r % 2 == 1 ? choice.kept_min : 9.f);
        EXPECT_EQ(kept[r].temperature, 0.5f);
    }
    EXPECT_EQ(all[kRows - 2], TokenId{0});
    EXPECT_EQ(all[kRows - 1], kNotFiniteDraw);
    EXPECT_EQ(all_kept_mins[kRows - 1], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(noted[kRows - 1], TokenId{-7});
}

class RmsNorm : public OnBackend {
  protected:
    // All squares are positive, so the sum errs relatively: on the CPU by H/64 sums in a lane and 6
    // in the tree (twice in scalar, whose products round too); on a GPU by ceil(H / 1024) * 4 sums
    // in a thread, 5 in the warp, 8 over the warps and rsqrt's 2 ulp; the root halves it; division,
    // scaling and rounding add 5.
    [[nodiscard]] double roundings(std::int64_t H) const {
        const auto h = static_cast<double>(H);
        return is_gpu() ? std::ceil(h / 1024.0) * 4.0 + 22.0 : h / 64.0 + 12.0;
    }

    template <class Y>
    void expect_reference(std::int64_t H, bool has_delta, float w_offset = 0.f) {
        SCOPED_TRACE(
            testing::Message() << "H " << H << " delta " << has_delta << " offset " << w_offset
        );
        const std::int64_t num_rows = is_gpu() ? 3 : 9;
        const Matrix<float> x = random_matrix<float>(num_rows, H, 1, 5.0);
        const Matrix<float> delta = random_matrix<float>(num_rows, H, 2);
        const Matrix<bf16> w = random_matrix<bf16>(1, H, 3);
        Matrix<float> x_expected = x;
        Matrix<float> x_actual = x;
        Matrix<Y> expected(num_rows, H, 0x11);
        Matrix<Y> actual(num_rows, H, 0x22);
        rmsnorm_ref(
            {.x = x_expected.view(),
             .delta = has_delta ? delta.view() : View2<const float>{},
             .w = &w(0, 0),
             .y = expected.view(),
             .w_offset = w_offset,
             .eps = 1e-6f}
        );
        const auto device_x = put(x_actual);
        const auto device_delta = put(delta);
        const auto device_w = put(w);
        const auto y = put(actual);
        ops().rmsnorm(
            {.x = device_x.view(),
             .delta = has_delta ? View2<const float>(device_delta.view()) : View2<const float>{},
             .w = device_w.view().data,
             .y = y.view(),
             .w_offset = w_offset,
             .eps = 1e-6f,
             .stream = stream()}
        );
        y.fetch(actual);
        device_x.fetch(x_actual);
        EXPECT_EQ(x_actual.bits(), x_expected.bits());
        const double relative = roundings(H) * kEps32 + 2.02 * rounding_of(kDTypeOf<Y>);
        expect_within(actual, expected, [&](std::int64_t r, std::int64_t c) {
            return relative * std::abs(expected.value(r, c));
        });
    }
};
PITSTOP_ON_BACKENDS(RmsNorm, Order::kDefault);

TEST_P(RmsNorm, MeetsTheReferenceOnAwkwardShapes) {
    for (const std::int64_t H : kWidths) {
        for (const bool has_delta : {false, true}) {
            expect_reference<float>(H, has_delta);
            expect_reference<bf16>(H, has_delta);
            expect_reference<float>(H, has_delta, /*w_offset=*/1.f);
            expect_reference<bf16>(H, has_delta, /*w_offset=*/1.f);
        }
    }
}

TEST_P(RmsNorm, ARowOfZerosStaysZero) {
    Matrix<float> x(1, 64, 0);
    const Matrix<bf16> w = random_matrix<bf16>(1, 64, 3);
    const auto device_x = put(x);
    const auto device_w = put(w);
    ops().rmsnorm(
        {.x = device_x.view(),
         .w = device_w.view().data,
         .y = device_x.view(),
         .eps = 1e-6f,
         .stream = one_thread()}
    );
    device_x.fetch(x);
    for (std::int64_t i = 0; i < 64; ++i) EXPECT_EQ(x.value(0, i), 0.0);
}

// H alone fixes the order of the sum: not the number of rows or threads, nor the row's place.
TEST_P(RmsNorm, P6_RowDependsOnNeitherBatchNorAddress) {
    const std::int64_t num_rows = is_gpu() ? 9 : 333;
    for (const std::int64_t H : kWidths) {
        const Matrix<float> x = random_matrix<float>(num_rows, H, 1);
        const Matrix<bf16> w = random_matrix<bf16>(1, H, 2);
        Matrix<float> x_shifted(2, H + 1, 0x7f);  // the same row, 4 bytes off
        for (std::int64_t i = 0; i < H; ++i) x_shifted(1, i + 1) = x(7, i);
        Matrix<float> batch(num_rows, H, 0x11);
        Matrix<float> alone(1, H, 0x22);
        const auto device_w = put(w);
        const auto device_x = put(x);
        const auto device_batch = put(batch);
        ops().rmsnorm(
            {.x = device_x.view(),
             .w = device_w.view().data,
             .y = device_batch.view(),
             .eps = 1e-5f,
             .stream = stream()}
        );
        const auto device_shifted = put(x_shifted);
        const auto device_alone = put(alone);
        ops().rmsnorm(
            {.x = columns(rows(device_shifted.view(), 1, 1), 1, H),
             .w = device_w.view().data,
             .y = device_alone.view(),
             .eps = 1e-5f,
             .stream = one_thread()}
        );
        device_batch.fetch(batch);
        device_alone.fetch(alone);
        EXPECT_EQ(alone.bits(0), batch.bits(7)) << "H " << H;
    }
}

class SiluMul : public OnBackend {
  protected:
    template <class X, class Y>
    void expect_reference(std::int64_t F, double deviation) {
        SCOPED_TRACE(testing::Message() << "F " << F << " deviation " << deviation);
        const std::int64_t num_rows = is_gpu() ? 3 : 5;
        const Matrix<X> gate = random_matrix<X>(num_rows, F, 1, deviation);
        const Matrix<X> up = random_matrix<X>(num_rows, F, 2);
        Matrix<Y> expected(num_rows, F, 0x11);
        Matrix<Y> actual(num_rows, F, 0x22);
        silu_mul_ref({.gate = gate.view(), .up = up.view(), .y = expected.view()});
        const auto device_gate = put(gate);
        const auto device_up = put(up);
        const auto y = put(actual);
        ops().silu_mul(
            {.gate = device_gate.view(), .up = device_up.view(), .y = y.view(), .stream = stream()}
        );
        y.fetch(actual);
        // exp errs by 2^-22 on the CPU, exp and the fast division by 2 ulp each on a GPU; sum,
        // quotient and product by e each. Where exp leaves fp32's range (gate beyond -87) the
        // result is below 88 * 2^-126, and may differ by that or be 0.
        const double own = is_gpu() ? 10.0 * kEps32 : 0x1p-22 + 4.0 * kEps32;
        const double relative = own + 2.02 * rounding_of(kDTypeOf<Y>);
        expect_within(actual, expected, [&](std::int64_t r, std::int64_t c) {
            return relative * std::abs(expected.value(r, c)) +
                   88.0 * 0x1p-125 * std::abs(up.value(r, c));
        });
    }
};
PITSTOP_ON_BACKENDS(SiluMul, Order::kDefault);

TEST_P(SiluMul, MeetsTheReferenceOnAwkwardShapes) {
    for (const std::int64_t F :
         {1, 7, 8, 15, 16, 17, 24, 63, 64, 65, 130, 1000, 2048, 2056, 4099}) {
        for (const double deviation : {1.0, 60.0}) {
            expect_reference<float, float>(F, deviation);
            expect_reference<float, bf16>(F, deviation);
            expect_reference<bf16, float>(F, deviation);
            expect_reference<bf16, bf16>(F, deviation);
        }
    }
}

class GatherRows : public OnBackend {
  protected:
    template <class T>
    void expect_rows(std::int64_t H) {
        const Matrix<T> x = random_matrix<T>(11, H, 1);
        const std::vector<std::int32_t> index = {10, 0, 0, 5};
        Matrix<T> actual(4, H, 0x22);
        const auto device_x = put(x);
        const auto y = put(actual);
        const auto device_index = put(index);
        ops().gather_rows(
            {.x = device_x.view(),
             .row_index = device_index.data(),
             .y = y.view(),
             .stream = stream()}
        );
        y.fetch(actual);
        for (std::int64_t i = 0; i < 4; ++i)
            EXPECT_EQ(actual.bits(i), x.bits(index[static_cast<std::size_t>(i)])) << "H " << H;
    }
};
PITSTOP_ON_BACKENDS(GatherRows, Order::kDefault);

TEST_P(GatherRows, CopiesTheRowsAskedFor) {
    for (const std::int64_t H : {1, 33, 128, 4096}) {
        expect_rows<float>(H);
        expect_rows<bf16>(H);
    }
}

class CountNonfinite : public OnBackend {};
PITSTOP_ON_BACKENDS(CountNonfinite, Order::kDefault);

TEST_P(CountNonfinite, CountsInEveryPlaceOfARow) {
    for (const std::int64_t V : {1, 15, 37, 4096, 4097, 9000}) {
        SCOPED_TRACE(testing::Message() << "V " << V);
        Matrix<float> logits = random_matrix<float>(4, V, 1, 5.0);
        row(logits.view(), 0)[0] = kInf;
        row(logits.view(), 0)[static_cast<std::size_t>(V - 1)] =
            std::numeric_limits<float>::quiet_NaN();
        row(logits.view(), 2)[static_cast<std::size_t>(V / 2)] = -kInf;
        const auto there = put(logits);
        const auto counts = put(std::vector<std::int32_t>(4, -7));
        ops().count_nonfinite({.logits = there.view(), .counts = counts.data(), .stream = stream()}
        );
        EXPECT_EQ(counts.fetch(), (std::vector<std::int32_t>{V == 1 ? 1 : 2, 0, 1, 0}));
    }
}

// Three rows of logits and the changes to make; the rank has ids from 100 on.
struct PenaltyCase {
    Matrix<float> logits;
    std::vector<PenaltyRow> rows{};
    std::vector<std::int32_t> count_starts{};
    std::vector<TokenCount> counts{};
    std::vector<std::int32_t> bias_starts{};
    std::vector<LogitBias> biases{};
    std::vector<std::int32_t> mask_of{};  // empty: no row has a mask
    std::vector<std::uint32_t> masks{};
    std::int64_t mask_words = 0;
};

class Penalties : public OnBackend {
  protected:
    // Returns the logits after the op.
    Matrix<float> run(const PenaltyCase& one) {
        Matrix<float> actual = one.logits;
        const auto logits = put(actual);
        const auto rows = put(one.rows);
        const auto count_starts = put(one.count_starts);
        const auto counts = put(one.counts);
        const auto bias_starts = put(one.bias_starts);
        const auto biases = put(one.biases);
        const auto mask_of = put(one.mask_of);
        const auto masks = put(one.masks);
        ops().penalties(
            {.logits = logits.view(),
             .vocab_begin = 100,
             .rows = rows.data(),
             .count_starts = count_starts.data(),
             .counts = counts.data(),
             .bias_starts = bias_starts.data(),
             .biases = biases.data(),
             .mask_of = one.mask_of.empty() ? nullptr : mask_of.data(),
             .masks = masks.data(),
             .mask_words = one.mask_words,
             .stream = stream()}
        );
        logits.fetch(actual);
        return actual;
    }
};
PITSTOP_ON_BACKENDS(Penalties, Order::kDefault);

TEST_P(Penalties, AreAppliedInTheStatedOrderToTheRanksOwnIds) {
    PenaltyCase one{
        .logits = random_matrix<float>(3, 50, 1, 4.0),
        .rows =
            {{.repetition = 1.25f, .frequency = 0.5f, .presence = 0.25f}, {}, {.frequency = -1.f}},
        .count_starts = {0, 4, 4, 5},
        .counts =
            {{TokenId{110}, 3},
             {TokenId{111}, 0},
             {TokenId{99}, 1},
             {TokenId{150}, 1},
             {TokenId{149}, 2}},
        .bias_starts = {0, 1, 3, 3},
        .biases = {{TokenId{110}, 10.f}, {TokenId{100}, -kInf}, {TokenId{7}, 1.f}}};
    one.logits(0, 10) = 2.f;
    one.logits(0, 11) = -2.f;
    const Matrix<float>& before = one.logits;
    const Matrix<float> logits = run(one);
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

TEST_P(Penalties, AMaskBansTheIdsWhoseBitsAreZero) {
    for (const std::int64_t V : {1, 28, 29, 50, 300}) {
        SCOPED_TRACE(testing::Message() << "V " << V);
        PenaltyCase one{
            .logits = random_matrix<float>(4, V, 1, 4.0),
            .rows = std::vector<PenaltyRow>(4),
            .count_starts = {0, 0, 0, 0, 0},
            .bias_starts = {0, 0, 0, 1, 1},
            .biases = {{TokenId{100}, 2.f}},
            .mask_of = {1, -1, 0, 0},
            .mask_words = (100 + V + 31) / 32};
        const auto words = static_cast<std::size_t>(one.mask_words);
        for (std::size_t i = 0; i < 2 * words; ++i)  // whole words, and mixed ones
            one.masks.push_back(i % 3 == 0 ? 0 : i % 3 == 1 ? ~0U : 0x9e3779b9U * std::uint32_t(i));
        const Matrix<float> logits = run(one);
        for (std::int64_t r = 0; r < 4; ++r) {
            const std::int32_t mask = one.mask_of[static_cast<std::size_t>(r)];
            for (std::int64_t i = 0; i < V; ++i) {
                const auto id = static_cast<std::size_t>(100 + i);
                const float bias = r == 2 && i == 0 ? 2.f : 0.f;
                const bool is_allowed =
                    mask < 0 ||
                    (one.masks[static_cast<std::size_t>(mask) * words + id / 32] >> (id % 32) & 1
                    ) != 0;
                EXPECT_EQ(logits(r, i), is_allowed ? one.logits(r, i) + bias : -kInf)
                    << r << ", " << i;
            }
        }
    }
}

TEST_P(Penalties, MeetTheReferenceOnEveryRow) {
    PenaltyCase one{
        .logits = random_matrix<float>(3, 300, 1, 5.0),
        .rows =
            {{.repetition = 1.3f, .frequency = 0.2f, .presence = 0.5f}, {}, {.repetition = 0.8f}},
        .count_starts = {0},
        .bias_starts = {0}};
    for (int r = 0; r < 3; ++r) {
        for (std::int32_t i = 0; r != 1 && i < 250;
             ++i)  // also of other ranks: this one has 100 .. 400
            one.counts.push_back({.id = TokenId{2 * i + r}, .num_output = i % 5});
        for (std::int32_t i = 0; i < 150; ++i)
            one.biases.push_back(
                {.id = TokenId{3 * i}, .bias = i % 7 == 0 ? -kInf : 0.25f * static_cast<float>(i)}
            );
        one.count_starts.push_back(static_cast<std::int32_t>(one.counts.size()));
        one.bias_starts.push_back(static_cast<std::int32_t>(one.biases.size()));
    }
    Matrix<float> expected = one.logits;
    penalties_ref(
        {.logits = expected.view(),
         .vocab_begin = 100,
         .rows = one.rows.data(),
         .count_starts = one.count_starts.data(),
         .counts = one.counts.data(),
         .bias_starts = one.bias_starts.data(),
         .biases = one.biases.data()}
    );
    const Matrix<float> actual = run(one);
    // There are up to six roundings, each of at most e of the largest number on the way.
    for (std::int64_t r = 0; r < 3; ++r) {
        for (std::int64_t i = 0; i < 300; ++i) {
            if (std::isinf(expected(r, i))) {
                EXPECT_EQ(actual(r, i), expected(r, i));
            } else {
                EXPECT_NEAR(actual(r, i), expected(r, i), 6.0 * kEps32 * 100.0);
            }
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
