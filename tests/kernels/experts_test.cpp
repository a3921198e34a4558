// Tests the ops of a block of experts other than its router: expert_rows and expert_linear.
#include "kernels/expert_linear.h"
#include "kernels/expert_rows.h"
#include "tests/kernels/backend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace pitstop::kernels::test {
namespace {

// k different experts per token; some experts are chosen more often than others.
Matrix<std::int32_t> random_choice(std::int64_t T, std::int64_t k, std::int32_t E, unsigned seed) {
    Matrix<std::int32_t> chosen(T, k, 0x7f);
    std::mt19937 engine(seed);
    for (std::int64_t t = 0; t < T; ++t) {
        std::set<std::int32_t> taken;
        for (std::int64_t j = 0; j < k; ++j) {
            std::int32_t expert = 0;
            do {
                expert = static_cast<std::int32_t>(engine() % static_cast<unsigned>(E));
                if (engine() % 3 != 0) expert %= (E + 2) / 3;
            } while (!taken.insert(expert).second);
            chosen(t, j) = expert;
        }
    }
    return chosen;
}

struct Sorted {
    std::vector<std::int32_t> begins{};
    std::vector<std::int32_t> token_of{};
    Matrix<std::int32_t> row_of;
};

class ExpertRows : public OnBackend {
  protected:
    Sorted sort(const Matrix<std::int32_t>& chosen, std::int32_t first, std::int32_t num) {
        Sorted sorted{.row_of = Matrix<std::int32_t>(chosen.num_rows(), chosen.num_cols(), 0x22)};
        const auto pairs = static_cast<std::size_t>(chosen.num_rows() * chosen.num_cols());
        const auto device_chosen = put(chosen);
        const auto begins = put(std::vector<std::int32_t>(static_cast<std::size_t>(num) + 1, -7));
        const auto token_of = put(std::vector<std::int32_t>(pairs, -7));
        const auto row_of = put(sorted.row_of);
        ops().sort_rows_by_expert(
            {.chosen = device_chosen.view(),
             .first_expert = first,
             .num_experts = num,
             .begins = begins.data(),
             .token_of = token_of.data(),
             .row_of = row_of.view(),
             .stream = stream()}
        );
        sorted.begins = begins.fetch();
        sorted.token_of = token_of.fetch();
        row_of.fetch(sorted.row_of);
        return sorted;
    }
};
PITSTOP_ON_BACKENDS(ExpertRows, Order::kDefault);

TEST_P(ExpertRows, AreInOrderOfExpertTokenAndChoice) {
    for (const std::int64_t T : {1, 2, 37, 300}) {
        for (const auto& [E, k] : {std::pair{1, 1}, {8, 2}, {40, 6}, {300, 8}}) {
            for (const auto& [first, num] : {std::pair{0, E}, {E / 3, (E + 1) / 2}}) {
                SCOPED_TRACE(testing::Message() << T << " tokens, " << num << " of " << E);
                const Matrix<std::int32_t> chosen = random_choice(T, k, E, 7);
                const Sorted sorted = sort(chosen, first, num);
                std::int32_t row = 0;
                for (std::int32_t e = 0; e < num; ++e) {
                    ASSERT_EQ(sorted.begins[static_cast<std::size_t>(e)], row);
                    for (std::int64_t t = 0; t < T; ++t) {
                        for (std::int64_t j = 0; j < k; ++j) {
                            if (chosen(t, j) != first + e) continue;
                            ASSERT_EQ(sorted.row_of(t, j), row);
                            ASSERT_EQ(sorted.token_of[static_cast<std::size_t>(row)], t);
                            ++row;
                        }
                    }
                }
                ASSERT_EQ(sorted.begins.back(), row);
                for (std::size_t rest = static_cast<std::size_t>(row);
                     rest < sorted.token_of.size();
                     ++rest)
                    ASSERT_EQ(sorted.token_of[rest], 0);
                for (std::int64_t t = 0; t < T; ++t) {
                    for (std::int64_t j = 0; j < k; ++j) {
                        const bool is_other = chosen(t, j) < first || chosen(t, j) >= first + num;
                        ASSERT_EQ(sorted.row_of(t, j) == -1, is_other);
                    }
                }
            }
        }
    }
}

TEST_P(ExpertRows, AreSummedByTheirWeights) {
    for (const std::int64_t H : {1, 17, 64, 300}) {
        for (const bool has_shared : {false, true}) {
            SCOPED_TRACE(testing::Message() << "H " << H << " shared " << has_shared);
            constexpr std::int64_t kTokens = 21;
            const Matrix<float> rows = random_matrix<float>(kTokens * 3, H, 1);
            const Matrix<float> weights = random_matrix<float>(kTokens, 3, 2);
            const Matrix<float> shared = random_matrix<float>(kTokens, H, 3);
            const Matrix<float> gate = random_matrix<float>(kTokens, 1, 4, 4.0);
            Matrix<std::int32_t> row_of(kTokens, 3, 0x7f);
            for (std::int32_t t = 0; t < kTokens; ++t) {
                for (std::int32_t j = 0; j < 3; ++j)
                    row_of(t, j) = (t + j) % 5 == 4 ? -1 : (t * 7 + j * 11) % 63;
            }
            Matrix<float> expected(kTokens, H, 0x11);
            Matrix<float> actual(kTokens, H, 0x22);
            SumExpertRowsArgs args{
                .rows = rows.view(),
                .row_of = row_of.view(),
                .weights = weights.view(),
                .y = expected.view()};
            if (has_shared) args.shared = shared.view(), args.gate = gate.view();
            sum_expert_rows_ref(args);
            const auto device_rows = put(rows);
            const auto device_row_of = put(row_of);
            const auto device_weights = put(weights);
            const auto device_shared = put(shared);
            const auto device_gate = put(gate);
            const auto y = put(actual);
            args = {
                .rows = device_rows.view(),
                .row_of = device_row_of.view(),
                .weights = device_weights.view(),
                .y = y.view(),
                .stream = stream()};
            if (has_shared) args.shared = device_shared.view(), args.gate = device_gate.view();
            ops().sum_expert_rows(args);
            y.fetch(actual);
            expect_within(actual, expected, [&](std::int64_t t, std::int64_t h) {
                double magnitudes = has_shared ? std::abs(shared.value(t, h)) : 0.0;
                for (std::int64_t j = 0; j < 3; ++j) {
                    if (row_of(t, j) < 0) continue;
                    magnitudes += std::abs(weights.value(t, j) * rows.value(row_of(t, j), h));
                }
                return 16.0 * kEps32 * magnitudes + 1e-38;
            });
        }
    }
}

class ExpertLinear : public OnBackend {
  protected:
    // Weights of E experts in a checkpoint's layout: gate, up and down of one expert after another.
    struct Weights {
        Weights(std::int32_t E, std::int64_t num_outputs, std::int64_t K)
            : num_experts(E),
              N(num_outputs),
              stride(3 * num_outputs * K),
              all(random_matrix<bf16>(1, E * stride, 2)) {}
        std::int32_t num_experts;
        std::int64_t N;
        std::int64_t stride;
        Matrix<bf16> all;
    };

