// Measures each op at serving sizes: time, GB/s, GFLOP/s and efficiency. The efficiency is the op's
// least time by its bytes, its flops and this run's measured limits, divided by its time.
//
// Shapes are those of qwen3-0.6b (H 1024, F 3072, Q 16, K 8, D 128, V 151936). Weights and KV
// rotate through copies that exceed the last cache, as the layers of a model do.
#include "base/flags.h"
#include "base/time.h"
#include "bench/kernels_adapters.h"
#include "bench/kernels_meter.h"
#include "bench/machine_limits.h"
#include "kernels/ops.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <thread>
#include <vector>

using namespace pitstop;
using namespace pitstop::bench;

namespace {

constexpr std::int64_t kH = 1024, kF = 3072, kQ = 16, kK = 8, kD = 128, kV = 151936;
constexpr std::int64_t kColdBytes = 256 << 20;  // weights and KV are spread over this much

template <class X>
void bench_linear(Bench& bench, const char* name, std::int64_t M, std::int64_t N, std::int64_t K) {
    const bool is_bf16 = std::is_same_v<X, bf16>;
    const std::string full_name =
        fmt::format("linear {} {} M{} N{} K{}", name, is_bf16 ? "bf16" : "fp32", M, N, K);
    if (!bench.wants(full_name)) return;
    const std::int64_t copies = std::max<std::int64_t>(1, kColdBytes / (N * K * 2));
    const Array<bf16> w(copies * N * K);
    const Array<X> x(M * K);
    const Array<float> y(M * N);
    std::int64_t copy = 0;
    bench.measure({
        .name = full_name,
        .bytes = static_cast<double>(
            N * K * 2 + M * K * static_cast<std::int64_t>(sizeof(X)) + M * N * 4
        ),
        .flops = 2.0 * static_cast<double>(M * N * K),
        .is_bf16 = is_bf16,
        .run =
            [&] {
                const kernels::LinearPart part{
                    .w = view2<const bf16>(w.data() + copy * N * K, N, K),
                    .y = view2(y.data(), M, N)};
                bench.ops.linear(
                    {.x = view2<const X>(x.data(), M, K),
                     .parts = {&part, 1},
                     .stream = bench.stream}
                );
                copy = (copy + 1) % copies;
            },
    });
}

void bench_linears(Bench& bench) {
    for (const std::int64_t M : {1, 2, 4, 8, 16, 32, 64, 512}) {
        bench_linear<bf16>(bench, "qkv", M, (kQ + 2 * kK) * kD, kH);
        bench_linear<bf16>(bench, "o", M, kH, kQ * kD);
        bench_linear<bf16>(bench, "gate-up", M, 2 * kF, kH);
        bench_linear<bf16>(bench, "down", M, kH, kF);
    }
    bench_linear<bf16>(bench, "head", 1, kV, kH);
    bench_linear<bf16>(bench, "head", 32, kV, kH);
    bench_linear<bf16>(bench, "8b-gate-up", 1, 24576, 4096);
    bench_linear<bf16>(bench, "8b-down", 512, 4096, 12288);
    for (const std::int64_t M : {1, 8, 512}) bench_linear<float>(bench, "gate-up", M, 2 * kF, kH);
}

// R rows. Each computes the last `new_tokens` of its `len` tokens; pages are in shuffled order.
struct Rows {
    std::vector<PageId> pages{};
    std::vector<std::int32_t> q_starts{0};
    std::vector<std::int32_t> kv_lens{};
    std::vector<std::int32_t> page_starts{};

