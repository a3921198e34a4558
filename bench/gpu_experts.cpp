#include "bench/gpu_experts.h"

#include "bench/gpu_sizes.h"

#include <algorithm>
#include <string>
#include <vector>

namespace pitstop::kernels::bench {
namespace {

constexpr std::int64_t H = 2048 / (kScaledDown > 1 ? 16 : 1);
constexpr std::int64_t F = 768 / (kScaledDown > 1 ? 16 : 1);  // of an expert
constexpr std::int64_t kExperts = 128 / (kScaledDown > 1 ? 16 : 1);
constexpr std::int64_t kChosen = 8;
constexpr std::int64_t kOfExpert = 3 * F * H;  // gate, up and down

// Returns the first row of each expert: [kExperts + 1]. Rows are spread evenly over the experts. If
// there are fewer rows than experts, each of kTurns calls uses other experts, so that no weights
// are in the cache.
constexpr int kTurns = 16;
std::vector<std::int32_t> begins_of(std::int64_t rows, std::int64_t turn) {
    std::vector<std::int32_t> begins;
    for (std::int64_t e = 0; e <= kExperts; ++e) {
        const std::int64_t before = (e + turn) * rows / kExperts - turn * rows / kExperts;
        begins.push_back(static_cast<std::int32_t>(before));
    }
    return begins;
}

// Measures the gate and up products of a layer for `tokens` tokens.
void multiply(
    GpuMeter& gpu,
    const Ops& ops,
    const DeviceBuffer& w,
    const std::string& what,
    std::int64_t tokens,
    double target
) {
    const std::int64_t rows = tokens * kChosen;
    const DeviceBuffer x = gpu.buffer(rows * H * 2), y = gpu.buffer(2 * rows * F * 2);
    std::vector<DeviceBuffer> begins;
    for (int turn = 0; turn < kTurns; ++turn) begins.push_back(gpu.array(begins_of(rows, turn)));
    const double num_read = static_cast<double>(std::min(kExperts, rows));
    const double r = static_cast<double>(rows);
    const bool is_many = rows > 64 * kExperts;
    gpu.measure(
        {.family = "expert_linear",
         .what = what,
         .bytes = num_read * 2 * F * H * 2 + r * (H + 2 * F) * 2,
         .flops = 2 * r * 2 * F * H,
         .against = is_many ? GpuLimit::kMatrix : GpuLimit::kRoofline,
         .target = target},
        [&](int i) {
            const auto part = [&](std::int64_t n) {
                return ExpertLinearPart{
                    .w = {static_cast<const bf16*>(w.data()) + n * F * H, F, H, H},
                    .expert_stride = kOfExpert,
                    .y = kernels::rows(halves_of(y, 2 * rows, F), n * rows, rows)};
            };
            const ExpertLinearPart parts[] = {part(0), part(1)};
            ops.expert_linear(
                {.x = halves_of(x, rows, H),
                 .parts = parts,
                 .begins = static_cast<const std::int32_t*>(
                     begins[static_cast<std::size_t>(i % kTurns)].data()
                 ),
                 .num_experts = static_cast<std::int32_t>(kExperts),
                 .stream = gpu.stream()}
            );
        }
    );
}

}  // namespace

void run_experts(GpuMeter& gpu) {
    const DeviceBuffer w = gpu.buffer(kExperts * kOfExpert * 2);
    // Where experts have more than 64 rows, the deterministic ops multiply by mma.sync, the others
    // by wgmma.
    for (const std::int64_t tokens : {1, 32, 2048, 8192}) {
        const std::int64_t T = tokens > 32 ? tokens / kScaledDown : tokens;
        const std::string what = "gate, up of qwen3-30b-a3b, " + std::to_string(tokens) + " tokens";
        multiply(gpu, *cuda_ops(), w, what, T, tokens == 8192 ? 0.60 : 0);
        multiply(gpu, *cuda_deterministic_ops(), w, what + ", deterministic", T, 0);
    }
}

}  // namespace pitstop::kernels::bench