    template <class X, class Y>
    static void multiply(
        void (*op)(const ExpertLinearArgs&),
        const Weights& shape,
        View2<const bf16> w,
        const std::int32_t* begins,
        ConstActView x,
        std::span<const View2<Y>> ys,
        Stream stream
    ) {
        std::vector<ExpertLinearPart> parts;
        for (std::size_t i = 0; i < ys.size(); ++i) {
            parts.push_back(
                {.w =
                     {w.data + static_cast<std::int64_t>(i) * shape.N * x.cols,
                      shape.N,
                      x.cols,
                      x.cols},
                 .expert_stride = shape.stride,
                 .y = ys[i]}
            );
        }
        op({.x = x,
            .parts = parts,
            .begins = begins,
            .num_experts = shape.num_experts,
            .stream = stream});
    }

    // `begins` has the rows of x for each expert.
    template <class X, class Y>
    std::vector<Matrix<Y>> product(
        const Weights& weights,
        const Matrix<X>& x,
        const std::vector<std::int32_t>& begins,
        std::size_t num_parts
    ) {
        std::vector<Matrix<Y>> actual(num_parts, Matrix<Y>(x.num_rows(), weights.N, 0x22));
        const auto w = put(weights.all);
        const auto device_x = put(x);
        const auto device_begins = put(begins);
        std::vector<PlacedMatrix<Y>> placed;
        std::vector<View2<Y>> views;
        placed.reserve(num_parts);
        for (const Matrix<Y>& each : actual) views.push_back(placed.emplace_back(put(each)).view());
        multiply<X, Y>(
            ops().expert_linear,
            weights,
            w.view(),
            device_begins.data(),
            device_x.view(),
            views,
            stream()
        );
        for (std::size_t i = 0; i < num_parts; ++i) placed[i].fetch(actual[i]);
        return actual;
    }

