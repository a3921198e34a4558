// pitstop_gpu_bench: every family of CUDA kernels at serving sizes of qwen3-8b, as a fraction of
// what this GPU copies and multiplies at most, measured in the same run. Without a GPU it says so.
//
// One family can be asked for alone, with limits that were measured before: a caller that gives
// each a process loses one to a crash and no other. The file of figures is written anew after each.
//
// A figure is the median of kSamples timings, by events, of as many launches as take kSampleMs.
// Inputs rotate over more memory than the L2 cache holds; matrices of the limits are random, as
// zeros draw less power.
#include "base/flags.h"
#include "kernels/attention_cuda.h"
#include "kernels/cuda_device.h"
#include "kernels/device_memory.h"
#include "kernels/ops.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>

namespace pitstop {
namespace {

using Json = nlohmann::json;

constexpr int kSamples = 10;
constexpr double kSampleMs = 20.0;
constexpr std::int64_t kRotateBytes = std::int64_t{256} << 20;  // four L2 caches and more

// qwen3-8b.
constexpr std::int64_t H = 4096, F = 12288, Q = 32, K = 8, D = 128, V = 151936, P = 16;
constexpr std::int64_t T = 8192;  // tokens of a prefill step

enum class Against : std::uint8_t { kCopy, kMatrix, kRoofline };
const char* name_of(Against against) {
    switch (against) {
        case Against::kCopy:
            return "copy bandwidth";
        case Against::kMatrix:
            return "matrix rate";
        case Against::kRoofline:
            return "roofline";
    }
    CHECK(false);
}

struct Case {
    std::string family{};
    std::string what{};
    double bytes = 0;  // moved at least, per call
    double flops = 0;
    Against against = Against::kCopy;
    double target = 0;  // fraction; 0: none
};

struct Limits {
    double copy_bytes_s = 0;
    double matrix_flop_s = 0;

    // Seconds that a case takes at least.
    [[nodiscard]] double least(const Case& c) const {
        const double copy = c.bytes / copy_bytes_s;
        const double matrix = c.flops / matrix_flop_s;
        if (c.against == Against::kCopy) return copy;
        return c.against == Against::kMatrix ? matrix : std::max(copy, matrix);
    }
};

class GpuBench {
  public:
    static Result<GpuBench> make() {
        GpuBench bench;
        ASSIGN_OR_RETURN(bench.stream_, DeviceStream::create(StreamPriority::kStep));
        ASSIGN_OR_RETURN(bench.begin_, DeviceEvent::create());
        ASSIGN_OR_RETURN(bench.end_, DeviceEvent::create());
        ASSIGN_OR_RETURN(bench.workspace_, DeviceBuffer::create(kWorkspaceBytes));
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        bench.noise_.resize(std::size_t{8} << 20);
        for (bf16& x : bench.noise_) x = to_bf16(normal(random));
        return bench;
    }

    void measure_limits() {
        const std::int64_t bytes = std::int64_t{4} << 30;
        const DeviceBuffer from = buffer(bytes);
        const DeviceBuffer to = buffer(bytes);
        const double copy_s =
            time([&](int) { copy_on_device(to.data(), from.data(), bytes, stream()); });
        limits_.copy_bytes_s = 2.0 * static_cast<double>(bytes) / copy_s;
        constexpr std::int64_t kSide = 8192;
        const DeviceBuffer x = buffer(kSide * kSide * 2);
        const DeviceBuffer w = buffer(kSide * kSide * 2);
        const DeviceBuffer y = buffer(kSide * kSide * 2);
        const double product_s =
            time([&](int) { multiply(*cuda_ops(), x, w.data(), y, kSide, kSide, kSide); });
        limits_.matrix_flop_s = 2.0 * static_cast<double>(kSide * kSide * kSide) / product_s;
        std::printf(
            "copy %.0f GB/s (read + write), bf16 products %.0f TFLOP/s\n",
            limits_.copy_bytes_s * 1e-9,
            limits_.matrix_flop_s * 1e-12
        );
    }

