// Adapters of rows on a GPU, against the definition of their segments (kernels/low_rank.h).
#include "kernels/low_rank_rows.h"
#include "tests/kernels/cuda_support.h"

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

namespace pitstop::kernels::test {
namespace {

using Parts = std::vector<std::int64_t>;  // N of each

// Adapters with a table each, on the host and on the device.
struct Adapter {
    Adapter(const Parts& Ns, std::int64_t K, std::int64_t rank_in, unsigned seed, Place place)
        : rank(rank_in), scale(0.5f + 0.25f * static_cast<float>(seed % 5)) {
        std::vector<LowRankPair> table(1);  // one pair, of a weight without an adapter
        for (const std::int64_t N : Ns) {
            seed += 2;
            add(as.emplace_back(numbers(rank * K, seed)), places, place);
            add(bs.emplace_back(numbers(N * rank, seed + 1)), places, place);
            table.push_back(
                {.a = places[places.size() - 2].data(),
                 .b = places[places.size() - 1].data(),
                 .rank = static_cast<std::int32_t>(rank),
                 .scale = scale}
            );
        }
        there.emplace(std::span<const LowRankPair>(table), place);
    }

    static std::vector<float> numbers(std::int64_t num, unsigned seed) {
        const Matrix<float> random = random_matrix<float>(1, num, seed);
        return {random.view().data, random.view().data + num};
    }
    static void add(
        const std::vector<float>& values, std::vector<PlacedArray<float>>& to, Place place
    ) {
        to.emplace_back(std::span<const float>(values), place);
    }

    std::int64_t rank;
    float scale;
    std::vector<std::vector<float>> as{};  // one per part
    std::vector<std::vector<float>> bs{};
    std::vector<PlacedArray<float>> places{};
    std::optional<PlacedArray<LowRankPair>> there{};
};

class CudaLowRankRows : public OnCuda {
  protected:
    // Adds to `ys` on the device; `of` has the adapter of each row, null: none.
    template <class X, class Y>
    void run(
        const Matrix<X>& x,
        const std::vector<const Adapter*>& of,
        std::int64_t rank_max,
        std::vector<Matrix<Y>>& ys,
        std::optional<std::int64_t> only_row = std::nullopt
    ) {
        const std::int64_t M = x.num_rows();
        std::vector<const LowRankPair*> tables;
        for (const Adapter* adapter : of)
            tables.push_back(adapter == nullptr ? nullptr : adapter->there->data());
        const PlacedArray<const LowRankPair*> device_tables{
            std::span<const LowRankPair* const>(tables), place()};
        const PlacedMatrix<X> device_x(x, place());
        std::vector<PlacedMatrix<Y>> device_ys;
        for (const Matrix<Y>& y : ys) device_ys.emplace_back(y, place());
        const auto num_parts = std::ssize(ys);
        const PlacedMatrix<float> h(Matrix<float>(M, num_parts * rank_max, 0xff), place());
        const std::int64_t begin = only_row.value_or(0);
        const std::int64_t num = only_row ? 1 : M;
        std::vector<LowRankRowsArgs::Part> parts;
        for (std::int64_t i = 0; i < num_parts; ++i)
            parts.push_back(
                {.pair = i + 1,
                 .y = rows(ActView(device_ys[static_cast<std::size_t>(i)].view()), begin, num)}
            );
        low_rank_rows_cuda(
            {.x = rows(ConstActView(device_x.view()), begin, num),
             .parts = parts,
             .tables = device_tables.data() + begin,
             .rank_max = rank_max,
             .h = h.view(),
             .stream = stream()}
        );
        for (std::size_t i = 0; i < ys.size(); ++i) device_ys[i].fetch(ys[i]);
    }

    template <class X, class Y>
    void expect_reference(std::int64_t M, const Parts& Ns, std::int64_t K, std::int64_t rank) {
        SCOPED_TRACE(
            testing::Message() << "M " << M << " N " << Ns[0] << " K " << K << " rank " << rank
        );
        const Matrix<X> x = random_matrix<X>(M, K, 1);
        std::vector<Matrix<Y>> before;
        for (const std::int64_t N : Ns)
            before.push_back(random_matrix<Y>(M, N, 2 + static_cast<unsigned>(before.size())));
        // Two adapters, and a row without one between them.
        const Adapter first(Ns, K, rank, 11, place());
        const Adapter second(Ns, K, rank + 3, 33, place());
        const std::int64_t half = M / 2;
        std::vector<const Adapter*> of(static_cast<std::size_t>(M), &second);
        std::fill_n(of.begin(), half, &first);
        of[static_cast<std::size_t>(half)] = nullptr;
        std::vector<Matrix<Y>> actual = before;
        run(x, of, rank + 5, actual);
        for (std::size_t part = 0; part < Ns.size(); ++part) {
            Matrix<Y> expected = before[part];
            for (std::int64_t m = 0; m < M; ++m)
                add_row_ref(x, m, of[static_cast<std::size_t>(m)], part, expected);
            EXPECT_EQ(actual[part].bits(half), before[part].bits(half));
            expect_within(actual[part], expected, [&](std::int64_t m, std::int64_t n) {
                const Adapter* const adapter = of[static_cast<std::size_t>(m)];
                if (adapter == nullptr) return 1e-300;  // rows without an adapter keep their bits
                const std::int64_t r = adapter->rank;
                const auto of_a = view2(adapter->as[part].data(), r, K);
                const auto of_b = view2(adapter->bs[part].data(), Ns[part], r);
                double sum = 0.0;
                for (std::int64_t j = 0; j < r; ++j) {
                    double h = 0.0;
                    for (std::int64_t k = 0; k < K; ++k)
                        h += std::abs(double{of_a.data[j * K + k]} * x.value(m, k));
                    sum += std::abs(double{of_b.data[n * r + j]}) * h;
                }
                // The errors: in h, the roundings of a thread's sum and of the trees; in the sum
                // over j, one per term; then the scale and y.
                const double roundings =
                    2.0 * (std::ceil(static_cast<double>(K) / 512.0) * 4.0 + 8.0) +
                    2.0 * (static_cast<double>(r) + 2.0);
                return roundings * kEps32 *
                           (adapter->scale * sum + std::abs(before[part].value(m, n))) +
                       2.02 * rounding_of(kDTypeOf<Y>) * std::abs(expected.value(m, n));
            });
        }
    }