    static std::vector<std::int32_t> begins_of(const std::vector<std::int32_t>& rows) {
        std::vector<std::int32_t> begins = {0};
        for (const std::int32_t num : rows) begins.push_back(begins.back() + num);
        return begins;
    }

    template <class X, class Y>
    void expect_reference(
        const std::vector<std::int32_t>& rows, std::int64_t N, std::int64_t K, std::size_t num_parts
    ) {
        SCOPED_TRACE(testing::Message() << "N " << N << " K " << K << " parts " << num_parts);
        const std::vector<std::int32_t> begins = begins_of(rows);
        const Weights weights(static_cast<std::int32_t>(rows.size()), N, K);
        const std::int64_t R = begins.back();
        const Matrix<X> x = random_matrix<X>(R + 3, K, 1);  // three rows without an expert
        std::vector<Matrix<Y>> expected(num_parts, Matrix<Y>(R + 3, N, 0x22));
        std::vector<View2<Y>> views;
        for (Matrix<Y>& each : expected) views.push_back(each.view());
        multiply<X, Y>(
            expert_linear_ref, weights, weights.all.view(), begins.data(), x.view(), views, {}
        );
        const std::vector<Matrix<Y>> actual = product<X, Y>(weights, x, begins, num_parts);
        // linear_test.cpp derives this bound.
        const auto k = static_cast<double>(K);
        const bool is_general = std::is_same_v<X, float> || K % 8 != 0;
        const double roundings =
            !is_gpu() ? 2.0 * (k / 16.0 + 8.0) : 2.0 * ((is_general ? k : k / 16.0 + 16.0) + 4.0);
        for (std::size_t i = 0; i < num_parts; ++i) {
            for (std::int64_t r = R; r < R + 3; ++r)
                EXPECT_EQ(actual[i].bits(r), expected[i].bits(r)) << "a row of no expert";
            std::int64_t r = 0;
            for (std::size_t e = 0; e < rows.size(); ++e) {
                for (std::int32_t n = 0; n < rows[e]; ++n, ++r) {
                    for (std::int64_t c = 0; c < N; ++c) {
                        double magnitudes = 0.0;
                        for (std::int64_t j = 0; j < K; ++j) {
                            const std::int64_t at = static_cast<std::int64_t>(e) * weights.stride +
                                                    (static_cast<std::int64_t>(i) * N + c) * K + j;
                            magnitudes += std::abs(x.value(r, j) * weights.all.value(0, at));
                        }
                        const double bound =
                            roundings * kEps32 * magnitudes + k * 0x1p-126 +
                            2.02 * rounding_of(kDTypeOf<Y>) * std::abs(expected[i].value(r, c));
                        ASSERT_NEAR(actual[i].value(r, c), expected[i].value(r, c), bound)
                            << "row " << r << " of expert " << e << ", output " << c;
                    }
                }
            }
        }
    }
};
PITSTOP_ON_BACKENDS(ExpertLinear, Order::kEvery);

TEST_P(ExpertLinear, MeetsTheReferenceOnAwkwardShapes) {
    const std::vector<std::vector<std::int32_t>> loads = {
        {1},
        {0, 1, 0, 2},
        {3, 0, 0, 40, 1},
        {1, 1, 1, 1, 1, 1, 1, 1},
        {0, 0, 0},
        {17, 16, 15, 70, 0, 5}};
    for (const std::vector<std::int32_t>& rows : loads) {
        SCOPED_TRACE(testing::PrintToString(rows));
        expect_reference<bf16, float>(rows, 24, 64, 2);
        expect_reference<bf16, bf16>(rows, 33, 72, 1);
        expect_reference<float, float>(rows, 7, 50, 2);
    }
    std::vector<std::int32_t> many(70, 0);  // more experts than a warp has lanes
    for (std::size_t e = 0; e < many.size(); e += 3) many[e] = static_cast<std::int32_t>(e % 7);
    expect_reference<bf16, float>(many, 40, 136, 2);
    expect_reference<float, float>(many, 40, 33, 1);
    if (is_small()) return;
    expect_reference<bf16, float>({50, 0, 30, 90}, 130, 264, 2);
    expect_reference<bf16, float>({1, 0, 1, 2}, 2100, 1176, 2);
}

// On a GPU, tiles of many rows: some full, some of one row, some of experts without rows; by wgmma
// where the GPU has it, with a ring of stages that comes around.
TEST_P(ExpertLinear, MeetsTheReferenceWithManyRowsPerExpert) {
    const std::vector<std::int32_t> rows = {130, 0, 128, 1, 190};
    expect_reference<bf16, float>(rows, 40, 328, 2);
    expect_reference<bf16, bf16>(rows, 259, 72, 1);
    expect_reference<bf16, float>({0, 0, 195}, 7, 8, 2);
    if (is_small()) return;
    expect_reference<bf16, bf16>({300, 0, 65, 1, 600, 129}, 520, 1176, 2);
}

// P6: a row has the bits of a product of its own, whichever rows share its expert and its pass.
class ExpertLinearInFixedOrder : public ExpertLinear {};
PITSTOP_ON_BACKENDS(ExpertLinearInFixedOrder, Order::kFixed);

TEST_P(ExpertLinearInFixedOrder, P6_ARowHasTheBitsThatItHasAlone) {
    const std::vector<std::int32_t> rows = {0, 9, 70, 0, 1, 33};
    const std::vector<std::int32_t> begins = begins_of(rows);
    const Weights weights(6, 40, 136);
    const Matrix<bf16> x = random_matrix<bf16>(begins.back(), 136, 1, 3.0);
    const std::vector<Matrix<float>> all = product<bf16, float>(weights, x, begins, 2);
    for (const std::int32_t r : {0, 8, 9, 41, 78, 79, 80, 112}) {
        std::vector<std::int32_t> alone(7, 0);
        Matrix<bf16> own(1, 136, 0x7f);
        for (std::int64_t k = 0; k < 136; ++k) own(0, k) = x(r, k);
        for (std::size_t e = 0; e < rows.size(); ++e) {
            const bool is_own = r >= begins[e] && r < begins[e + 1];
            alone[e + 1] = alone[e] + (is_own ? 1 : 0);
        }
        const std::vector<Matrix<float>> one = product<bf16, float>(weights, own, alone, 2);
        for (std::size_t i = 0; i < 2; ++i)
            EXPECT_EQ(one[i].bits(0), all[i].bits(r)) << "row " << r;
        if (!is_gpu()) {
            // On a CPU the product has the bits of linear's.
            std::size_t e = 0;
            while (r >= begins[e + 1]) ++e;
            Matrix<float> y(1, 40, 0x33);
            const LinearPart part{
                .w = {&weights.all(0, static_cast<std::int64_t>(e) * weights.stride), 40, 136, 136},
                .y = y.view()};
            ops().linear({.x = own.view(), .parts = {&part, 1}, .stream = one_thread()});
            EXPECT_EQ(y.bits(0), all[0].bits(r));
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