    void set_limits(const Limits& limits) { limits_ = limits; }

    struct Family {
        const char* name;
        void (GpuBench::*run)();
    };
    static const std::vector<Family>& families();

    [[nodiscard]] Json report() const {
        return {
            {"limits",
             {{"copy_gb_s", limits_.copy_bytes_s * 1e-9},
              {"matrix_tflop_s", limits_.matrix_flop_s * 1e-12}}},
            {"kernels", rows_}};
    }
    void call_after_each_figure(std::function<void()> call) { after_figure_ = std::move(call); }

  private:
    static constexpr std::int64_t kWorkspaceBytes = std::int64_t{512} << 20;

    [[nodiscard]] Stream stream() const { return stream_.stream(); }
    [[nodiscard]] Workspace workspace() const { return {workspace_.data(), workspace_.bytes()}; }

    // Device memory full of normal bf16 numbers.
    [[nodiscard]] DeviceBuffer buffer(std::int64_t bytes) const {
        Result<DeviceBuffer> made = DeviceBuffer::create(bytes);
        if (!made) throw std::runtime_error(made.error().message);
        const auto noise_bytes = static_cast<std::int64_t>(noise_.size() * sizeof(bf16));
        for (std::int64_t at = 0; at < bytes; at += noise_bytes) {
            copy_and_wait(
                static_cast<std::byte*>(made->data()) + at,
                noise_.data(),
                std::min(noise_bytes, bytes - at)
            );
        }
        return *std::move(made);
    }
    // fp32 numbers: the same memory read as fp32 would hold NaNs.
    [[nodiscard]] DeviceBuffer floats(std::int64_t num) const {
        std::vector<float> host(noise_.size());
        for (std::size_t i = 0; i < host.size(); ++i) host[i] = to_float(noise_[i]);
        return filled(host, num);
    }
    template <class X>
    [[nodiscard]] DeviceBuffer filled(const std::vector<X>& host, std::int64_t num) const {
        Result<DeviceBuffer> made = DeviceBuffer::create(num * std::int64_t{sizeof(X)});
        if (!made) throw std::runtime_error(made.error().message);
        const auto size = static_cast<std::int64_t>(host.size());
        for (std::int64_t at = 0; at < num; at += size) {
            copy_and_wait(
                static_cast<X*>(made->data()) + at,
                host.data(),
                std::min(size, num - at) * std::int64_t{sizeof(X)}
            );
        }
        return *std::move(made);
    }
    template <class X>
    [[nodiscard]] DeviceBuffer array(const std::vector<X>& host) const {
        return filled(host, static_cast<std::int64_t>(host.size()));
    }

    // Median seconds of a call; it is told the number of the call, to rotate its inputs.
    template <class Call>
    double time(Call call) {
        int number = 0;
        const auto run_ms = [&](int num) {
            begin_.record(stream());
            for (int i = 0; i < num; ++i) call(number++);
            end_.record(stream());
            end_.wait();
            return end_.ms_since(begin_);
        };
        run_ms(3);  // chooses algorithms, fills caches
        const double once_ms = std::max(run_ms(3) / 3, 1e-4);
        const int num = std::clamp(static_cast<int>(kSampleMs / once_ms), 1, 2000);
        std::vector<double> samples;
        for (int i = 0; i < kSamples; ++i) samples.push_back(run_ms(num) / num);
        std::sort(samples.begin(), samples.end());
        return samples[samples.size() / 2] * 1e-3;
    }

