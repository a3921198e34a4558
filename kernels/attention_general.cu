#include "kernels/device/attention_rows.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kLaneDims = AttentionArgs::kHeadDimMax / kWarp;  // dimensions of an output, per lane

__device__ float load_as(const void* from, DType dtype, std::int64_t index) {
    return dtype == DType::kF32 ? static_cast<const float*>(from)[index]
                                : to_float(static_cast<const bf16*>(from)[index]);
}

// Returns the last row that starts at or before token t. Several rows may start at t; only the last
// of these has a new token.
__device__ std::int32_t row_of(const AttentionParams& params, std::int32_t t) {
    std::int32_t low = 0;
    for (std::int32_t high = params.num_rows; high - low > 1;) {
        const std::int32_t middle = (low + high) / 2;
        (params.q_starts[middle] <= t ? low : high) = middle;
    }
    return low;
}

// grid [T, ceil(Q / kWarps)], block [4 warps]; a warp owns a query head of a token and processes
// its keys 32 at a time, by absolute position: one key per lane for the scores, every 32nd
// dimension per lane for the values. All in fp32, including probabilities. For the fp32 cache
// and shapes that do not fit the tensor cores: correct for all shapes, but slow (one lane reads
// a key's row).
__global__ void __launch_bounds__(kWarps* kWarp)
    general_kernel(const __grid_constant__ AttentionParams params) {
    __shared__ float queries[kWarps][AttentionArgs::kHeadDimMax];
    const auto t = static_cast<std::int32_t>(blockIdx.x);
    const int q_head = static_cast<int>(blockIdx.y) * kWarps + warp_index();
    if (q_head >= params.num_kv_heads * params.group) return;  // whole warps leave
    const int D = params.head_dim;
    const BatchRow row = batch_row(params, row_of(params, t));
    if (t >= row.q_begin + row.q_len) return;
    const std::int32_t position = row.position(t - row.q_begin);
    const std::int32_t begin = first_key(position, params.window);
    const std::int32_t kv_head = q_head / params.group;

    float* const q = queries[warp_index()];
    for (int d = lane_index(); d < D; d += kWarp)
        q[d] = load_as(params.q, params.q_dtype, head_index(t, params.q_stride, q_head, D) + d);
    __syncwarp();
    float max = minus_infinity();
    float sum = 0.f;
    float acc[kLaneDims] = {};
    for (std::int32_t base = begin / kWarp * kWarp; base <= position; base += kWarp) {
        const std::int32_t kv_row =
            key_row(params, row, kv_head, base + lane_index(), begin, position + 1);
        float score = minus_infinity();
        if (kv_row != kNoRow) {
            float dot = 0.f;
            for (int d = 0; d < D; ++d)
                dot = fmaf(
                    q[d], load_as(params.kv, params.q_dtype, std::int64_t{kv_row} * D + d), dot
                );
            score = dot * params.scale;
        }
        const float new_max = warp_max(fmaxf(max, score));
        const float factor = expf(max - new_max);  // 0 for the first tile, which has a visible key
        const float p = expf(score - new_max);
        sum = sum * factor + warp_sum(p);
        max = new_max;
#pragma unroll
        for (int i = 0; i < kLaneDims; ++i) acc[i] *= factor;
        for (int j = 0; j < kWarp; ++j) {
            const std::int32_t value_row = __shfl_sync(kAllLanes, kv_row, j);
            const float weight = __shfl_sync(kAllLanes, p, j);
            if (value_row == kNoRow) continue;
            const std::int64_t index = std::int64_t{value_row + params.value_rows} * D;
#pragma unroll
            for (int i = 0; i < kLaneDims; ++i) {
                const int d = lane_index() + i * kWarp;
                if (d < D)
                    acc[i] = fmaf(weight, load_as(params.kv, params.q_dtype, index + d), acc[i]);
            }
        }
    }
    const std::int64_t out = head_index(t, params.out_stride, q_head, D);
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) {
        const int d = lane_index() + i * kWarp;
        if (d >= D) continue;
        if (params.out_dtype == DType::kBF16) {
            store_float(static_cast<bf16*>(params.out) + out + d, acc[i] / sum);
        } else {
            store_float(static_cast<float*>(params.out) + out + d, acc[i] / sum);
        }
    }
}

}  // namespace

void attention_general_cuda(const AttentionParams& params, Stream stream) {
    launch<general_kernel>(
        {.grid = dim3(
             narrow<unsigned>(params.num_tokens),
             narrow<unsigned>(ceil_div(std::int64_t{params.num_kv_heads} * params.group, kWarps))
         ),
         .block = dim3(kWarps * kWarp),
         .stream = stream},
        params
    );
}

}  // namespace pitstop::kernels
