#include "bench/gpu_logits.h"

#include "bench/gpu_sizes.h"

#include <vector>

namespace pitstop::kernels::bench {
namespace {

constexpr std::int64_t H = kQwen3_8b.H, V = kQwen3_8b.V;
constexpr std::int64_t T = kPrefillTokens;
constexpr std::int64_t kRequests = kDecodeRequests;

// Several copies of all requests' logits, used in turn, so that none is in the cache
// when it is read.
class LogitsInTurn {
  public:
    static constexpr double kBytes = 4.0 * kRequests * V;

    explicit LogitsInTurn(GpuMeter& gpu) {
        for (int i = 0; i < kCopies; ++i) copies_.push_back(gpu.floats(kRequests * V));
    }
    [[nodiscard]] auto view(int i) const {
        return floats_of(copies_[static_cast<std::size_t>(i % kCopies)], kRequests, V);
    }

  private:
    static constexpr int kCopies = 7;  // 39 MB each
    std::vector<DeviceBuffer> copies_{};
};

void run_sampling(GpuMeter& gpu, const LogitsInTurn& logits) {
    const DeviceBuffer choices = gpu.buffer(kRequests * 64);
    const auto sample = [&](const char* what, const SampleRow& row, double target) {
        std::vector<SampleRow> rows(kRequests, row);
        for (std::size_t r = 0; r < rows.size(); ++r) rows[r].seed = r;
        const DeviceBuffer device_rows = gpu.array(rows);
        const DeviceBuffer arrivals =
            gpu.array(std::vector<std::uint32_t>(SampleArgs::kArrivals, 0));
        gpu.measure(
            {.family = "sampling", .what = what, .bytes = logits.kBytes, .target = target},
            [&](int i) {
                cuda_ops()->sample(
                    {.logits = logits.view(i),
                     .rows = static_cast<const SampleRow*>(device_rows.data()),
                     .may_truncate = is_truncating(row, V),
                     .choices = static_cast<Choice*>(choices.data()),
                     .workspace = gpu.workspace(),
                     .arrivals = static_cast<std::uint32_t*>(arrivals.data()),
                     .stream = gpu.stream()}
                );
            }
        );
    };
    sample("64 x 151936, greedy", {}, 0);
    sample("64 x 151936, plain draw", {.temperature = 1.f}, 0);
    sample("64 x 151936, top-p 0.95", {.temperature = 1.f, .top_p = 0.95f}, 0.5);
    sample("64 x 151936, top-k 50", {.temperature = 1.f, .top_k = 50}, 0);
}

}  // namespace

void run_logits(GpuMeter& gpu) {
    constexpr std::int64_t R = kRequests;
    const double bytes = LogitsInTurn::kBytes;
    const LogitsInTurn logits(gpu);
    const DeviceBuffer counts = gpu.buffer(R * 4), stats = gpu.buffer(R * 64);
    const DeviceBuffer softmax_rows = gpu.array(std::vector<SoftmaxRow>(R));
    gpu.measure(
        {.family = "nonfinite", .what = "64 x 151936", .bytes = bytes, .target = 0.85},
        [&](int i) {
            cuda_ops()->count_nonfinite(
                {.logits = logits.view(i),
                 .counts = static_cast<std::int32_t*>(counts.data()),
                 .stream = gpu.stream()}
            );
        }
    );
    gpu.measure({.family = "logprobs", .what = "sums of 64 x 151936", .bytes = bytes}, [&](int i) {
        cuda_ops()->softmax_stats(
            {.logits = logits.view(i),
             .rows = static_cast<const SoftmaxRow*>(softmax_rows.data()),
             .stats = static_cast<SoftmaxStats*>(stats.data()),
             .workspace = gpu.workspace(),
             .stream = gpu.stream()}
        );
    });
    constexpr std::int64_t kTop = 20;
    const DeviceBuffer top_ids = gpu.buffer(R * kTop * 4), top_values = gpu.buffer(R * kTop * 4);
    gpu.measure(
        {.family = "logprobs", .what = "top 20 of 64 x 151936", .bytes = bytes},
        [&](int i) {
            cuda_ops()->top_logits(
                {.logits = logits.view(i),
                 .ids = {static_cast<TokenId*>(top_ids.data()), R, kTop, kTop},
                 .values = floats_of(top_values, R, kTop),
                 .stream = gpu.stream()}
            );
        }
    );
    run_sampling(gpu, logits);
}

void run_small(GpuMeter& gpu) {
    constexpr std::int64_t R = kRequests, kEntries = 500;
    const DeviceBuffer hidden = gpu.floats(T * H), device_rows = gpu.floats(R * H);
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
    const DeviceBuffer device_index = gpu.array(index), device_starts = gpu.array(starts);
    gpu.measure(
        {.family = "gather_rows", .what = "64 rows of 4096 fp32", .bytes = 8.0 * R * H},
        [&](int) {
            cuda_ops()->gather_rows(
                {.x = floats_of(hidden, T, H),
                 .row_index = static_cast<const std::int32_t*>(device_index.data()),
                 .y = floats_of(device_rows, R, H),
                 .stream = gpu.stream()}
            );
        }
    );
    const DeviceBuffer logits = gpu.floats(R * V), device_counts = gpu.array(counts);
    const DeviceBuffer device_biases = gpu.array(biases);
    const DeviceBuffer penalties = gpu.array(std::vector<PenaltyRow>(R, {.presence = 0.1f}));
    gpu.measure(
        {.family = "penalties",
         .what = "64 rows, 500 counts and biases each",
         .bytes = 4.0 * 8.0 * R * kEntries},
        [&](int) {
            cuda_ops()->penalties(
                {.logits = floats_of(logits, R, V),
                 .rows = static_cast<const PenaltyRow*>(penalties.data()),
                 .count_starts = static_cast<const std::int32_t*>(device_starts.data()),
                 .counts = static_cast<const TokenCount*>(device_counts.data()),
                 .bias_starts = static_cast<const std::int32_t*>(device_starts.data()),
                 .biases = static_cast<const LogitBias*>(device_biases.data()),
                 .stream = gpu.stream()}
            );
        }
    );
}

}  // namespace pitstop::kernels::bench