    template <class Call>
    void measure(const Case& c, Call call) {
        const double s = time(call);
        const double fraction = limits_.least(c) / s;
        rows_.push_back(
            {{"family", c.family},
             {"what", c.what},
             {"us", s * 1e6},
             {"bytes", c.bytes},
             {"flops", c.flops},
             {"of", name_of(c.against)},
             {"fraction", fraction},
             {"target", c.target},
             {"met", c.target == 0 ? Json(nullptr) : Json(fraction >= c.target)}}
        );
        std::printf(
            "%-12s %-44s %9.1f us %7.0f GB/s %6.0f TFLOP/s  %3.0f %% of the %s%s\n",
            c.family.c_str(),
            c.what.c_str(),
            s * 1e6,
            c.bytes / s * 1e-9,
            c.flops / s * 1e-12,
            100 * fraction,
            name_of(c.against),
            c.target == 0          ? ""
            : fraction >= c.target ? ", target met"
                                   : ", BELOW TARGET"
        );
        std::fflush(stdout);
        after_figure_();
    }

    static View2<float> floats_of(
        const DeviceBuffer& memory, std::int64_t rows, std::int64_t cols
    ) {
        return {static_cast<float*>(memory.data()), rows, cols, cols};
    }
    static ActView halves_of(const DeviceBuffer& memory, std::int64_t rows, std::int64_t cols) {
        return {memory.data(), DType::kBF16, rows, cols, cols};
    }

    void multiply(
        const Ops& ops,
        const DeviceBuffer& x,
        const void* w,
        const DeviceBuffer& y,
        std::int64_t M,
        std::int64_t N,
        std::int64_t depth
    ) const {
        const LinearPart part{
            .w = {static_cast<const bf16*>(w), N, depth, depth}, .y = halves_of(y, M, N)};
        ops.linear(
            {.x = halves_of(x, M, depth),
             .parts = {&part, 1},
             .workspace = workspace(),
             .stream = stream()}
        );
    }

