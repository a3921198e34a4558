#include "bench/kernels_adapters.h"

namespace pitstop::bench {
namespace {

constexpr std::int64_t kH = 1024, kF = 3072;  // of qwen3-0.6b
constexpr std::int64_t kRank = 16;
constexpr std::int64_t kColdBytes = 64 << 20;  // A and B are spread over this much

// Rows [0, M) in runs of equal length, one run per adapter.
void bench_low_rank(
    Bench& bench,
    const char* module,
    std::int64_t M,
    std::int64_t num_adapters,
    std::int64_t N,
    std::int64_t K
) {
    const std::string name =
        fmt::format("low rank {} M{} N{} K{}, {} adapters", module, M, N, K, num_adapters);
    if (!bench.wants(name)) return;
    const std::int64_t pair_floats = kRank * (N + K);
    const std::int64_t copies =
        std::max<std::int64_t>(num_adapters, kColdBytes / (pair_floats * 4)) / num_adapters *
        num_adapters;
    const Array<float> pairs(copies * pair_floats);
    const Array<bf16> x(M * K);
    const Array<float> y(M * N);
    const Array<float> h(M * kRank);
    std::int64_t first = 0;
    bench.measure({
        .name = name,
        .bytes = static_cast<double>(num_adapters * pair_floats * 4 + M * K * 2 + M * N * 8),
        .flops = 2.0 * static_cast<double>(M * kRank * (N + K)),
        .run =
            [&] {
                std::vector<kernels::LowRankSegment> segments;
                const std::int64_t rows = M / num_adapters;
                for (std::int64_t i = 0; i < num_adapters; ++i) {
                    const float* const a = pairs.data() + (first + i) * pair_floats;
                    segments.push_back(
                        {.row_begin = i * rows,
                         .num_rows = rows,
                         .a = view2<const float>(a, kRank, K),
                         .b = view2<const float>(a + kRank * K, N, kRank),
                         .scale = 2.0f,
                         .y = view2(y.data(), M, N),
                         .h = view2(h.data() + i * rows * kRank, rows, kRank)}
                    );
                }
                bench.ops.low_rank(
                    {.x = view2<const bf16>(x.data(), M, K),
                     .segments = segments,
                     .stream = bench.stream}
                );
                first = (first + num_adapters) % copies;
            },
    });
}

}  // namespace

void bench_adapters(Bench& bench) {
    for (const auto& [M, num_adapters] : {std::pair<int, int>{1, 1}, {32, 1}, {32, 8}}) {
        bench_low_rank(bench, "gate", M, num_adapters, kF, kH);
        bench_low_rank(bench, "down", M, num_adapters, kH, kF);
    }
}

}  // namespace pitstop::bench
