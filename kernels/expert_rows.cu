#include "kernels/expert_rows.h"

#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kSortThreads = 256;
constexpr int kSortWarps = kSortThreads / kWarp;

// grid [E + 1], block [kSortThreads]; block e counts the pairs of the experts before e, which gives
// the first row of expert e, and then assigns rows to its own pairs in order. Block E writes
// begins[E], the entries of token_of from there on, and row_of of other ranks' pairs. Every block
// reads all pairs, 4 T k bytes from L2: 8 k tokens of 8 experts are 256 KiB per block. Exact,
// without atomics. NOT MEASURED on a device.
__global__ void __launch_bounds__(kSortThreads) sort_rows_kernel(
    View2<const std::int32_t> chosen,
    std::int32_t first,
    std::int32_t num_experts,
    std::int32_t* begins,
    std::int32_t* token_of,
    View2<std::int32_t> row_of
) {
    __shared__ int warp_counts[kSortWarps];
    let_next_kernel_start();
    wait_for_kernel_before();
    const int e = static_cast<int>(blockIdx.x);
    const int k = static_cast<int>(chosen.cols);
    const int num_pairs = static_cast<int>(chosen.rows) * k;
    const auto local = [&](int pair) {
        const int expert = chosen.data[pair / k * chosen.stride + pair % k] - first;
        return expert >= 0 && expert < num_experts ? expert : -1;
    };
    const int thread = static_cast<int>(threadIdx.x);
    int before = 0;
    for (int pair = thread; pair < num_pairs; pair += kSortThreads) {
        const int expert = local(pair);
        before += expert >= 0 && expert < e;
    }
    int row = block_sum<kSortThreads>(before);
    if (thread == 0) begins[e] = row;
    if (e == num_experts) {
        for (int rest = row + thread; rest < num_pairs; rest += kSortThreads) token_of[rest] = 0;
        for (int pair = thread; pair < num_pairs; pair += kSortThreads) {
            if (local(pair) < 0) row_of.data[pair / k * row_of.stride + pair % k] = -1;
        }
        return;
    }
    for (int from = 0; from < num_pairs; from += kSortThreads) {
        const int pair = from + thread;
        const bool is_own = pair < num_pairs && local(pair) == e;
        const unsigned own = __ballot_sync(kAllLanes, is_own);
        if (lane_index() == 0) warp_counts[warp_index()] = __popc(own);
        __syncthreads();
        int place = row + __popc(own & ((1u << lane_index()) - 1u));
        for (int warp = 0; warp < kSortWarps; ++warp) {
            if (warp < warp_index()) place += warp_counts[warp];
            row += warp_counts[warp];
        }
        if (is_own) {
            token_of[place] = pair / k;
            row_of.data[pair / k * row_of.stride + pair % k] = place;
        }
        __syncthreads();  // all have read the counts
    }
}

constexpr int kSumThreads = 256;

// grid [T, ceil(H / kSumThreads)], block [kSumThreads]; a thread owns an output. Memory-bound:
// 4 (k + 1) bytes per output; 4 k of them come from L2 after the product that wrote them. NOT
// MEASURED on a device.
__global__ void __launch_bounds__(kSumThreads) sum_rows_kernel(
    View2<const float> rows,
    View2<const std::int32_t> row_of,
    View2<const float> weights,
    View2<const float> shared,
    View2<const float> gate,
    View2<float> y
) {
    let_next_kernel_start();
    wait_for_kernel_before();
    const std::int64_t t = blockIdx.x;
    const std::int64_t h = std::int64_t{blockIdx.y} * kSumThreads + threadIdx.x;
    if (h >= y.cols) return;
    float sum = 0.f;
    for (std::int64_t j = 0; j < row_of.cols; ++j) {
        const std::int32_t row = row_of.data[t * row_of.stride + j];
        if (row < 0) continue;
        sum = fmaf(weights.data[t * weights.stride + j], rows.data[row * rows.stride + h], sum);
    }
    if (shared.data != nullptr) {
        const float share = 1.f / (1.f + expf(-gate.data[t * gate.stride]));
        sum = fmaf(share, shared.data[t * shared.stride + h], sum);
    }
    y.data[t * y.stride + h] = sum;
}

}  // namespace

void sort_rows_by_expert_cuda(const SortRowsByExpertArgs& args) {
    check(args);
    launch<sort_rows_kernel>(
        {.grid = dim3(narrow<unsigned>(args.num_experts + 1)),
         .block = dim3(kSortThreads),
         .stream = args.stream,
         .starts_early = true},
        args.chosen,
        args.first_expert,
        args.num_experts,
        args.begins,
        args.token_of,
        args.row_of
    );
}

void sum_expert_rows_cuda(const SumExpertRowsArgs& args) {
    check(args);
    launch<sum_rows_kernel>(
        {.grid = dim3(
             narrow<unsigned>(args.y.rows), narrow<unsigned>(ceil_div(args.y.cols, kSumThreads))
         ),
         .block = dim3(kSumThreads),
         .stream = args.stream,
         .starts_early = true},
        args.rows,
        args.row_of,
        args.weights,
        args.shared,
        args.gate,
        args.y
    );
}

}  // namespace pitstop::kernels