    void run_norm() {
        const DeviceBuffer x = floats(T * H), delta = floats(T * H), w = buffer(H * 2);
        const DeviceBuffer y = buffer(T * H * 2);
        measure(
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
                     .stream = stream()}
                );
            }
        );
    }

    // A layer's KV: pages in shuffled order.
    struct Paged {
        DeviceBuffer memory{};
        DeviceBuffer pages{};
        std::vector<std::int32_t> order{};
        KvCache kv{};
    };
    [[nodiscard]] Paged paged(std::int64_t tokens) const {
        Paged made;
        const std::int64_t num = tokens / P;
        made.order.resize(static_cast<std::size_t>(num));
        for (std::size_t i = 0; i < made.order.size(); ++i)
            made.order[i] = static_cast<std::int32_t>(i);
        std::shuffle(made.order.begin(), made.order.end(), std::mt19937(2));
        made.pages = array(made.order);
        made.kv = {
            .num_pages = static_cast<std::int32_t>(num),
            .page_size = P,
            .num_kv_heads = K,
            .head_dim = D};
        made.memory = buffer(kv_bytes(made.kv));
        made.kv.data = made.memory.data();
        return made;
    }

    void run_rope() {
        const Paged to = paged(T);
        std::vector<std::int64_t> slots;
        std::vector<std::int32_t> positions;
        for (std::int64_t t = 0; t < T; ++t) {
            slots.push_back(to.order[static_cast<std::size_t>(t / P)] * P + t % P);
            positions.push_back(static_cast<std::int32_t>(t));
        }
        const DeviceBuffer slots_there = array(slots), positions_there = array(positions);
        const DeviceBuffer qkv = buffer(T * (Q + 2 * K) * D * 2), q_out = buffer(T * Q * D * 2);
        const DeviceBuffer cos = floats(T * D / 2), sin = floats(T * D / 2), norm = buffer(D * 2);
        const ActView all = halves_of(qkv, T, (Q + 2 * K) * D);
        measure(
            {.family = "rope",
             .what = "8192 tokens, qk-norm, KV write",
             .bytes = 4.0 * T * (Q + 2 * K) * D,
             .target = 0.85},
            [&](int) {
                cuda_ops()->rope(
                    {.q = cols(all, 0, Q * D),
                     .k = cols(all, Q * D, K * D),
                     .v = cols(all, (Q + K) * D, K * D),
                     .q_out = halves_of(q_out, T, Q * D),
                     .kv = to.kv,
                     .slots = static_cast<const std::int64_t*>(slots_there.data()),
                     .positions = static_cast<const std::int32_t*>(positions_there.data()),
                     .cos = floats_of(cos, T, D / 2),
                     .sin = floats_of(sin, T, D / 2),
                     .q_norm = static_cast<const bf16*>(norm.data()),
                     .k_norm = static_cast<const bf16*>(norm.data()),
                     .norm_eps = 1e-6f,
                     .stream = stream()}
                );
            }
        );
    }

    void run_silu() {
        const DeviceBuffer both = buffer(T * 2 * F * 2), y = buffer(T * F * 2);
        const ActView all = halves_of(both, T, 2 * F);
        measure(
            {.family = "silu_mul", .what = "8192 x 12288", .bytes = 6.0 * T * F, .target = 0.85},
            [&](int) {
                cuda_ops()->silu_mul(
                    {.gate = cols(all, 0, F),
                     .up = cols(all, F, F),
                     .y = halves_of(y, T, F),
                     .stream = stream()}
                );
            }
        );
    }

    void run_embedding() {
        std::vector<TokenId> ids;
        std::mt19937 random(3);
        for (std::int64_t t = 0; t < T; ++t) ids.push_back(static_cast<TokenId>(random() % V));
        const DeviceBuffer ids_there = array(ids), table = buffer(V * H * 2), y = floats(T * H);
        measure(
            {.family = "embedding", .what = "8192 x 4096", .bytes = 6.0 * T * H, .target = 0.85},
            [&](int) {
                cuda_ops()->embedding(
                    {.ids = static_cast<const TokenId*>(ids_there.data()),
                     .table = {static_cast<const bf16*>(table.data()), V, H, H},
                     .y = floats_of(y, T, H),
                     .stream = stream()}
                );
            }
        );
    }

    void run_digest() {
        const std::int64_t bytes = std::int64_t{2} << 30;
        const DeviceBuffer data = buffer(bytes), sum = buffer(256);
        measure(
            {.family = "digest",
             .what = "2 GiB",
             .bytes = static_cast<double>(bytes) * copy_per_read_,
             .target = 0.85},
            [&](int) {
                cuda_ops()->digest(
                    {.data = data.data(),
                     .rows = bytes / (2 * H),
                     .row_bytes = 2 * H,
                     .row_stride_bytes = 2 * H,
                     .words_per_row = H / 4,
                     .sum = static_cast<Digest*>(sum.data()),
                     .stream = stream()}
                );
            }
        );
    }

    void run_shard_copy() {
        const std::int64_t rows = 65536;
        const DeviceBuffer from = buffer(rows * H * 2), to = buffer(rows * H * 2);
        const ShardCopy copy{
            .src = from.data(),
            .src_dtype = DType::kBF16,
            .src_stride = H,
            .dst = {static_cast<bf16*>(to.data()), rows, H / 2, H / 2}};
        measure(
            {.family = "shard_copy",
             .what = "half the columns of 65536 x 4096",
             .bytes = 2.0 * rows * H,
             .target = 0.85},
            [&](int) {
                cuda_ops()->shard_copy({.copies = {&copy, 1}, .stream = stream()});
            }
        );
    }

    void run_logits() {
        constexpr std::int64_t R = 64;
        const int copies = 7;  // 39 MB each
        std::vector<DeviceBuffer> logits;
        for (int i = 0; i < copies; ++i) logits.push_back(floats(R * V));
        const auto view = [&](int i) {
            return floats_of(logits[static_cast<std::size_t>(i % copies)], R, V);
        };
        const double bytes = 4.0 * R * V;
        const DeviceBuffer counts = buffer(R * 4), stats = buffer(R * 64), choices = buffer(R * 64);
        const DeviceBuffer softmax_rows = array(std::vector<SoftmaxRow>(R));
        measure(
            {.family = "nonfinite", .what = "64 x 151936", .bytes = bytes, .target = 0.85},
            [&](int i) {
                cuda_ops()->count_nonfinite(
                    {.logits = view(i),
                     .counts = static_cast<std::int32_t*>(counts.data()),
                     .stream = stream()}
                );
            }
        );
        measure({.family = "logprobs", .what = "sums of 64 x 151936", .bytes = bytes}, [&](int i) {
            cuda_ops()->softmax_stats(
                {.logits = view(i),
                 .rows = static_cast<const SoftmaxRow*>(softmax_rows.data()),
                 .stats = static_cast<SoftmaxStats*>(stats.data()),
                 .workspace = workspace(),
                 .stream = stream()}
            );
        });
        constexpr std::int64_t kTop = 20;
        const DeviceBuffer top_ids = buffer(R * kTop * 4), top_values = buffer(R * kTop * 4);
        measure(
            {.family = "logprobs", .what = "top 20 of 64 x 151936", .bytes = bytes},
            [&](int i) {
                cuda_ops()->top_logits(
                    {.logits = view(i),
                     .ids = {static_cast<TokenId*>(top_ids.data()), R, kTop, kTop},
                     .values = floats_of(top_values, R, kTop),
                     .stream = stream()}
                );
            }
        );
        const auto sample = [&](const char* what, const SampleRow& row, double target) {
            std::vector<SampleRow> rows(R, row);
            for (std::size_t r = 0; r < rows.size(); ++r) rows[r].seed = r;
            const DeviceBuffer rows_there = array(rows);
            measure(
                {.family = "sampling", .what = what, .bytes = bytes, .target = target},
                [&](int i) {
                    cuda_ops()->sample(
                        {.logits = view(i),
                         .rows = static_cast<const SampleRow*>(rows_there.data()),
                         .choices = static_cast<Choice*>(choices.data()),
                         .workspace = workspace(),
                         .stream = stream()}
                    );
                }
            );
        };
        sample("64 x 151936, greedy", {}, 0);
        sample("64 x 151936, plain draw", {.temperature = 1.f}, 0);
        sample("64 x 151936, top-p 0.95", {.temperature = 1.f, .top_p = 0.95f}, 0.5);
        sample("64 x 151936, top-k 50", {.temperature = 1.f, .top_k = 50}, 0);
    }

    // What a step of 64 requests does besides: a few microseconds each, whatever they move.
    void run_small() {
        constexpr std::int64_t R = 64, kEntries = 500;
        const DeviceBuffer hidden = floats(T * H), rows_there = floats(R * H);
        std::vector<std::int32_t> index, starts;
        std::vector<TokenCount> counts;
        std::vector<LogitBias> biases;
        for (std::int64_t r = 0; r < R; ++r) {
            index.push_back(static_cast<std::int32_t>(r * (T / R)));
            starts.push_back(static_cast<std::int32_t>(r * kEntries));
            for (std::int64_t i = 0; i < kEntries; ++i) {
                const auto id = static_cast<TokenId>(i * (V / kEntries) + r);  // once per row
                counts.push_back({.id = id, .num_output = 2});
                biases.push_back({.id = id, .bias = 0.f});
            }
        }
        starts.push_back(static_cast<std::int32_t>(R * kEntries));
        const DeviceBuffer index_there = array(index), starts_there = array(starts);
        measure(
            {.family = "gather_rows", .what = "64 rows of 4096 fp32", .bytes = 8.0 * R * H},
            [&](int) {
                cuda_ops()->gather_rows(
                    {.x = floats_of(hidden, T, H),
                     .row_index = static_cast<const std::int32_t*>(index_there.data()),
                     .y = floats_of(rows_there, R, H),
                     .stream = stream()}
                );
            }
        );
        const DeviceBuffer logits = floats(R * V), counts_there = array(counts);
        const DeviceBuffer biases_there = array(biases);
        const DeviceBuffer penalties = array(std::vector<PenaltyRow>(R, {.presence = 0.1f}));
        measure(
            {.family = "penalties",
             .what = "64 rows, 500 counts and biases each",
             .bytes = 4.0 * 8.0 * R * kEntries},
            [&](int) {
                cuda_ops()->penalties(
                    {.logits = floats_of(logits, R, V),
                     .rows = static_cast<const PenaltyRow*>(penalties.data()),
                     .count_starts = static_cast<const std::int32_t*>(starts_there.data()),
                     .counts = static_cast<const TokenCount*>(counts_there.data()),
                     .bias_starts = static_cast<const std::int32_t*>(starts_there.data()),
                     .biases = static_cast<const LogitBias*>(biases_there.data()),
                     .stream = stream()}
                );
            }
        );
    }

    void run_decode() {
        constexpr std::int64_t R = 64, kLen = 4096;
        const Paged kv = paged(R * kLen);
        std::vector<std::int32_t> q_starts, kv_lens(R, kLen), page_starts;
        for (std::int64_t r = 0; r <= R; ++r) q_starts.push_back(static_cast<std::int32_t>(r));
        for (std::int64_t r = 0; r < R; ++r)
            page_starts.push_back(static_cast<std::int32_t>(r * kLen / P));
        const double bytes = 4.0 * R * kLen * K * D;
        attend(
            "decode, 64 requests x 4096, GQA 4:1",
            kv,
            q_starts,
            kv_lens,
            page_starts,
            {.bytes = bytes, .against = Against::kCopy, .target = 0.80},
            attention_cuda
        );
        attend(
            "the same, deterministic",
            kv,
            q_starts,
            kv_lens,
            page_starts,
            {.bytes = bytes, .against = Against::kCopy},
            attention_cuda_deterministic
        );
    }

    void run_prefill() {
        const Paged kv = paged(T);
        const double flops = 4.0 * D * Q * T * (T + 1) / 2;
        const bool is_hopper = compute_capability() == 90;
        const std::vector<std::int32_t> q_starts{0, T}, kv_lens{T}, page_starts{0};
        attend(
            "prefill, 8192, causal, mma",
            kv,
            q_starts,
            kv_lens,
            page_starts,
            {.flops = flops, .against = Against::kMatrix, .target = 0.45},
            attention_cuda_mma
        );
        if (is_hopper) {
            attend(
                "prefill, 8192, causal, wgmma",
                kv,
                q_starts,
                kv_lens,
                page_starts,
                {.flops = flops, .against = Against::kMatrix, .target = 0.60},
                attention_cuda
            );
        }
        attend(
            "prefill, 8192, causal, deterministic",
            kv,
            q_starts,
            kv_lens,
            page_starts,
            {.flops = flops, .against = Against::kMatrix},
            attention_cuda_deterministic
        );
    }

    void attend(
        const char* what,
        const Paged& kv,
        const std::vector<std::int32_t>& q_starts,
        const std::vector<std::int32_t>& kv_lens,
        const std::vector<std::int32_t>& page_starts,
        Case c,
        void (*op)(const AttentionArgs&)
    ) {
        const std::int64_t tokens = q_starts.back();
        const DeviceBuffer q = buffer(tokens * Q * D * 2), out = buffer(tokens * Q * D * 2);
        const DeviceBuffer starts = array(q_starts), lens = array(kv_lens);
        const DeviceBuffer page_starts_there = array(page_starts);
        c.family = "attention";
        c.what = what;
        measure(c, [&](int) {
            op({.q = halves_of(q, tokens, Q * D),
                .out = halves_of(out, tokens, Q * D),
                .kv = kv.kv,
                .num_q_heads = Q,
                .num_rows = static_cast<std::int32_t>(kv_lens.size()),
                .q_starts = static_cast<const std::int32_t*>(starts.data()),
                .kv_lens = static_cast<const std::int32_t*>(lens.data()),
                .pages = static_cast<const PageId*>(kv.pages.data()),
                .page_starts = static_cast<const std::int32_t*>(page_starts_there.data()),
                .kv_len_max = kv_lens.front(),
                .q_len_max = q_starts[1],
                .scale = 0.0883883476f,
                .workspace = workspace(),
                .stream = stream()});
        });
    }

    void run_products() {
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
            const DeviceBuffer w = buffer(w_bytes * copies);
            const DeviceBuffer x = buffer(4096 * shape.depth * 2), y = buffer(4096 * shape.N * 2);
            for (const std::int64_t M : {1, 64, 4096}) {
                if (M == 4096 && shape.N == V) continue;  // logits of so many rows are never asked
                const double m = static_cast<double>(M), n = static_cast<double>(shape.N);
                const auto depth = static_cast<double>(shape.depth);
                Case c{
                    .family = "linear",
                    .bytes = 2 * (n * depth + m * depth + m * n),
                    .flops = 2 * m * n * depth};
                c.against = M == 1    ? Against::kCopy
                            : M == 64 ? Against::kRoofline
                                      : Against::kMatrix;
                c.target = M == 64 ? 0.75 : 0.80;
                const auto named = [&](const char* suffix) {
                    return std::string(shape.name) + ", M = " + std::to_string(M) + suffix;
                };
                const auto w_of = [&](int i) {
                    return static_cast<const std::byte*>(w.data()) + i % copies * w_bytes;
                };
                c.what = named("");
                measure(c, [&](int i) {
                    multiply(*cuda_ops(), x, w_of(i), y, M, shape.N, shape.depth);
                });
                c.what = named(", deterministic");
                c.target = 0;
                measure(c, [&](int i) {
                    multiply(*cuda_deterministic_ops(), x, w_of(i), y, M, shape.N, shape.depth);
                });
            }
        }
    }

    // What is only read is held against the copy's bytes per second too: reading alone is not
    // slower.
    static constexpr double copy_per_read_ = 1.0;

    DeviceStream stream_{};
    DeviceEvent begin_{};
    DeviceEvent end_{};
    DeviceBuffer workspace_{};
    std::vector<bf16> noise_{};
    Limits limits_{};
    Json rows_ = Json::array();
    std::function<void()> after_figure_ = [] {};
};

