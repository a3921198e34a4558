// Kernels that begin while the one before them ends (kernels/device/dependent_launch.cuh) read none
// of its outputs too early: in a graph each gives the bytes that it gives alone.
#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/expert_linear.h"
#include "kernels/expert_rows.h"
#include "kernels/gather_rows.h"
#include "kernels/linear.h"
#include "kernels/linear_cuda.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/route_rows.h"
#include "kernels/router.h"
#include "kernels/runtime/device_graph.h"
#include "kernels/silu_mul.h"
#include "tests/kernels/cuda_support.h"
#if defined(PITSTOP_EMULATED)
#include "tests/emulated_gpu/overlap.h"
#endif

#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace pitstop::kernels::test {
namespace {

class CudaDependentLaunch : public OnCuda {
  protected:
    void SetUp() override {
        OnCuda::SetUp();
        if (IsSkipped()) return;
        ASSERT_TRUE(open_cuda_device(0).has_value());
        if (compute_capability() < 90) GTEST_SKIP() << "no kernel begins early on this GPU";
    }

    // A first kernel, which lets the next begin at once, writes `x`. `op` reads that and writes
    // `out_bytes`.
    template <class T, class Op>
    void expect_waits(const Matrix<T>& x, std::int64_t out_bytes, const Op& op) {
        const PlacedMatrix<T> source{x, place()};
        const Room made_room{x.num_rows() * x.num_cols() * std::int64_t{sizeof(T)}, place()};
        const View2<T> made = view2(static_cast<T*>(made_room.data()), x.num_rows(), x.num_cols());
        const Room out{out_bytes, place()};
        std::vector<std::int32_t> rows(static_cast<std::size_t>(x.num_rows()));
        std::iota(rows.begin(), rows.end(), 0);
        const PlacedArray<std::int32_t> row_index{rows, place()};
        const auto make_x = [&] {
            gather_rows_cuda(
                {.x = source.view(), .row_index = row_index.data(), .y = made, .stream = stream()}
            );
        };
        const auto bytes_after = [&](const auto& enqueue) {
            fill_device(made_room.data(), 0xff, made_room.bytes(), stream());
            fill_device(out.data(), 0xff, out_bytes, stream());
            enqueue();
            std::vector<std::byte> bytes(static_cast<std::size_t>(out_bytes));
            copy_to_host(bytes.data(), out.data(), out_bytes, stream());
            out.wait();
            return bytes;
        };
        const std::vector<std::byte> expected = bytes_after([&] {
            make_x();
            out.wait();
            op(made, out.data());
        });
        DeviceGraph::begin_capture(stream());
        make_x();
        op(made, out.data());
        const Result<DeviceGraph> graph = DeviceGraph::end_capture(stream());
        ASSERT_TRUE(graph.has_value()) << graph.error().message;
#if defined(PITSTOP_EMULATED)
        const std::int64_t num_before = emulator::num_early_starts();
#endif
        constexpr int kLaunches = 40;
        for (int i = 0; i < kLaunches; ++i)
            ASSERT_EQ(bytes_after([&] { graph->launch(stream()); }), expected) << "launch " << i;
#if defined(PITSTOP_EMULATED)
        EXPECT_GT(emulator::num_early_starts(), num_before);
#endif
    }

