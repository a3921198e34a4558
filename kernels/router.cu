#include "kernels/router.h"

#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/runtime/launch.cuh"

#include <algorithm>

namespace pitstop::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

// An expert's place in the order of choice.
struct Candidate {
    float logit;  // -infinity for a NaN
    int expert;

    __device__ bool is_before(const Candidate& other) const {
        return logit > other.logit || (logit == other.logit && expert < other.expert);
    }
};

__device__ Candidate first_of_warp(Candidate mine) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        const Candidate other{
            __shfl_xor_sync(kAllLanes, mine.logit, offset),
            __shfl_xor_sync(kAllLanes, mine.expert, offset)};
        if (other.is_before(mine)) mine = other;
    }
    return mine;
}

// grid [ceil(T / kWarps)], block [kThreads]; a warp owns a token, a lane every 32nd of its logits
// in registers. Latency-bound: k rounds of a butterfly; 128 experts and k = 8 are about 40 shuffles
// per token and 512 bytes. NOT MEASURED on a device.
template <int kPerLane>  // E <= 32 * kPerLane
__global__ void __launch_bounds__(kThreads) route_kernel(
    View2<const float> logits,
    View2<std::int32_t> experts,
    View2<float> weights,
    RouterNorm norm,
    bool rounds_weights
) {
    let_next_kernel_start();
    wait_for_kernel_before();
    const std::int64_t t = std::int64_t{blockIdx.x} * kWarps + warp_index();
    if (t >= logits.rows) return;
    const int E = static_cast<int>(logits.cols);
    const int k = static_cast<int>(experts.cols);
    const float* const row = logits.data + t * logits.stride;
    constexpr float kNone = -__builtin_huge_valf();
    float own[kPerLane];
    bool has_nan = false;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
        const int expert = i * kWarp + lane_index();
        own[i] = expert < E ? row[expert] : kNone;
        has_nan = has_nan || own[i] != own[i];
        if (own[i] != own[i]) own[i] = kNone;
    }
    has_nan = __ballot_sync(kAllLanes, has_nan) != 0;

    // Lane j keeps the j-th chosen expert. Chosen experts are marked, because logits may be equal.
    std::uint32_t taken = 0;  // bit i: own[i] was chosen, or is not an expert
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
        if (i * kWarp + lane_index() >= E) taken |= 1u << i;
    }
    Candidate chosen{kNone, 0};
    float max = 0.f;
    for (int j = 0; j < k; ++j) {
        Candidate best{kNone, kWarp * kPerLane};
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
            const Candidate each{own[i], i * kWarp + lane_index()};
            if ((taken >> i & 1u) == 0 && each.is_before(best)) best = each;
        }
        best = first_of_warp(best);
        if (j == 0) max = best.logit;
        if (lane_index() == j) chosen = best;
        if (best.expert % kWarp == lane_index()) taken |= 1u << best.expert / kWarp;
    }

    float sum = 0.f;
    if (norm == RouterNorm::kAll) {
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
            if (i * kWarp + lane_index() < E) sum += expf(own[i] - max);
        }
    } else if (lane_index() < k) {
        sum = expf(chosen.logit - max);
    }
    sum = warp_sum(sum);
    if (has_nan) sum = __uint_as_float(0x7fffffffu);
    if (lane_index() >= k) return;
    float weight = expf(chosen.logit - max) / sum;
    if (rounds_weights) weight = to_float(to_bf16(weight));
    experts.data[t * experts.stride + lane_index()] = chosen.expert;
    weights.data[t * weights.stride + lane_index()] = weight;
}