Json describe(const CudaDeviceInfo& info) {
    const DeviceMemoryInfo memory = device_memory_info();
    return {
        {"name", info.name},
        {"uuid", info.uuid},
        {"compute_capability", 10 * info.compute_major + info.compute_minor},
        {"multiprocessors", info.num_multiprocessors},
        {"memory_bytes", info.memory_bytes},
        {"free_bytes", memory.free_bytes},
        {"l2_bytes", info.l2_bytes},
        {"driver_cuda", info.driver_version},
        {"runtime_cuda", info.runtime_version},
        {"cublas_lt", info.cublas_lt_version},
        {"cublas_lt_path", info.cublas_lt_path}};
}

const std::vector<GpuBench::Family>& GpuBench::families() {
    static const std::vector<Family> all{
        {"rmsnorm", &GpuBench::run_norm},
        {"rope", &GpuBench::run_rope},
        {"silu_mul", &GpuBench::run_silu},
        {"embedding", &GpuBench::run_embedding},
        {"digest", &GpuBench::run_digest},
        {"shard_copy", &GpuBench::run_shard_copy},
        {"logits", &GpuBench::run_logits},
        {"small", &GpuBench::run_small},
        {"decode", &GpuBench::run_decode},
        {"prefill", &GpuBench::run_prefill},
        {"linear", &GpuBench::run_products},
    };
    return all;
}