    // Products of `num_rows` rows by weights of [N, K].
    void expect_product_waits(std::int64_t num_rows, std::int64_t N, std::int64_t K) {
        SCOPED_TRACE(testing::Message() << num_rows << " rows of " << N << " x " << K);
        const PlacedMatrix<bf16> weights{random_matrix<bf16>(N, K, 4), place()};
        const auto op = [&](const View2<bf16>& x, void* out) {
            const LinearPart part{
                .w = weights.view(), .y = view2(static_cast<float*>(out), num_rows, N)};
            linear_gemv_cuda({.x = x, .parts = std::span(&part, 1), .stream = stream()});
        };
        expect_waits(random_matrix<bf16>(num_rows, K, 5), num_rows * N * 4, op);
    }
};

constexpr std::int64_t kRows = 6;

TEST_F(CudaDependentLaunch, TheEmbeddingWaits) {
    Matrix<float> ids{kRows, 1, 0};  // int32 ids, as the bits of floats
    for (std::int64_t i = 0; i < kRows; ++i) {
        const auto id = static_cast<std::int32_t>(3 * i);
        std::memcpy(&ids(i, 0), &id, sizeof id);
    }
    for (const std::int64_t hidden : {64, 63}) {  // 64: the rows are aligned; 63: not
        SCOPED_TRACE(testing::Message() << "H " << hidden);
        const PlacedMatrix<bf16> table{random_matrix<bf16>(20, hidden, 1), place()};
        const auto op = [&](const View2<float>& x, void* out) {
            embedding_cuda(
                {.ids = reinterpret_cast<const TokenId*>(x.data),
                 .table = table.view(),
                 .y = view2(static_cast<float*>(out), kRows, hidden),
                 .stream = stream()}
            );
        };
        expect_waits(ids, kRows * hidden * 4, op);
    }
}

TEST_F(CudaDependentLaunch, TheNormWaits) {
    for (const std::int64_t hidden : {256, 250}) {  // 256: a row is held in registers; 250: not
        SCOPED_TRACE(testing::Message() << "H " << hidden);
        const PlacedMatrix<bf16> weights{random_matrix<bf16>(1, hidden, 1), place()};
        const auto op = [&](const View2<float>& x, void* out) {
            rmsnorm_cuda(
                {.x = x,
                 .w = weights.view().data,
                 .y = view2(static_cast<bf16*>(out), kRows, hidden),
                 .eps = 1e-6f,
                 .stream = stream()}
            );
        };
        expect_waits(random_matrix<float>(kRows, hidden, 3), kRows * hidden * 2, op);
    }
}

TEST_F(CudaDependentLaunch, RopeWaits) {
    constexpr std::int32_t kHeadDim = 64;
    constexpr std::int64_t kQueryHeads = 4;
    const PlacedMatrix<bf16> kv_in{random_matrix<bf16>(kRows, kHeadDim, 1), place()};
    const PlacedMatrix<float> angles{random_matrix<float>(8, kHeadDim / 2, 2), place()};
    const std::vector<std::int64_t> slots{0, 1, 2, 3, 4, 5};
    const std::vector<std::int32_t> positions{5, 4, 3, 2, 1, 0};
    const PlacedArray<std::int64_t> device_slots{slots, place()};
    const PlacedArray<std::int32_t> device_positions{positions, place()};
    KvCache kv{.num_pages = 1, .page_size = 8, .num_kv_heads = 1, .head_dim = kHeadDim};
    const Room kv_room{kv_bytes(kv), place()};
    kv.data = kv_room.data();
    const auto op = [&](const View2<bf16>& x, void* out) {
        rope_cuda(
            {.q = x,
             .k = kv_in.view(),
             .v = kv_in.view(),
             .q_out = view2(static_cast<bf16*>(out), kRows, kQueryHeads * kHeadDim),
             .kv = kv,
             .slots = device_slots.data(),
             .positions = device_positions.data(),
             .cos = angles.view(),
             .sin = angles.view(),
             .stream = stream()}
        );
    };
    constexpr std::int64_t kWidth = kQueryHeads * kHeadDim;
    expect_waits(random_matrix<bf16>(kRows, kWidth, 3), kRows * kWidth * 2, op);
}

TEST_F(CudaDependentLaunch, TheGatedProductWaits) {
    constexpr std::int64_t kWidth = 96;
    const auto op = [&](const View2<bf16>& x, void* out) {
        silu_mul_cuda(
            {.gate = x,
             .up = x,
             .y = view2(static_cast<bf16*>(out), kRows, kWidth),
             .stream = stream()}
        );
    };
    expect_waits(random_matrix<bf16>(kRows, kWidth, 3), kRows * kWidth * 2, op);
}

TEST_F(CudaDependentLaunch, GatheredRowsWait) {
    constexpr std::int64_t kWidth = 40;
    const std::vector<std::int32_t> rows{4, 2, 0};
    const PlacedArray<std::int32_t> device_rows{rows, place()};
    const auto op = [&](const View2<float>& x, void* out) {
        gather_rows_cuda(
            {.x = x,
             .row_index = device_rows.data(),
             .y = view2(static_cast<float*>(out), std::ssize(rows), kWidth),
             .stream = stream()}
        );
    };
    expect_waits(random_matrix<float>(kRows, kWidth, 3), std::ssize(rows) * kWidth * 4, op);
}

TEST_F(CudaDependentLaunch, TheRouterWaits) {
    const auto op = [&](const View2<float>& x, void* out) {
        auto* const experts = static_cast<std::int32_t*>(out);
        auto* const weights = static_cast<float*>(out) + kRows * 2;
        route_cuda(
            {.logits = x,
             .experts = view2(experts, kRows, 2),
             .weights = view2(weights, kRows, 2),
             .stream = stream()}
        );
    };
    expect_waits(random_matrix<float>(kRows, 20, 3), kRows * 4 * 4, op);
}

TEST_F(CudaDependentLaunch, FollowedRoutesWait) {
    const std::vector<std::uint8_t> ids{3, 1, 0, 19};
    const std::vector<std::int32_t> tokens{2, 0};
    const PlacedArray<std::uint8_t> device_ids{ids, place()};
    const PlacedArray<std::int32_t> device_tokens{tokens, place()};
    const auto op = [&](const View2<float>& x, void* out) {
        auto* const experts = static_cast<std::int32_t*>(out);
        auto* const weights = static_cast<float*>(out) + kRows * 2;
        follow_routes_cuda({
            .route =
                {.logits = x,
                 .experts = view2(experts, kRows, 2),
                 .weights = view2(weights, kRows, 2),
                 .stream = stream()},
            .given = device_ids.data(),
            .row_bytes = 2,
            .token_rows = device_tokens.data(),
            .num_rows = std::ssize(tokens),
        });
    };
    expect_waits(random_matrix<float>(kRows, 20, 3), kRows * 4 * 4, op);
}

// The ids of the experts, as the bits of floats.
Matrix<float> choices() {
    Matrix<float> chosen(kRows, 2, 0);
    for (std::int64_t t = 0; t < kRows; ++t) {
        for (std::int32_t j = 0; j < 2; ++j) {
            const std::int32_t expert = static_cast<std::int32_t>(t) * 2 + j;
            std::memcpy(&chosen(t, j), &expert, sizeof expert);
        }
    }
    return chosen;
}

TEST_F(CudaDependentLaunch, RouteRowsWait) {
    const std::vector<std::int32_t> rows{2, 0};
    const PlacedArray<std::int32_t> device_rows{rows, place()};
    const auto op = [&](const View2<float>& x, void* out) {
        route_rows_cuda(
            {.chosen = reinterpret_cast<const std::int32_t*>(x.data),
             .layer_stride = 2,
             .num_layers = 1,
             .per_token = 2,
             .token_rows = device_rows.data(),
             .num_rows = std::ssize(rows),
             .y = static_cast<std::uint8_t*>(out),
             .stream = stream()}
        );
    };
    expect_waits(choices(), std::ssize(rows) * 2, op);
}

TEST_F(CudaDependentLaunch, CountedChoicesWait) {
    constexpr std::int64_t kExperts = kRows * 2;
    const auto op = [&](const View2<float>& x, void* out) {
        auto* const counts = static_cast<std::int64_t*>(out);
        count_choices_cuda(
            {.chosen = reinterpret_cast<const std::int32_t*>(x.data),
             .layer_stride = kRows * 2,
             .num_layers = 1,
             .per_token = 2,
             .num_tokens = kRows,
             .num_experts = kExperts,
             .counts = counts,
             .y = counts + kExperts,
             .stream = stream()}
        );
    };
    expect_waits(choices(), 2 * kExperts * 8, op);
}

TEST_F(CudaDependentLaunch, ExpertRowsWait) {
    constexpr std::int32_t kExperts = 3;
    constexpr std::int64_t kPairs = kRows * 2;
    Matrix<float> chosen(kRows, 2, 0);  // int32 experts, as the bits of floats
    for (std::int64_t t = 0; t < kRows; ++t) {
        for (std::int32_t j = 0; j < 2; ++j) {
            const std::int32_t expert = (static_cast<std::int32_t>(t) + j) % kExperts;
            std::memcpy(&chosen(t, j), &expert, sizeof expert);
        }
    }
    const auto sort = [&](const View2<float>& x, void* out) {
        auto* const begins = static_cast<std::int32_t*>(out);
        auto* const token_of = begins + kExperts + 1;
        const View2<const std::int32_t> choice{
            reinterpret_cast<const std::int32_t*>(x.data), x.rows, x.cols, x.stride};
        sort_rows_by_expert_cuda(
            {.chosen = choice,
             .num_experts = kExperts,
             .begins = begins,
             .token_of = token_of,
             .row_of = view2(token_of + kPairs, kRows, 2),
             .stream = stream()}
        );
    };
    expect_waits(chosen, (kExperts + 1 + 2 * kPairs) * 4, sort);

    constexpr std::int64_t kWidth = 40;
    const std::vector<std::int32_t> row_of{5, 4, 3, 2, 1, 0};
    const PlacedArray<std::int32_t> device_row_of{row_of, place()};
    const PlacedMatrix<float> weights{random_matrix<float>(kRows, 1, 4), place()};
    const auto sum = [&](const View2<float>& x, void* out) {
        sum_expert_rows_cuda(
            {.rows = x,
             .row_of = view2<const std::int32_t>(device_row_of.data(), kRows, 1),
             .weights = weights.view(),
             .y = view2(static_cast<float*>(out), kRows, kWidth),
             .stream = stream()}
        );
    };
    expect_waits(random_matrix<float>(kRows, kWidth, 3), kRows * kWidth * 4, sum);
}

TEST_F(CudaDependentLaunch, ProductsOfExpertsWait) {
    constexpr std::int64_t kN = 40;
    constexpr std::int64_t kK = 72;
    const PlacedMatrix<bf16> weights{random_matrix<bf16>(3 * kN, kK, 4), place()};
    for (const std::int32_t num_rows : {6, 45}) {  // 6: a block per row; 45: tiles
        SCOPED_TRACE(testing::Message() << num_rows << " rows");
        const std::vector<std::int32_t> begins{0, 1, 1, num_rows};
        const PlacedArray<std::int32_t> device_begins{begins, place()};
        const auto op = [&](const View2<bf16>& x, void* out) {
            const View2<bf16> all = weights.view();
            const ExpertLinearPart part{
                .w = rows(View2<const bf16>(all), 0, kN),
                .expert_stride = kN * all.stride,
                .y = view2(static_cast<float*>(out), num_rows, kN)};
            expert_linear_cuda(
                {.x = x,
                 .parts = std::span(&part, 1),
                 .begins = device_begins.data(),
                 .num_experts = 3,
                 .stream = stream()}
            );
        };
        expect_waits(random_matrix<bf16>(num_rows, kK, 5), num_rows * kN * 4, op);
    }
}

TEST_F(CudaDependentLaunch, DecodeAttentionWaits) {
    constexpr std::int32_t kPageSize = 16;
    constexpr std::int32_t kPages = 5;  // per row
    constexpr std::int32_t kQueryHeads = 4;
    for (const std::int32_t head_dim : {64, 128}) {
        SCOPED_TRACE(testing::Message() << "D " << head_dim);
        KvCache kv{
            .num_pages = kPages, .page_size = kPageSize, .num_kv_heads = 1, .head_dim = head_dim};
        const PlacedMatrix<bf16> keys{
            random_matrix<bf16>(1, kv_bytes(kv) / std::int64_t{sizeof(bf16)}, 7), place()};
        kv.data = keys.view().data;
        std::vector<std::int32_t> starts(kRows + 1);
        std::iota(starts.begin(), starts.end(), 0);
        const std::vector<std::int32_t> lens{1, 70, 64, 65, 3, 80};
        const std::vector<std::int32_t> page_starts(kRows, 0);
        std::vector<PageId> pages;
        for (std::int32_t i = 0; i < kPages; ++i) pages.push_back(PageId{i});
        const PlacedArray<std::int32_t> device_starts{starts, place()};
        const PlacedArray<std::int32_t> device_lens{lens, place()};
        const PlacedArray<std::int32_t> device_page_starts{page_starts, place()};
        const PlacedArray<PageId> device_pages{pages, place()};
        const PlacedArray<std::uint32_t> arrivals{
            std::vector<std::uint32_t>(AttentionArgs::kArrivals), place()};
        const Scratch scratch{
            attention_cuda_workspace_bytes(
                {.num_tokens = kRows,
                 .num_q_heads = kQueryHeads,
                 .head_dim = head_dim,
                 .kv_len_max = 80}
            ),
            place()};
        const std::int64_t width = std::int64_t{kQueryHeads} * head_dim;
        const auto op = [&](const View2<bf16>& x, void* out) {
            attention_cuda(
                {.q = x,
                 .out = view2(static_cast<bf16*>(out), kRows, width),
                 .kv = kv,
                 .num_q_heads = kQueryHeads,
                 .num_rows = kRows,
                 .q_starts = device_starts.data(),
                 .kv_lens = device_lens.data(),
                 .pages = device_pages.data(),
                 .page_starts = device_page_starts.data(),
                 .kv_len_max = 80,
                 .q_len_max = 1,
                 .scale = 0.125f,
                 .workspace = scratch.workspace(),
                 .arrivals = arrivals.data(),
                 .stream = stream()}
            );
        };
        expect_waits(random_matrix<bf16>(kRows, width, 3), kRows * width * 2, op);
    }
}

TEST_F(CudaDependentLaunch, SmallProductsWait) {
    for (const std::int64_t num_rows : {1, 2, 4}) expect_product_waits(num_rows, 40, 576);
}

}  // namespace
}  // namespace pitstop::kernels::test
