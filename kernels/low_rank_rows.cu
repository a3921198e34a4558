#include "kernels/low_rank_rows.h"

#include "kernels/device/numbers.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/runtime/launch.cuh"

#include <algorithm>

// Two launches for all parts of a product: h = A x, then y += s B h. A block has a few consecutive
// rows, and computes neighbouring rows of one adapter together. So a prompt reads A and B
// once per kRows tokens, and a step of decodes once per row.
namespace pitstop::kernels {
namespace {

// Fixed: the number of threads sets the order of the sums over k, hence the bits (P6).
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPack = 4;   // neighbouring k's of a thread
constexpr int kRows = 8;   // of a block
constexpr int kRanks = 4;  // summed by a block at once, from one read of x
// How many blocks, at most, share the ranks for the same part and rows. An adapter of rank 32 has
// one group of ranks per block, and one of a higher rank has more.
constexpr std::int64_t kRankBlocksMax = 8;

struct Params {
    const void* x = nullptr;
    std::int64_t x_stride = 0;
    std::int64_t K = 0;
    std::int64_t num_rows = 0;
    const LowRankPair* const* tables = nullptr;
    float* h = nullptr;
    std::int64_t h_stride = 0;
    std::int64_t rank_max = 0;
    std::int64_t pairs[LowRankRowsArgs::kPartsMax]{};
    void* ys[LowRankRowsArgs::kPartsMax]{};
    std::int64_t y_strides[LowRankRowsArgs::kPartsMax]{};
    std::int64_t Ns[LowRankRowsArgs::kPartsMax]{};
};

// Consecutive rows of a block that have the same adapter, and the adapter's pair for the block's
// part. Rank 0: no adapter.
struct Run {
    std::int64_t begin = 0;
    int num = 0;
    LowRankPair pair{};
};

// Returns the run that begins at `begin`. Every thread gets the same.
__device__ Run run_at(const Params& params, std::int64_t begin, std::int64_t end, int part) {
    const LowRankPair* const table = params.tables[begin];
    Run run{.begin = begin, .num = 1};
    while (begin + run.num < end && params.tables[begin + run.num] == table) ++run.num;
    if (table != nullptr) run.pair = table[params.pairs[part]];
    return run;
}

// Loads elements k to k + 3 of a row of K, zeros beyond K.
template <bool kIsAligned, class T>
__device__ void load_pack(const T* row, std::int64_t k, std::int64_t K, float (&to)[kPack]) {
    if constexpr (kIsAligned) {
        load_floats(row + k, to);
    } else {
#pragma unroll
        for (int i = 0; i < kPack; ++i) to[i] = k + i < K ? load_float(row + k + i) : 0.f;
    }
}

// grid [tiles of kRows rows, parts, groups of ranks], block [kThreads]; a block owns every
// gridDim.z-th group of kRanks ranks of its rows' h. Reads A once for each run of rows (from L2
// after the first time), and x once per group. NOT MEASURED on a device.
template <class X, bool kIsAligned>  // K % 4 == 0, rows of x 16-byte aligned
__global__ void __launch_bounds__(kThreads) shrink_kernel(const __grid_constant__ Params params) {
    __shared__ float partial[kWarps][kRows][kRanks];
    const std::int64_t K = params.K;
    const std::int64_t tile = std::int64_t{blockIdx.x} * kRows;
    const std::int64_t end = min(tile + kRows, params.num_rows);
    const int part = static_cast<int>(blockIdx.y);
    const int thread = static_cast<int>(threadIdx.x);
    const std::int64_t stride = std::int64_t{gridDim.z} * kRanks;
    for (std::int64_t begin = tile; begin < end;) {
        const Run run = run_at(params, begin, end, part);
        begin += run.num;
        const int rank = run.pair.rank;
        for (std::int64_t j = std::int64_t{blockIdx.z} * kRanks; j < rank; j += stride) {
            float sums[kRows][kRanks]{};
            for (std::int64_t k = thread * kPack; k < K; k += kThreads * kPack) {
                float a[kRanks][kPack]{};
#pragma unroll
                for (int c = 0; c < kRanks; ++c) {
                    if (j + c < rank) load_pack<kIsAligned>(run.pair.a + (j + c) * K, k, K, a[c]);
                }
#pragma unroll
                for (int i = 0; i < kRows; ++i) {
                    if (i >= run.num) break;
                    float x[kPack];
                    const X* const row =
                        static_cast<const X*>(params.x) + (run.begin + i) * params.x_stride;
                    load_pack<kIsAligned>(row, k, K, x);
#pragma unroll
                    for (int c = 0; c < kRanks; ++c) {
#pragma unroll
                        for (int l = 0; l < kPack; ++l)
                            sums[i][c] = fmaf(a[c][l], x[l], sums[i][c]);
                    }
                }
            }
            __syncthreads();  // the reads of the last group are done
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                if (i >= run.num) break;
#pragma unroll
                for (int c = 0; c < kRanks; ++c) {
                    const float sum = warp_sum(sums[i][c]);
                    if (lane_index() == 0) partial[warp_index()][i][c] = sum;
                }
            }
            __syncthreads();
            const int i = thread / kRanks;
            const int c = thread % kRanks;
            if (i >= run.num || j + c >= rank) continue;
            float sum = partial[0][i][c];
#pragma unroll
            for (int warp = 1; warp < kWarps; ++warp) sum = sum + partial[warp][i][c];
            params.h[(run.begin + i) * params.h_stride + part * params.rank_max + j + c] = sum;
        }
    }
}

// Calls fn(j, b) for j ascending, with b = row[j].
template <class F>
__device__ void for_each_rank(const float* row, int rank, F fn) {
    if (rank % kPack == 0 && reinterpret_cast<std::uintptr_t>(row) % 16 == 0) {
        for (int j = 0; j < rank; j += kPack) {
            float b[kPack];
            load_floats(row + j, b);
#pragma unroll
            for (int l = 0; l < kPack; ++l) fn(j + l, b[l]);
        }
    } else {
        for (int j = 0; j < rank; ++j) fn(j, row[j]);
    }
}

// grid [tiles of kRows rows, tiles of kThreads columns, parts], block [kThreads]; a thread owns a
// column of y in its block's rows. Reads B once for each run of rows; reads and writes y. NOT
// MEASURED on a device.
template <class Y>
__global__ void __launch_bounds__(kThreads) expand_kernel(const __grid_constant__ Params params) {
    __shared__ float hs[kRows][LowRankArgs::kRankMax];
    const std::int64_t tile = std::int64_t{blockIdx.x} * kRows;
    const std::int64_t end = min(tile + kRows, params.num_rows);
    const int part = static_cast<int>(blockIdx.z);
    const int thread = static_cast<int>(threadIdx.x);
    const std::int64_t n = std::int64_t{blockIdx.y} * kThreads + thread;
    if (std::int64_t{blockIdx.y} * kThreads >= params.Ns[part]) return;
    for (std::int64_t begin = tile; begin < end;) {
        const Run run = run_at(params, begin, end, part);
        begin += run.num;
        const int rank = run.pair.rank;
        if (rank == 0) continue;
        __syncthreads();  // the reads of the last run are done
        for (int i = 0; i < run.num; ++i) {
            const float* const h =
                params.h + (run.begin + i) * params.h_stride + part * params.rank_max;
            for (int j = thread; j < rank; j += kThreads) hs[i][j] = h[j];
        }
        __syncthreads();
        if (n >= params.Ns[part]) continue;
        float sums[kRows]{};
        for_each_rank(run.pair.b + n * rank, rank, [&](int j, float b) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                if (i < run.num) sums[i] = fmaf(b, hs[i][j], sums[i]);
            }
        });
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            if (i >= run.num) break;
            Y* const y =
                static_cast<Y*>(params.ys[part]) + (run.begin + i) * params.y_strides[part] + n;
            store_float(y, fmaf(run.pair.scale, sums[i], load_float(y)));
        }
    }
}