struct Options {
    std::string json{};
    std::string family{};  // empty: all; kLimits: none
    double copy_gb_s = 0;  // 0: to be measured
    double matrix_tflop_s = 0;
    bool is_device_only = false;
    bool is_list = false;
};
constexpr const char* kLimits = "limits";

void write(const std::string& path, const Json& report) {
    if (!path.empty()) std::ofstream(path) << report.dump(2) << '\n';
}

Result<> check(const Options& options) {
    const auto& all = GpuBench::families();
    const bool is_known = options.family.empty() || options.family == kLimits ||
                          std::any_of(all.begin(), all.end(), [&](const GpuBench::Family& family) {
                              return options.family == family.name;
                          });
    if (!is_known) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "--family={}; --list names them, and '{}' measures those alone",
            options.family,
            kLimits
        );
    }
    if ((options.copy_gb_s > 0) != (options.matrix_tflop_s > 0)) {
        return make_error(
            ErrorCode::kInvalidArgument, "--copy-gb-s and --matrix-tflop-s: both, or none"
        );
    }
    return Ok{};
}

Result<Json> run(const Options& options) {
    ASSIGN_OR_RETURN(const int num, num_cuda_devices());
    if (num == 0) return make_error(ErrorCode::kUnavailable, "the driver shows no GPU");
    ASSIGN_OR_RETURN(const CudaDeviceInfo info, open_cuda_device(0));
    Json report{{"status", "run"}, {"device", describe(info)}};
    if (options.is_device_only) return report;
    ASSIGN_OR_RETURN(GpuBench bench, GpuBench::make());
    const auto write_so_far = [&] {
        report.update(bench.report());
        write(options.json, report);
    };
    bench.call_after_each_figure(write_so_far);
    if (options.copy_gb_s > 0) {
        bench.set_limits({options.copy_gb_s * 1e9, options.matrix_tflop_s * 1e12});
    } else {
        bench.measure_limits();
    }
    write_so_far();
    for (const GpuBench::Family& family : GpuBench::families()) {
        if (options.family.empty() || options.family == family.name) (bench.*family.run)();
    }
    return report;
}

