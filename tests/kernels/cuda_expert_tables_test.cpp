#include "kernels/expert_rows.h"
#include "kernels/expert_tables.h"
#include "kernels/reference.h"
#include "tests/kernels/cuda_support.h"

#include <optional>
#include <vector>

namespace pitstop::kernels::test {
namespace {

constexpr std::int64_t kPairsPerExpert = 3;

class CudaExpertTables : public OnCuda {};

// Compares the kernel's tables with their definition. There are experts without rows, tokens
// without an adapter, and pairs of experts that other ranks have.
TEST_F(CudaExpertTables, EachRowFindsThePairsOfItsTokensAdapterAndItsExpert) {
    const std::vector<LowRankPair> pairs(4096);  // of an adapter; nobody reads them
    for (const auto& [T, k, E, first, num] : std::vector<std::array<std::int64_t, 5>>{
             {1, 1, 1, 0, 1}, {7, 2, 6, 0, 6}, {40, 3, 9, 4, 5}, {300, 8, 128, 32, 32}}) {
        SCOPED_TRACE(testing::Message() << "T " << T << " E " << E);
        const std::int64_t R = T * k;
        std::vector<std::int32_t> chosen;
        for (std::int64_t t = 0; t < T; ++t) {
            for (std::int64_t j = 0; j < k; ++j)
                chosen.push_back(static_cast<std::int32_t>((t * t * 5 + t % 3 + j) % E));
        }
        std::vector<std::int32_t> begins(static_cast<std::size_t>(num + 1));
        std::vector<std::int32_t> token_of(static_cast<std::size_t>(R));
        std::vector<std::int32_t> row_of(static_cast<std::size_t>(R));
        sort_rows_by_expert_ref(
            {.chosen = view2<const std::int32_t>(chosen.data(), T, k),
             .first_expert = static_cast<std::int32_t>(first),
             .num_experts = static_cast<std::int32_t>(num),
             .begins = begins.data(),
             .token_of = token_of.data(),
             .row_of = view2(row_of.data(), T, k)}
        );
        std::vector<const LowRankPair*> tables;  // of two adapters, and none
        for (std::int64_t t = 0; t < T; ++t)
            tables.push_back(t % 4 == 2 ? nullptr : pairs.data() + (t % 4 == 0 ? 0 : 2048));
        std::vector<const LowRankPair*> expected(static_cast<std::size_t>(R), nullptr);
        for (std::int64_t e = 0; e < num; ++e) {
            for (auto r = static_cast<std::size_t>(begins[static_cast<std::size_t>(e)]);
                 r < static_cast<std::size_t>(begins[static_cast<std::size_t>(e + 1)]);
                 ++r) {
                const LowRankPair* const table = tables[static_cast<std::size_t>(token_of[r])];
                if (table != nullptr) expected[r] = table + e * kPairsPerExpert;
            }
        }
        const PlacedArray<const LowRankPair*> device_tables{
            std::span<const LowRankPair* const>(tables), place()};
        const PlacedArray<std::int32_t> device_begins{
            std::span<const std::int32_t>(begins), place()};
        const PlacedArray<std::int32_t> device_token_of{
            std::span<const std::int32_t>(token_of), place()};
        const std::vector<const LowRankPair*> garbage(expected.size(), pairs.data() + 1);
        PlacedArray<const LowRankPair*> to{std::span<const LowRankPair* const>(garbage), place()};
        expert_tables_cuda(
            {.tables = device_tables.data(),
             .begins = device_begins.data(),
             .token_of = device_token_of.data(),
             .num_experts = static_cast<std::int32_t>(num),
             .num_rows = R,
             .pairs_per_expert = kPairsPerExpert,
             .to = to.data(),
             .stream = stream()}
        );
        EXPECT_EQ(to.fetch(), expected);
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