    Rows(std::int64_t R, std::int64_t new_tokens, std::int64_t len, std::int64_t pages_per_row) {
        for (std::int64_t r = 0; r < R; ++r) {
            q_starts.push_back(static_cast<std::int32_t>((r + 1) * new_tokens));
            kv_lens.push_back(static_cast<std::int32_t>(len));
            page_starts.push_back(static_cast<std::int32_t>(pages.size()));
            for (std::int64_t p = 0; p < pages_per_row; ++p)
                pages.push_back(
                    static_cast<PageId>((r * pages_per_row + p) * 7919 % (R * pages_per_row))
                );
        }
    }
};

// The gate and up products of a qwen3-30b-a3b layer. Each call chooses other experts, all
// equally often.
void bench_experts(Bench& bench, std::int64_t T) {
    constexpr std::int64_t kE = 128, kChosen = 8, kHidden = 2048, kI = 768;
    constexpr std::int64_t kOfExpert = 3 * kI * kHidden;  // gate, up and down
    const std::string name = fmt::format("expert_linear gate-up bf16 T{}", T);
    if (!bench.wants(name)) return;
    const std::int64_t num_rows = T * kChosen;
    const std::int64_t num_read = std::min(kE, num_rows);
    const Array<bf16> w(kE * kOfExpert);
    const Array<bf16> x(num_rows * kHidden);
    const Array<float> y(num_rows * 2 * kI);
    std::vector<std::int32_t> begins(kE + 1);
    std::int64_t shift = 0;
    bench.measure({
        .name = name,
        .bytes = static_cast<double>(
            num_read * 2 * kI * kHidden * 2 + num_rows * (kHidden * 2 + 2 * kI * 4)
        ),
        .flops = 2.0 * static_cast<double>(num_rows * 2 * kI * kHidden),
        .is_bf16 = true,
        .run =
            [&] {
                const auto rows_before = [&](std::int64_t e) {  // num_read experts, evenly spread
                    return (e * num_read + shift) / kE * num_rows / num_read;
                };
                for (std::int64_t e = 0; e <= kE; ++e) {
                    begins[static_cast<std::size_t>(e)] =
                        static_cast<std::int32_t>(rows_before(e) - rows_before(0));
                }
                shift = (shift + 5) % kE;
                const auto part = [&](std::int64_t i) {
                    return kernels::ExpertLinearPart{
                        .w = view2<const bf16>(w.data() + i * kI * kHidden, kI, kHidden),
                        .expert_stride = kOfExpert,
                        .y = view2(y.data() + i * num_rows * kI, num_rows, kI)};
                };
                const kernels::ExpertLinearPart parts[] = {part(0), part(1)};
                bench.ops.expert_linear(
                    {.x = view2<const bf16>(x.data(), num_rows, kHidden),
                     .parts = parts,
                     .begins = begins.data(),
                     .num_experts = kE,
                     .stream = bench.stream}
                );
            },
    });
}

template <class T>
void bench_attention(
    Bench& bench, const char* name, std::int64_t R, std::int64_t new_tokens, std::int64_t len
) {
    constexpr std::int32_t kPage = 16;
    const std::string full_name = fmt::format(
        "attention {} {} R{} new{} len{}",
        name,
        sizeof(T) == 2 ? "bf16" : "fp32",
        R,
        new_tokens,
        len
    );
    if (!bench.wants(full_name)) return;
    const std::int64_t pages_per_row = (len + kPage - 1) / kPage;
    kernels::KvCache kv{
        .dtype = kernels::kDTypeOf<T>,
        .num_pages = static_cast<std::int32_t>(R * pages_per_row),
        .page_size = kPage,
        .num_kv_heads = kK,
        .head_dim = kD};
    const std::int64_t copies = std::max<std::int64_t>(1, kColdBytes / kernels::kv_bytes(kv));
    const Array<T> memory(kernels::kv_bytes(kv) / static_cast<std::int64_t>(sizeof(T)) * copies);
    const std::int64_t tokens = R * new_tokens;
    const Array<T> q(tokens * kQ * kD);
    const Array<T> out(tokens * kQ * kD);
    const Rows rows(R, new_tokens, len, pages_per_row);
    const Array<char> workspace(
        bench.ops.attention_workspace_bytes(
            {.num_tokens = tokens,
             .num_q_heads = kQ,
             .head_dim = kD,
             .kv_len_max = static_cast<std::int32_t>(len)}
        ) +
        64
    );
    double pairs = 0.0;  // computed pairs (token, key)
    for (std::int64_t i = 0; i < new_tokens; ++i) pairs += static_cast<double>(len - i);
    pairs *= static_cast<double>(R);
    std::int64_t copy = 0;
    bench.measure({
        .name = full_name,
        .bytes = static_cast<double>(2 * R * len * kK * kD + 2 * tokens * kQ * kD) * sizeof(T),
        .flops = 4.0 * static_cast<double>(kQ * kD) * pairs,
        .is_bf16 = sizeof(T) == 2,
        .run =
            [&] {
                kv.data = memory.data() +
                          copy * (kernels::kv_bytes(kv) / static_cast<std::int64_t>(sizeof(T)));
                copy = (copy + 1) % copies;
                bench.ops.attention({
                    .q = view2<const T>(q.data(), tokens, kQ * kD),
                    .out = view2(out.data(), tokens, kQ * kD),
                    .kv = kv,
                    .num_q_heads = kQ,
                    .num_rows = static_cast<std::int32_t>(R),
                    .q_starts = rows.q_starts.data(),
                    .kv_lens = rows.kv_lens.data(),
                    .pages = rows.pages.data(),
                    .page_starts = rows.page_starts.data(),
                    .kv_len_max = static_cast<std::int32_t>(len),
                    .scale = 0.088388f,
                    .workspace = {workspace.data(), workspace.size()},
                    .stream = bench.stream,
                });
            },
    });
}

void bench_elementwise(Bench& bench, std::int64_t T) {
    const Array<float> x(T * kH);
    const Array<float> delta(T * kH);
    const Array<bf16> y(T * 2 * kF);
    const Array<bf16> w(kH);
    bench.measure({
        .name = fmt::format("rmsnorm residual T{}", T),
        .bytes = static_cast<double>(T * kH * (4 + 4 + 4 + 2)),
        .run =
            [&] {
                bench.ops.rmsnorm(
                    {.x = view2(x.data(), T, kH),
                     .delta = view2<const float>(delta.data(), T, kH),
                     .w = w.data(),
                     .y = view2(y.data(), T, kH),
                     .eps = 1e-6f,
                     .stream = bench.stream}
                );
            },
    });
    const Array<float> gate_up(T * 2 * kF);
    bench.measure({
        .name = fmt::format("silu_mul T{}", T),
        .bytes = static_cast<double>(T * kF * (4 + 4 + 2)),
        .run =
            [&] {
                const kernels::ConstActView both = view2<const float>(gate_up.data(), T, 2 * kF);
                bench.ops.silu_mul(
                    {.gate = kernels::cols(both, 0, kF),
                     .up = kernels::cols(both, kF, kF),
                     .y = view2(y.data(), T, kF),
                     .stream = bench.stream}
                );
            },
    });
}

void bench_rope(Bench& bench, std::int64_t T) {
    const Array<bf16> w(kD);
    const Array<float> qkv(T * (kQ + 2 * kK) * kD);
    const Array<bf16> q_out(T * kQ * kD);
    const Array<float> table(T * kD);
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> positions;
    for (std::int64_t t = 0; t < T; ++t) {
        slots.push_back(t);
        positions.push_back(static_cast<std::int32_t>(t));
    }
    kernels::KvCache kv{
        .num_pages = static_cast<std::int32_t>(T / 16 + 1),
        .page_size = 16,
        .num_kv_heads = kK,
        .head_dim = kD};
    const Array<bf16> memory(kernels::kv_bytes(kv) / 2);
    kv.data = memory.data();
    bench.measure({
        .name = fmt::format("rope qk-norm T{}", T),
        .bytes = static_cast<double>(T * (kQ + 2 * kK) * kD * (4 + 2)),
        .run =
            [&] {
                const kernels::ConstActView all =
                    view2<const float>(qkv.data(), T, (kQ + 2 * kK) * kD);
                bench.ops.rope({
                    .q = kernels::cols(all, 0, kQ * kD),
                    .k = kernels::cols(all, kQ * kD, kK * kD),
                    .v = kernels::cols(all, (kQ + kK) * kD, kK * kD),
                    .q_out = view2(q_out.data(), T, kQ * kD),
                    .kv = kv,
                    .slots = slots.data(),
                    .positions = positions.data(),
                    .cos = view2<const float>(table.data(), T, kD / 2),
                    .sin = view2<const float>(table.data() + T * kD / 2, T, kD / 2),
                    .q_norm = w.data(),
                    .k_norm = w.data(),
                    .norm_eps = 1e-6f,
                    .stream = bench.stream,
                });
            },
    });
}

void bench_embedding(Bench& bench, std::int64_t T) {
    const Array<float> x(T * kH);
    const Array<bf16> embeddings(kV * kH);
    std::vector<TokenId> ids;
    for (std::int64_t t = 0; t < T; ++t) ids.push_back(static_cast<TokenId>(t * 7919 % kV));
    bench.measure({
        .name = fmt::format("embedding T{}", T),
        .bytes = static_cast<double>(T * kH * 6),
        .run =
            [&] {
                bench.ops.embedding(
                    {.ids = ids.data(),
                     .table = view2<const bf16>(embeddings.data(), kV, kH),
                     .y = view2(x.data(), T, kH),
                     .stream = bench.stream}
                );
            },
    });
}

// Logits of a trained model's shape: a few far above a wide bulk.
void bench_sampling(Bench& bench, std::int64_t R) {
    const Array<float> logits(R * kV);
    for (std::int64_t i = 0; i < R * kV; ++i) logits.data()[i] *= i % 1000 == 7 ? 18.f : 6.f;
    const Array<char> workspace(std::max(
        bench.ops.sample_workspace_bytes(R, kV), bench.ops.softmax_stats_workspace_bytes(R, kV)
    ));
    std::vector<kernels::Choice> choices(static_cast<std::size_t>(R));
    const struct {
        const char* name;
        kernels::SampleRow row;
    } cases[] = {
        {"greedy", {}},
        {"temperature", {.temperature = 1.f, .seed = 1}},
        {"top-k 50", {.temperature = 1.f, .top_k = 50, .seed = 1}},
        {"top-p 0.95", {.temperature = 1.f, .top_p = 0.95f, .seed = 1}},
    };
    for (const auto& c : cases) {
        const std::vector<kernels::SampleRow> rows(static_cast<std::size_t>(R), c.row);
        bench.measure({
            .name = fmt::format("sample {} R{}", c.name, R),
            .bytes = static_cast<double>(R * kV * 4),
            .run =
                [&] {
                    bench.ops.sample(
                        {.logits = view2<const float>(logits.data(), R, kV),
                         .rows = rows.data(),
                         .choices = choices.data(),
                         .workspace = {workspace.data(), workspace.size()},
                         .stream = bench.stream}
                    );
                },
        });
    }
    const std::vector<kernels::SoftmaxRow> rows(static_cast<std::size_t>(R));
    std::vector<kernels::SoftmaxStats> stats(static_cast<std::size_t>(R));
    bench.measure({
        .name = fmt::format("softmax_stats R{}", R),
        .bytes = static_cast<double>(R * kV * 4),
        .run =
            [&] {
                bench.ops.softmax_stats(
                    {.logits = view2<const float>(logits.data(), R, kV),
                     .rows = rows.data(),
                     .stats = stats.data(),
                     .workspace = {workspace.data(), workspace.size()},
                     .stream = bench.stream}
                );
            },
    });
    const std::int64_t n = 20;
    std::vector<TokenId> ids(static_cast<std::size_t>(R * n));
    const Array<float> values(R * n);
    bench.measure({
        .name = fmt::format("top_logits 20 R{}", R),
        .bytes = static_cast<double>(R * kV * 4),
        .run =
            [&] {
                bench.ops.top_logits(
                    {.logits = view2<const float>(logits.data(), R, kV),
                     .ids = view2(ids.data(), R, n),
                     .values = view2(values.data(), R, n),
                     .stream = bench.stream}
                );
            },
    });
}

void bench_weights(Bench& bench) {
    constexpr std::int64_t kRows = 8192, kCols = 8192;
    const Array<bf16> tensor(kRows * kCols);
    Digest sum;
    bench.measure({
        .name = "digest 128 MiB",
        .bytes = static_cast<double>(kRows * kCols * 2),
        .run =
            [&] {
                bench.ops.digest(
                    {.data = tensor.data(),
                     .rows = kRows,
                     .row_bytes = kCols * 2,
                     .row_stride_bytes = kCols * 2,
                     .words_per_row = kCols / 4,
                     .sum = &sum,
                     .stream = bench.stream}
                );
            },
    });
    for (const kernels::DType dtype :
         {kernels::DType::kBF16, kernels::DType::kF32, kernels::DType::kF16}) {
        const Array<char> src(kRows * kCols * size_of(dtype));
        const char* const name = dtype == kernels::DType::kF32   ? "f32"
                                 : dtype == kernels::DType::kF16 ? "f16"
                                                                 : "bf16";
        bench.measure({
            .name = fmt::format("shard_copy {} -> bf16, 64 Mi elements", name),
            .bytes = static_cast<double>(kRows * kCols * (size_of(dtype) + 2)),
            .run =
                [&] {
                    const kernels::ShardCopy copy{
                        .src = src.data(),
                        .src_dtype = dtype,
                        .src_stride = kCols,
                        .dst = view2(tensor.data(), kRows, kCols)};
                    bench.ops.shard_copy({.copies = {&copy, 1}, .stream = bench.stream});
                },
        });
    }
}

void bench_all(Bench& bench) {
    bench_linears(bench);
    for (const std::int64_t T : {1, 8, 32, 512}) bench_experts(bench, T);
    bench_adapters(bench);
    bench_attention<bf16>(bench, "decode", 1, 1, 1024);
    bench_attention<bf16>(bench, "decode", 1, 1, 8192);
    bench_attention<bf16>(bench, "decode", 32, 1, 1024);
    bench_attention<float>(bench, "decode", 32, 1, 1024);
    bench_attention<bf16>(bench, "prefill", 1, 1024, 1024);
    bench_attention<bf16>(bench, "prefill chunk", 1, 512, 4096);
    bench_attention<float>(bench, "prefill", 1, 1024, 1024);
    for (const std::int64_t T : {1, 64, 512}) {
        bench_elementwise(bench, T);
        bench_rope(bench, T);
        bench_embedding(bench, T);
    }
    for (const std::int64_t R : {1, 32}) bench_sampling(bench, R);
    bench_weights(bench);
}

}  // namespace