int main(int argc, char** argv) {
    Options options;
    FlagSet flags("pitstop_gpu_bench", "CUDA kernels as fractions of what the GPU can do at most.");
    flags.add("json", &options.json, "write the figures there, too");
    flags.add("device-only", &options.is_device_only, "say what the GPU is; measure nothing");
    flags.add("list", &options.is_list, "name the families");
    flags.add("family", &options.family, "one alone, or 'limits'");
    flags.add("copy-gb-s", &options.copy_gb_s, "limit, measured before");
    flags.add("matrix-tflop-s", &options.matrix_tflop_s, "limit, measured before");
    if (Result<> parsed = flags.parse(argc, argv); !parsed) return flags.fail(parsed.error());
    if (flags.help_asked()) {
        std::fputs(flags.help().c_str(), stdout);
        return 0;
    }
    if (Result<> checked = check(options); !checked) return flags.fail(checked.error());
    if (options.is_list) {
        for (const GpuBench::Family& family : GpuBench::families()) std::puts(family.name);
        return 0;
    }
    const Result<Json> measured = run(options);
    const Json report =
        measured ? *measured : Json{{"status", "not run"}, {"why", measured.error().message}};
    if (!measured) std::printf("not run: %s\n", measured.error().message.c_str());
    if (measured && options.is_device_only) std::printf("%s\n", report["device"].dump(2).c_str());
    write(options.json, report);
    return 0;
}

}  // namespace
}  // namespace pitstop

int main(int argc, char** argv) {
    try {
        return pitstop::main(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "pitstop_gpu_bench: %s\n", error.what());
        return 1;
    }
}