// grid [ceil(N / kWarps)], block [kThreads]; a warp owns a given row, a lane every 32nd logit of
// its token. Sums in route_kernel's order. Memory-bound: 4 E + 8 k bytes a row, twice.
// NOT MEASURED on a device.
__global__ void __launch_bounds__(kThreads) follow_routes_kernel(
    View2<const float> logits,       // [T, E]
    View2<std::int32_t> experts,     // [T, k]
    View2<float> weights,            // [T, k]
    const std::uint8_t* given,       // [N, k] of id_bytes each
    std::int64_t row_bytes,          // from a row to the next
    std::int32_t id_bytes,           // 1 or 2
    const std::int32_t* token_rows,  // [N]
    std::int32_t num_rows,           // N
    RouterNorm norm,
    bool rounds_weights
) {
    let_next_kernel_start();
    wait_for_kernel_before();
    const std::int32_t row = static_cast<std::int32_t>(blockIdx.x) * kWarps + warp_index();
    if (row >= num_rows) return;
    const std::int64_t t = token_rows[row];
    const int E = static_cast<int>(logits.cols);
    const int k = static_cast<int>(experts.cols);
    const float* const of_token = logits.data + t * logits.stride;
    constexpr float kNone = -__builtin_huge_valf();
    // Lane j has the j-th of the given experts.
    int expert = 0;
    float own = kNone;
    if (lane_index() < k) {
        const std::uint8_t* const id = given + row * row_bytes + lane_index() * id_bytes;
        expert = id_bytes == 1 ? id[0] : id[0] + 256 * id[1];
        own = of_token[expert];
        if (own != own) own = kNone;
    }
    float largest = kNone;
    bool is_wrong = false;
    for (int e = lane_index(); e < E; e += kWarp) {
        const float logit = of_token[e];
        is_wrong = is_wrong || logit != logit || logit == -kNone;
        if (logit > largest) largest = logit;
    }
    is_wrong = __ballot_sync(kAllLanes, is_wrong) != 0;
    float max = norm == RouterNorm::kAll ? largest : own;
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
        max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, offset));
    float sum = 0.f;
    if (norm == RouterNorm::kAll) {
        for (int e = lane_index(); e < E; e += kWarp) {
            const float logit = of_token[e];
            sum += expf((logit != logit ? kNone : logit) - max);
        }
    } else if (lane_index() < k) {
        sum = expf(own - max);
    }
    sum = warp_sum(sum);
    if (is_wrong) sum = __uint_as_float(0x7fffffffu);
    if (lane_index() >= k) return;
    float weight = expf(own - max) / sum;
    if (rounds_weights) weight = to_float(to_bf16(weight));
    experts.data[t * experts.stride + lane_index()] = expert;
    weights.data[t * weights.stride + lane_index()] = weight;
}

template <int kPerLane>
void run(const RouteArgs& args) {
    launch<route_kernel<kPerLane>>(
        {.grid = dim3(narrow<unsigned>(ceil_div(args.logits.rows, kWarps))),
         .block = dim3(kThreads),
         .stream = args.stream,
         .starts_early = true},
        args.logits,
        args.experts,
        args.weights,
        args.norm,
        args.rounds_weights
    );
}

}  // namespace

void follow_routes_cuda(const FollowRoutesArgs& args) {
    check(args);
    if (args.num_rows == 0) return;
    launch<follow_routes_kernel>(
        {.grid = dim3(narrow<unsigned>(ceil_div(args.num_rows, kWarps))),
         .block = dim3(kThreads),
         .stream = args.route.stream,
         .starts_early = true},
        args.route.logits,
        args.route.experts,
        args.route.weights,
        args.given,
        args.row_bytes,
        narrow<std::int32_t>(args.id_bytes),
        args.token_rows,
        narrow<std::int32_t>(args.num_rows),
        args.route.norm,
        args.route.rounds_weights
    );
}

void route_cuda(const RouteArgs& args) {
    check(args);
    static_assert(RouteArgs::kChosenMax <= kWarp && RouteArgs::kExpertsMax <= 32 * kWarp);
    const std::int64_t E = args.logits.cols;
    if (E <= 2 * kWarp) {
        run<2>(args);
    } else if (E <= 4 * kWarp) {
        run<4>(args);
    } else if (E <= 8 * kWarp) {
        run<8>(args);
    } else {
        run<32>(args);
    }
}

}  // namespace pitstop::kernels