template <class X>
void shrink(const Params& params, bool is_aligned, const Launch& where) {
    if (is_aligned) {
        launch<shrink_kernel<X, true>>(where, params);
    } else {
        launch<shrink_kernel<X, false>>(where, params);
    }
}

}  // namespace

void low_rank_rows_cuda(const LowRankRowsArgs& args) {
    check(args);
    Params params{
        .x = args.x.data,
        .x_stride = args.x.stride,
        .K = args.x.cols,
        .num_rows = args.x.rows,
        .tables = args.tables,
        .h = args.h.data,
        .h_stride = args.h.stride,
        .rank_max = args.rank_max};
    std::int64_t cols_max = 0;
    for (std::size_t i = 0; i < args.parts.size(); ++i) {
        const LowRankRowsArgs::Part& part = args.parts[i];
        params.pairs[i] = part.pair;
        params.ys[i] = part.y.data;
        params.y_strides[i] = part.y.stride;
        params.Ns[i] = part.y.cols;
        cols_max = std::max(cols_max, part.y.cols);
    }
    const auto num_tiles = narrow<unsigned>(ceil_div(args.x.rows, kRows));
    const auto num_parts = narrow<unsigned>(args.parts.size());
    const std::int64_t num_groups = ceil_div(args.rank_max, kRanks);
    const Launch shrinks{
        .grid = dim3(num_tiles, num_parts, narrow<unsigned>(std::min(num_groups, kRankBlocksMax))),
        .block = dim3(kThreads),
        .stream = args.stream};
    const bool is_aligned_16 = args.x.cols % kPack == 0 && is_aligned(args.x.data, 16) &&
                               args.x.stride * size_of(args.x.dtype) % 16 == 0;
    if (args.x.dtype == DType::kF32) {
        shrink<float>(params, is_aligned_16, shrinks);
    } else {
        shrink<bf16>(params, is_aligned_16, shrinks);
    }
    const Launch expands{
        .grid = dim3(num_tiles, narrow<unsigned>(ceil_div(cols_max, kThreads)), num_parts),
        .block = dim3(kThreads),
        .stream = args.stream};
    if (args.parts[0].y.dtype == DType::kF32) {
        launch<expand_kernel<float>>(expands, params);
    } else {
        launch<expand_kernel<bf16>>(expands, params);
    }
}

}  // namespace pitstop::kernels
