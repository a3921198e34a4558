#include "bench/gpu_families.h"

#include "bench/gpu_experts.h"
#include "bench/gpu_logits.h"
#include "bench/gpu_sizes.h"
#include "kernels/attention_cuda.h"

#include <algorithm>
#include <random>

namespace pitstop::kernels::bench {
namespace {

constexpr std::int64_t kRotateBytes =
    (std::int64_t{256} << 20) / kScaledDown;  // four L2 caches and more

constexpr std::int64_t H = kQwen3_8b.H, F = kQwen3_8b.F, Q = kQwen3_8b.Q, K = kQwen3_8b.K;
constexpr std::int64_t D = kQwen3_8b.D, V = kQwen3_8b.V;
constexpr std::int64_t P = 16;  // tokens per page
constexpr std::int64_t T = kPrefillTokens;
constexpr std::int64_t kRowsMany = 4096 / kScaledDown;

void run_norm(GpuMeter& gpu) {
    const DeviceBuffer x = gpu.floats(T * H), delta = gpu.floats(T * H), w = gpu.buffer(H * 2);
    const DeviceBuffer y = gpu.buffer(T * H * 2);
    gpu.measure(
        {.family = "rmsnorm",
         .what = "8192 x 4096, residual added",
         .bytes = 14.0 * T * H,
         .target = 0.85},
        [&](int) {
            cuda_ops()->rmsnorm(
                {.x = floats_of(x, T, H),
                 .delta = floats_of(delta, T, H),
                 .w = static_cast<const bf16*>(w.data()),
                 .y = halves_of(y, T, H),
                 .eps = 1e-6f,
                 .stream = gpu.stream()}
            );
        }
    );
}

// One layer's KV, with pages in shuffled order.
struct Paged {
    DeviceBuffer memory{};
    DeviceBuffer pages{};
    std::vector<std::int32_t> order{};
    KvCache kv{};
};
Paged paged(const GpuMeter& gpu, std::int64_t tokens) {
    Paged made;
    const std::int64_t num = tokens / P;
    made.order.resize(static_cast<std::size_t>(num));
    for (std::size_t i = 0; i < made.order.size(); ++i)
        made.order[i] = static_cast<std::int32_t>(i);
    std::shuffle(made.order.begin(), made.order.end(), std::mt19937(2));
    made.pages = gpu.array(made.order);
    made.kv = {
        .num_pages = static_cast<std::int32_t>(num),
        .page_size = P,
        .num_kv_heads = K,
        .head_dim = D};
    made.memory = gpu.buffer(kernels::kv_bytes(made.kv));
    made.kv.data = made.memory.data();
    return made;
}

void run_rope(GpuMeter& gpu) {
    const Paged to = paged(gpu, T);
    std::vector<std::int64_t> slots;
    std::vector<std::int32_t> positions;
    for (std::int64_t t = 0; t < T; ++t) {
        slots.push_back(to.order[static_cast<std::size_t>(t / P)] * P + t % P);
        positions.push_back(static_cast<std::int32_t>(t));
    }
    const DeviceBuffer device_slots = gpu.array(slots), device_positions = gpu.array(positions);
    const DeviceBuffer qkv = gpu.buffer(T * (Q + 2 * K) * D * 2), q_out = gpu.buffer(T * Q * D * 2);
    const DeviceBuffer cos = gpu.floats(T * D / 2), sin = gpu.floats(T * D / 2),
                       norm = gpu.buffer(D * 2);
    const ActView all = halves_of(qkv, T, (Q + 2 * K) * D);
    gpu.measure(
        {.family = "rope",
         .what = "8192 tokens, qk-norm, KV write",
         .bytes = 4.0 * T * (Q + 2 * K) * D,
         .target = 0.85},
        [&](int) {
            cuda_ops()->rope(
                {.q = kernels::cols(all, 0, Q * D),
                 .k = kernels::cols(all, Q * D, K * D),
                 .v = kernels::cols(all, (Q + K) * D, K * D),
                 .q_out = halves_of(q_out, T, Q * D),
                 .kv = to.kv,
                 .slots = static_cast<const std::int64_t*>(device_slots.data()),
                 .positions = static_cast<const std::int32_t*>(device_positions.data()),
                 .cos = floats_of(cos, T, D / 2),
                 .sin = floats_of(sin, T, D / 2),
                 .q_norm = static_cast<const bf16*>(norm.data()),
                 .k_norm = static_cast<const bf16*>(norm.data()),
                 .norm_eps = 1e-6f,
                 .stream = gpu.stream()}
            );
        }
    );
}

void run_silu(GpuMeter& gpu) {
    const DeviceBuffer both = gpu.buffer(T * 2 * F * 2), y = gpu.buffer(T * F * 2);
    const ActView all = halves_of(both, T, 2 * F);
    gpu.measure(
        {.family = "silu_mul", .what = "8192 x 12288", .bytes = 6.0 * T * F, .target = 0.85},
        [&](int) {
            cuda_ops()->silu_mul(
                {.gate = kernels::cols(all, 0, F),
                 .up = kernels::cols(all, F, F),
                 .y = halves_of(y, T, F),
                 .stream = gpu.stream()}
            );
        }
    );
}

void run_embedding(GpuMeter& gpu) {
    std::vector<TokenId> ids;
    std::mt19937 random(3);
    for (std::int64_t t = 0; t < T; ++t) ids.push_back(static_cast<TokenId>(random() % V));
    const DeviceBuffer device_ids = gpu.array(ids), table = gpu.buffer(V * H * 2),
                       y = gpu.floats(T * H);
    gpu.measure(
        {.family = "embedding", .what = "8192 x 4096", .bytes = 6.0 * T * H, .target = 0.85},
        [&](int) {
            cuda_ops()->embedding(
                {.ids = static_cast<const TokenId*>(device_ids.data()),
                 .table = {static_cast<const bf16*>(table.data()), V, H, H},
                 .y = floats_of(y, T, H),
                 .stream = gpu.stream()}
            );
        }
    );
}

void run_digest(GpuMeter& gpu) {
    const std::int64_t bytes = (std::int64_t{2} << 30) / kScaledDown;
    const DeviceBuffer data = gpu.buffer(bytes), sum = gpu.buffer(256);
    gpu.measure(
        {.family = "digest", .what = "2 GiB", .bytes = static_cast<double>(bytes), .target = 0.85},
        [&](int) {
            cuda_ops()->digest(
                {.data = data.data(),
                 .rows = bytes / (2 * H),
                 .row_bytes = 2 * H,
                 .row_stride_bytes = 2 * H,
                 .words_per_row = H / 4,
                 .sum = static_cast<Digest*>(sum.data()),
                 .stream = gpu.stream()}
            );
        }
    );
}

void run_shard_copy(GpuMeter& gpu) {
    const std::int64_t rows = 65536 / kScaledDown;
    const DeviceBuffer from = gpu.buffer(rows * H * 2), to = gpu.buffer(rows * H * 2);
    const ShardCopy copy{
        .src = from.data(),
        .src_dtype = DType::kBF16,
        .src_stride = H,
        .dst = {static_cast<bf16*>(to.data()), rows, H / 2, H / 2}};
    gpu.measure(
        {.family = "shard_copy",
         .what = "half the columns of 65536 x 4096",
         .bytes = 2.0 * rows * H,
         .target = 0.85},
        [&](int) {
            cuda_ops()->shard_copy({.copies = {&copy, 1}, .stream = gpu.stream()});
        }
    );
}

void attend(
    GpuMeter& gpu,
    const std::string& what,
    const Paged& kv,
    const std::vector<std::int32_t>& q_starts,
    const std::vector<std::int32_t>& kv_lens,
    const std::vector<std::int32_t>& page_starts,
    GpuCase c,
    void (*op)(const AttentionArgs&)
) {
    const std::int64_t tokens = q_starts.back();
    const DeviceBuffer q = gpu.buffer(tokens * Q * D * 2), out = gpu.buffer(tokens * Q * D * 2);
    const DeviceBuffer starts = gpu.array(q_starts), lens = gpu.array(kv_lens);
    const DeviceBuffer device_page_starts = gpu.array(page_starts);
    c.family = "attention";
    c.what = what;
    gpu.measure(c, [&](int) {
        op({.q = halves_of(q, tokens, Q * D),
            .out = halves_of(out, tokens, Q * D),
            .kv = kv.kv,
            .num_q_heads = Q,
            .num_rows = static_cast<std::int32_t>(kv_lens.size()),
            .q_starts = static_cast<const std::int32_t*>(starts.data()),
            .kv_lens = static_cast<const std::int32_t*>(lens.data()),
            .pages = static_cast<const PageId*>(kv.pages.data()),
            .page_starts = static_cast<const std::int32_t*>(device_page_starts.data()),
            .kv_len_max = kv_lens.front(),
            .q_len_max = q_starts[1],
            .scale = 0.0883883476f,
            .workspace = gpu.workspace(),
            .arrivals = gpu.arrivals(),
            .stream = gpu.stream()});
    });
}

// Measures a step of one token per request; `lens` has each request's number of keys.
void decode(
    GpuMeter& gpu, const std::string& what, const std::vector<std::int32_t>& kv_lens, double target
) {
    std::vector<std::int32_t> q_starts{0}, page_starts;
    std::int64_t num_keys = 0;
    for (const std::int32_t len : kv_lens) {
        q_starts.push_back(static_cast<std::int32_t>(q_starts.size()));
        page_starts.push_back(static_cast<std::int32_t>(num_keys / P));
        num_keys += len;
    }
    const Paged kv = paged(gpu, num_keys);
    const double bytes = 4.0 * static_cast<double>(num_keys * K * D);
    const GpuCase c{.bytes = bytes, .against = GpuLimit::kCopy, .target = target};
    attend(gpu, what, kv, q_starts, kv_lens, page_starts, c, attention_cuda);
}

// The first request has `first_len` keys, the others `len`.
std::vector<std::int32_t> lens(std::int32_t first_len, std::size_t num_others, std::int32_t len) {
    constexpr auto kLessKeys = static_cast<std::int32_t>(kScaledDown);
    std::vector<std::int32_t> all{first_len / kLessKeys};
    all.resize(1 + num_others / kRequestsScaledDown, len / kLessKeys);
    return all;
}

void run_decode(GpuMeter& gpu) {
    const std::vector<std::int32_t> kv_lens = lens(4096, 63, 4096);
    decode(gpu, "decode, 64 requests x 4096, GQA 4:1", kv_lens, 0.80);
    const auto num = static_cast<std::int32_t>(kv_lens.size());
    const std::int32_t len = kv_lens.front();
    std::vector<std::int32_t> q_starts, page_starts;
    for (std::int32_t r = 0; r <= num; ++r) q_starts.push_back(r);
    for (std::int32_t r = 0; r < num; ++r)
        page_starts.push_back(r * len / static_cast<std::int32_t>(P));
    attend(
        gpu,
        "the same, deterministic",
        paged(gpu, std::int64_t{num} * len),
        q_starts,
        kv_lens,
        page_starts,
        {.bytes = 4.0 * num * len * K * D, .against = GpuLimit::kCopy},
        attention_cuda_deterministic
    );
    // One request is bound by latency. Targets: the times of FlashInfer and FA3 on another GPU, as
    // published by vLLM: 11 us a layer at 1k, 20 at 8k, 45 at 32k.
    decode(gpu, "decode, 1 request x 1024", lens(1024, 0, 0), 0.08);
    decode(gpu, "decode, 1 request x 8192", lens(8192, 0, 0), 0.30);
    decode(gpu, "decode, 1 request x 32768", lens(32768, 0, 0), 0.60);
    // Shows whether the work of one request is spread over the GPU.
    decode(gpu, "decode, 1 request x 32768 beside 63 x 1024", lens(32768, 63, 1024), 0);
    decode(gpu, "decode, 1 request x 16384 beside 255 x 1024", lens(16384, 255, 1024), 0);
    decode(gpu, "decode, 1 request x 65536", lens(65536, 0, 0), 0);
    decode(gpu, "decode, 8 requests x 65536", lens(65536, 7, 65536), 0);
}

void run_prefill(GpuMeter& gpu) {
    const Paged kv = paged(gpu, T);
    const double flops = 4.0 * D * Q * T * (T + 1) / 2;
    const bool is_hopper = kernels::compute_capability() == 90;
    const std::vector<std::int32_t> q_starts{0, T}, kv_lens{T}, page_starts{0};
    attend(
        gpu,
        "prefill, 8192, causal, mma",
        kv,
        q_starts,
        kv_lens,
        page_starts,
        {.flops = flops, .against = GpuLimit::kMatrix, .target = 0.45},
        attention_cuda_mma
    );
    if (is_hopper) {
        attend(
            gpu,
            "prefill, 8192, causal, wgmma",
            kv,
            q_starts,
            kv_lens,
            page_starts,
            {.flops = flops, .against = GpuLimit::kMatrix, .target = 0.60},
            attention_cuda
        );
    }
    attend(
        gpu,
        "prefill, 8192, causal, deterministic",
        kv,
        q_starts,
        kv_lens,
        page_starts,
        {.flops = flops, .against = GpuLimit::kMatrix},
        attention_cuda_deterministic
    );
    // A short chunk on long KV, as after a hit of the prefix cache. One block walks all keys of
    // 128 rows, without a split of the KV. Target: 50 us, the time of FA3 and FlashInfer, which
    // split the KV.
    constexpr std::int64_t kChunk = 64;
    attend(
        gpu,
        "prefill, 64 tokens on 8192 keys",
        kv,
        {0, static_cast<std::int32_t>(std::min(kChunk, T))},
        kv_lens,
        page_starts,
        {.bytes = 4.0 * static_cast<double>(T * K * D), .against = GpuLimit::kCopy, .target = 0.15},
        attention_cuda
    );
}

void run_products(GpuMeter& gpu) {
    struct Shape {
        const char* name;
        std::int64_t N;
        std::int64_t depth;
    };
    constexpr Shape kShapes[] = {
        {"qkv", (Q + 2 * K) * D, H},
        {"o", H, Q * D},
        {"gate, up", 2 * F, H},
        {"down", H, F},
        {"head", V, H},
    };
    for (const Shape& shape : kShapes) {
        const std::int64_t w_bytes = shape.N * shape.depth * 2;
        const auto copies = static_cast<int>(kRotateBytes / w_bytes + 1);
        const DeviceBuffer w = gpu.buffer(w_bytes * copies);
        const DeviceBuffer x = gpu.buffer(kRowsMany * shape.depth * 2),
                           y = gpu.buffer(kRowsMany * shape.N * 2);
        // 1100 rows use the algorithm that was timed for 2048.
        for (const std::int64_t rows : {1, 2, 4, 8, 16, 32, 64, 1100, 2048, 4096}) {
            if (rows > 64 && shape.N == V) continue;  // no step computes logits for this many rows
            const std::int64_t M = std::min(rows, kRowsMany);
            const double m = static_cast<double>(M), n = static_cast<double>(shape.N);
            const auto depth = static_cast<double>(shape.depth);
            GpuCase c{
                .family = "linear",
                .bytes = 2 * (n * depth + m * depth + m * n),
                .flops = 2 * m * n * depth};
            c.against = rows == 1   ? GpuLimit::kCopy
                        : rows > 64 ? GpuLimit::kMatrix
                                    : GpuLimit::kRoofline;
            const bool is_few = rows >= 8 && rows <= 64;
            c.target = is_few ? 0.75 : rows == 1 || rows == 4096 ? 0.80 : rows > 64 ? 0.70 : 0;
            const auto named = [&](const char* suffix) {
                return std::string(shape.name) + ", M = " + std::to_string(rows) + suffix;
            };
            const auto w_of = [&](int i) {
                return static_cast<const std::byte*>(w.data()) + i % copies * w_bytes;
            };
            std::vector<const void*> all_w;
            for (int i = 0; i < copies; ++i) all_w.push_back(w_of(i));
            gpu.tune(x, all_w, y, M, shape.N, shape.depth);
            c.what = named("");
            gpu.measure(c, [&](int i) {
                gpu.multiply(*cuda_ops(), x, w_of(i), y, M, shape.N, shape.depth);
            });
            c.what = named(", deterministic");
            c.target = 0;
            gpu.measure(c, [&](int i) {
                gpu.multiply(*cuda_deterministic_ops(), x, w_of(i), y, M, shape.N, shape.depth);
            });
        }
    }
}

constexpr GpuFamily kFamilies[] = {
    {"rmsnorm", run_norm},
    {"rope", run_rope},
    {"silu_mul", run_silu},
    {"embedding", run_embedding},
    {"digest", run_digest},
    {"shard_copy", run_shard_copy},
    {"logits", run_logits},
    {"small", run_small},
    {"decode", run_decode},
    {"prefill", run_prefill},
    {"linear", run_products},
    {"experts", run_experts},
};

}  // namespace

std::span<const GpuFamily> gpu_families() { return kFamilies; }

}  // namespace pitstop::kernels::bench