    template <class X, class Y>
    static void add_row_ref(
        const Matrix<X>& x, std::int64_t m, const Adapter* adapter, std::size_t part, Matrix<Y>& y
    ) {
        if (adapter == nullptr) return;
        Matrix<float> h(1, adapter->rank, 0x33);
        const LowRankSegment segment{
            .row_begin = m,
            .num_rows = 1,
            .a = view2(adapter->as[part].data(), adapter->rank, x.num_cols()),
            .b = view2(adapter->bs[part].data(), y.num_cols(), adapter->rank),
            .scale = adapter->scale,
            .y = y.view(),
            .h = h.view()};
        low_rank_ref({.x = x.view(), .segments = {&segment, 1}});
    }
};

TEST_F(CudaLowRankRows, MeetsTheReferenceOnAwkwardShapes) {
    for (const std::int64_t M : {1, 9, 18}) {
        for (const auto& [N, K] : {std::pair{1, 1}, {17, 33}, {130, 48}, {70, 520}}) {
            for (const std::int64_t rank : {1, 4, 21}) {
                expect_reference<float, float>(M, {N}, K, rank);
                expect_reference<bf16, float>(M, {N, N + 3}, K, rank);
                expect_reference<bf16, bf16>(M, {N + 130, N, 1}, K, rank);
            }
        }
    }
    expect_reference<bf16, float>(3, {40}, 64, LowRankArgs::kRankMax - 5);
}

// P6: for any other rows in the call, with any adapters.
TEST_F(CudaLowRankRows, P6_ARowHasTheBitsThatItHasAlone) {
    constexpr std::int64_t M = 21;
    constexpr std::int64_t N = 150;
    constexpr std::int64_t K = 600;
    const Matrix<bf16> x = random_matrix<bf16>(M, K, 1);
    const std::vector<Matrix<float>> before{random_matrix<float>(M, N, 2)};
    const Adapter low({N}, K, 5, 11, place());
    const Adapter middle({N}, K, 16, 13, place());
    const Adapter high({N}, K, 45, 17, place());
    std::vector<const Adapter*> of;
    for (std::int64_t m = 0; m < M; ++m) {
        const Adapter* const mixed[] = {&low, &middle, nullptr, &high, &high};
        of.push_back(m < 10 ? &middle : mixed[m % 5]);
    }
    std::vector<Matrix<float>> together = before;
    run(x, of, 48, together);
    std::vector<Matrix<float>> alone = before;
    for (std::int64_t m = 0; m < M; ++m) run(x, of, 48, alone, m);
    EXPECT_EQ(together[0].bits(), alone[0].bits());
    EXPECT_NE(together[0].bits(), before[0].bits());
}

TEST_F(CudaLowRankRows, ZerosInBAndWeightsThatAreNotAdaptedLeaveTheBitsOfY) {
    const Matrix<float> x = random_matrix<float>(3, 40, 1);
    std::vector<Matrix<float>> ys{random_matrix<float>(3, 20, 2), random_matrix<float>(3, 9, 4)};
    const std::vector<Matrix<float>> before = ys;
    Adapter adapter({20, 9}, 40, 8, 3, place());
    const std::vector<float> zeros(20 * 8);
    const PlacedArray<float> device_zeros{std::span<const float>(zeros), place()};
    std::vector<LowRankPair> table = adapter.there->fetch();
    table[1].b = device_zeros.data();
    table[2] = {};
    adapter.there.emplace(std::span<const LowRankPair>(table), place());
    run(x, {&adapter, &adapter, &adapter}, 8, ys);
    EXPECT_EQ(ys[0].bits(), before[0].bits());
    EXPECT_EQ(ys[1].bits(), before[1].bits());
}

}  // namespace
}  // namespace pitstop::kernels::test