int main(int argc, char** argv) {
    FlagSet flags(
        "pitstop_kernels_bench", "Each op at serving sizes, as a fraction of the machine's limits."
    );
    int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    int array_mb = 512;
    double min_ms = 200.0;
    std::string cpu, filter;
    bool as_json = false;
    flags.add("threads", &threads, "threads that run each op");
    flags.add("cpu", &cpu, "scalar, avx2, avx512, avx512bf16; empty: PITSTOP_CPU, or the best");
    flags.add("filter", &filter, "measure only ops whose name contains this; empty: all");
    flags.add("min-ms", &min_ms, "minimum milliseconds to spend on each op");
    flags.add("array-mb", &array_mb, "MiB of the array that measures the machine's limits");
    flags.add("json", &as_json, "print JSON instead of a table");
    if (const auto code = flags.read(argc, argv)) return *code;
    if (threads < 1 || array_mb < 1)
        return flags.fail(
            make_error(ErrorCode::kInvalidArgument, "--threads and --array-mb take a number from 1")
        );
    const Result<IsaLevel> level = choose_isa(cpu);
    if (!level) return flags.fail(level.error());
    kernels::ThreadPool pool(threads);
    const MachineLimits limits = measure_limits(pool, *level, std::int64_t{array_mb} << 20);
    if (!as_json) {
        fmt::print(
            "{}, {} threads: read {:.1f} GB/s, copy {:.1f} GB/s, fp32 {:.1f} GFLOP/s, bf16 {:.1f} "
            "GFLOP/s\n",
            name_of(*level),
            threads,
            limits.read_gb_s,
            limits.copy_gb_s,
            limits.fma_gflop_s,
            limits.bf16_gflop_s
        );
    }
    Bench bench(*kernels::cpu_ops(*level), pool, limits, filter, min_ms, as_json);
    bench_all(bench);
    if (as_json) {
        fmt::print(
            "{}\n",
            nlohmann::json{
                {"cpu", name_of(*level)},
                {"threads", threads},
                {"limits",
                 {{"read_gb_s", limits.read_gb_s},
                  {"copy_gb_s", limits.copy_gb_s},
                  {"fp32_gflop_s", limits.fma_gflop_s},
                  {"bf16_gflop_s", limits.bf16_gflop_s}}},
                {"ops", bench.rows}}
                .dump(2)
        );
    }
    return 0;
}
