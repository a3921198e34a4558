#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/linear_params.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/device/swizzle.h"
#include "kernels/linear_cuda.h"

// There are four ways to multiply, all with the weights as they lie in the checkpoint:
//
//   gemv      M <= 4: CUDA cores, one read of the weights (linear_gemv.cu)
//   tiles     mma.sync m16n8k16, k ascending, one fp32 sum per output: its bits depend on x[m],
//             w[n] and K alone, whatever the tile. Small M; every M where determinism is asked for
//   split     the same for M <= 16 and few weight rows: four sums per output, of a part of K each.
//             Not where determinism is asked for: tiles for any M would have to keep as many
//   cuBLASLt  M > kTilesMaxM (linear_cublas.cpp)
//   general   fp32 x, and shapes or addresses that 16-byte loads do not fit
namespace pitstop::kernels {
namespace {

// Above kTilesMaxM cuBLASLt takes over: its kernels for such M should be as good. Not measured.
constexpr std::int64_t kTilesMaxM = 16;

// ---- tiles ----

constexpr int kTileK = 64;  // elements: 8 chunks, a row of 128 bytes
constexpr int kTileChunks = kTileK / kChunkElements;

template <int kTileM_, int kTileN_, int kWarpsM_, int kWarpsN_, int kStages_, int kBlocksPerSm_>
struct TileShape {
    static constexpr int kTileM = kTileM_;  // tokens
    static constexpr int kTileN = kTileN_;  // weight rows
    static constexpr int kWarpsM = kWarpsM_;
    static constexpr int kWarpsN = kWarpsN_;
    static constexpr int kStages = kStages_;
    static constexpr int kBlocksPerSm = kBlocksPerSm_;  // the registers must leave room for them
    static constexpr int kThreads = kWarp * kWarpsM * kWarpsN;
    static constexpr int kTilesM = kTileM / kWarpsM / 16;  // 16-token tiles of a warp
    static constexpr int kTilesN = kTileN / kWarpsN / 8;   // 8-row tiles of a warp
    static constexpr int kStageBytes = (kTileM + kTileN) * kTileChunks * kChunkBytes;
    static constexpr int kSharedBytes = kStages * kStageBytes;
    static_assert(kTilesN == 1 || kTilesN % 2 == 0);
};
// For M <= 16 a block has 72 KiB of ring, 44 KiB of w in flight, and there are 3 per SM; N = 4096
// makes 128 blocks. The chain of K / 16 mma of one warp, some 33 clocks each, takes 4.6 us at K =
// 4096, within the 7.8 us that the weights take to come.
using SmallTile = TileShape<16, 32, 1, 4, 12, 3>;
// For M <= 64 a block has 80 KiB, 2 per SM; x is read from shared memory once per warp, 4 times the
// bytes of w at 18 bytes per clock and SM: 108 of 128 bytes per clock with w itself and the fill.
using MediumTile = TileShape<64, 64, 1, 4, 5, 2>;
// For larger M a block has 96 KiB, 2 per SM. A warp's 64 x 32 reads 3 KiB per 65,536 FLOP: 2,730
// FLOP per clock by shared memory, 67 % of the tensor cores' peak; mma.sync itself reaches 62 %.
using LargeTile = TileShape<128, 128, 2, 4, 3, 2>;

// Fills one stage with columns [k, k + kTileK) of x and w; what lies outside them becomes zero, and
// a product of zeros leaves a sum as it was.
template <class Shape>
__device__ void load_stage(
    std::byte* stage,
    const LinearParams& params,
    const LinearShare& part,
    std::int64_t m0,
    int n0,
    int k,
    int thread  // of kThreads
) {
    constexpr int kRows = Shape::kTileM + Shape::kTileN;
    static_assert(kRows * kTileChunks % Shape::kThreads == 0);
    const bf16* const x = static_cast<const bf16*>(params.x);
#pragma unroll 4
    for (int j = 0; j < kRows * kTileChunks / Shape::kThreads; ++j) {
        const int i = thread + j * Shape::kThreads;
        const int row = i / kTileChunks;
        const int chunk = i % kTileChunks;
        const int column = k + chunk * kChunkElements;
        const bool is_x = row < Shape::kTileM;
        const std::int64_t m = m0 + row;
        const int n = n0 + row - Shape::kTileM;
        const bool is_inside = column < params.K && (is_x ? m < params.M : n < part.N);
        const bf16* from = x;
        if (is_inside)
            from = (is_x ? x + m * params.x_stride : part.w + n * part.w_stride) + column;
        copy16_async(stage + swizzled<kTileChunks>(row, chunk), from, is_inside ? kChunkBytes : 0);
    }
}

// The first columns of a tile's weight rows come to L2 while the kernel before this one makes x.
template <class Shape>
__device__ void prefetch_first(
    const LinearParams& params, const LinearShare& part, int n0, int num_columns
) {
    const int n = n0 + static_cast<int>(threadIdx.x);
    if (threadIdx.x >= Shape::kTileN || n >= part.N) return;
    constexpr int kElementBytes = kChunkBytes / kChunkElements;
    prefetch_to_l2(
        part.w + n * part.w_stride,
        static_cast<std::uint32_t>(min(params.K, num_columns) * kElementBytes)
    );
}

// Adds a stage's kTileK columns to a warp's sums, 16 at a time, ascending.
template <class Shape>
__device__ void multiply_stage(
    float (&sums)[Shape::kTilesM][Shape::kTilesN][4], const std::byte* stage, int warp_m, int warp_n
) {
    const int lane = lane_index();
    const int x_row = warp_m * Shape::kTilesM * 16 + lane % 16;
    const int w_row = Shape::kTileM + warp_n * Shape::kTilesN * 8;
#pragma unroll
    for (int k16 = 0; k16 < kTileK / 16; ++k16) {
        std::uint32_t a[Shape::kTilesM][4];
#pragma unroll
        for (int i = 0; i < Shape::kTilesM; ++i) {
            load_matrices(a[i], stage + swizzled<kTileChunks>(x_row + i * 16, k16 * 2 + lane / 16));
        }
        // Matrices 0 and 1 are rows 0-7 of w at k and k + 8, matrices 2 and 3 rows 8-15.
        std::uint32_t b[(Shape::kTilesN + 1) / 2][4];
#pragma unroll
        for (int j = 0; j < (Shape::kTilesN + 1) / 2; ++j) {
            const int row = Shape::kTilesN == 1 ? lane % 8 : lane % 8 + lane / 16 * 8 + j * 16;
            load_matrices(b[j], stage + swizzled<kTileChunks>(w_row + row, k16 * 2 + lane / 8 % 2));
        }
#pragma unroll
        for (int i = 0; i < Shape::kTilesM; ++i) {
#pragma unroll
            for (int j = 0; j < Shape::kTilesN; ++j)
                mma_16x8x16(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
}

// grid [tiles of M, tiles of N over all parts], block [kThreads]; a block owns a tile of y. Bytes
// or tensor cores by M, see the shapes. 2 M N K flops; 2 (M + N) K bytes if every tile met L2.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    tile_kernel(const __grid_constant__ LinearParams params) {
    std::byte* const shared = dynamic_shared_memory();
    const LinearPlace place = place_of(params, static_cast<int>(blockIdx.y));
    const LinearShare& part = params.parts[place.part];
    const std::int64_t m0 = std::int64_t{blockIdx.x} * Shape::kTileM;
    const int n0 = place.tile * Shape::kTileN;
    const int warp_m = warp_index() / Shape::kWarpsN;
    const int warp_n = warp_index() % Shape::kWarpsN;
    const int num_stages = (params.K + kTileK - 1) / kTileK;
    const auto stage_at = [=](int s) { return shared + s % Shape::kStages * Shape::kStageBytes; };
    const int thread = static_cast<int>(threadIdx.x);

    let_next_kernel_start();
    if (blockIdx.x == 0) prefetch_first<Shape>(params, part, n0, (Shape::kStages - 1) * kTileK);
    wait_for_kernel_before();
    float sums[Shape::kTilesM][Shape::kTilesN][4] = {};
    for (int s = 0; s < Shape::kStages - 1; ++s) {
        if (s < num_stages)
            load_stage<Shape>(stage_at(s), params, part, m0, n0, s * kTileK, thread);
        commit_copies();  // even an empty one, as the waits count groups
    }
    for (int s = 0; s < num_stages; ++s) {
        wait_copies<Shape::kStages - 2>();
        __syncthreads();  // stage s is there for all, and all are done with stage s - 1
        const int next = s + Shape::kStages - 1;
        if (next < num_stages)
            load_stage<Shape>(stage_at(next), params, part, m0, n0, next * kTileK, thread);
        commit_copies();
        multiply_stage<Shape>(sums, stage_at(s), warp_m, warp_n);
    }

    const int row = lane_index() / 4;
    const int column = lane_index() % 4 * 2;
#pragma unroll
    for (int i = 0; i < Shape::kTilesM; ++i) {
#pragma unroll
        for (int j = 0; j < Shape::kTilesN; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const std::int64_t m = m0 + (warp_m * Shape::kTilesM + i) * 16 + row + e / 2 * 8;
                const int n = n0 + (warp_n * Shape::kTilesN + j) * 8 + column + e % 2;
                if (m < params.M && n < part.N) finish(part, params.mode, m, n, sums[i][j][e]);
            }
        }
    }
}

// ---- split ----

// This is a warp's tile and ring. Four of them are in a block: 72 KiB, 20 KiB of w in flight. N =
// 1024 makes 128 blocks, where SmallTile makes 32.
using SplitTile = TileShape<16, 8, 1, 1, 6, 3>;
constexpr int kSplit = 4;  // warps of a block: fixed, as it sets the order of the sum
constexpr int kSplitThreads = kSplit * kWarp;
static_assert(SplitTile::kTileM * SplitTile::kTileN == kSplitThreads);
// Fewer tiles of SmallTile than this leave SMs of an H200's 132 idle.
constexpr std::int64_t kSmallTilesWanted = 128;

// grid [tiles of N over all parts], block [kSplitThreads]; a block owns kTileN weight rows, a warp
// of it every kSplit-th kTileK columns, which come through a ring of its own: no warp waits for
// another before the end. Bytes: 2 N K of w; x from L2 once per block. An output's sum: the warp's
// columns ascending, then the warps ascending.
__global__ void __launch_bounds__(kSplitThreads, SplitTile::kBlocksPerSm)
    split_kernel(const __grid_constant__ LinearParams params) {
    using Shape = SplitTile;
    __shared__ float partial[kSplit][Shape::kTileM * Shape::kTileN];
    const int warp = warp_index();
    const int lane = lane_index();
    std::byte* const ring = dynamic_shared_memory() + warp * Shape::kSharedBytes;
    const LinearPlace place = place_of(params, static_cast<int>(blockIdx.x));
    const LinearShare& part = params.parts[place.part];
    const int n0 = place.tile * Shape::kTileN;
    const int num_stages = ((params.K + kTileK - 1) / kTileK - warp + kSplit - 1) / kSplit;
    const auto load = [&](int s) {
        std::byte* const stage = ring + s % Shape::kStages * Shape::kStageBytes;
        if (s < num_stages)
            load_stage<Shape>(stage, params, part, 0, n0, (s * kSplit + warp) * kTileK, lane);
        commit_copies();  // even an empty one, as the waits count groups
    };

    let_next_kernel_start();
    prefetch_first<Shape>(params, part, n0, kSplit * (Shape::kStages - 1) * kTileK);
    wait_for_kernel_before();
    float sums[1][1][4] = {};
    for (int s = 0; s < Shape::kStages - 1; ++s) load(s);
    for (int s = 0; s < num_stages; ++s) {
        wait_copies<Shape::kStages - 2>();
        __syncwarp();  // stage s is there for all lanes, and all are done with stage s - 1
        load(s + Shape::kStages - 1);
        multiply_stage<Shape>(sums, ring + s % Shape::kStages * Shape::kStageBytes, 0, 0);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int m = lane / 4 + e / 2 * 8;
        partial[warp][m * Shape::kTileN + lane % 4 * 2 + e % 2] = sums[0][0][e];
    }
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.x);
    const int m = thread / Shape::kTileN;
    const int n = n0 + thread % Shape::kTileN;
    float sum = partial[0][thread];
#pragma unroll
    for (int i = 1; i < kSplit; ++i) sum += partial[i][thread];
    if (m < params.M && n < part.N) finish(part, params.mode, m, n, sum);
}

// ---- general ----

constexpr int kGeneralTile = 64;
constexpr int kGeneralK = 16;
constexpr int kGeneralThreads = 256;  // 16 x 16, each 4 x 4 outputs

__device__ float load_x(const LinearParams& params, std::int64_t index) {
    return params.x_dtype == DType::kF32 ? static_cast<const float*>(params.x)[index]
                                         : to_float(static_cast<const bf16*>(params.x)[index]);
}

// grid [tiles of M, tiles of N over all parts], block [kGeneralThreads]; a thread owns 4 x 4
// outputs, 16 apart. Bound by FMA: 2 M N K flops at 60 TFLOP/s of fp32 at best. k ascends in one
// chain per output. For fp32 activations (the truth mode), where speed is not the point.
__global__ void __launch_bounds__(kGeneralThreads)
    general_kernel(const __grid_constant__ LinearParams params) {
    __shared__ float x_tile[kGeneralK][kGeneralTile + 1];  // + 1: a column's stores meet all banks
    __shared__ float w_tile[kGeneralK][kGeneralTile + 1];
    const LinearPlace place = place_of(params, static_cast<int>(blockIdx.y));
    const LinearShare& part = params.parts[place.part];
    const std::int64_t m0 = std::int64_t{blockIdx.x} * kGeneralTile;
    const int n0 = place.tile * kGeneralTile;
    const int thread = static_cast<int>(threadIdx.x);
    const int thread_m = thread / 16;
    const int thread_n = thread % 16;
    float sums[4][4] = {};
    for (int k0 = 0; k0 < params.K; k0 += kGeneralK) {
        __syncthreads();
        for (int i = thread; i < kGeneralTile * kGeneralK; i += kGeneralThreads) {
            const int row = i / kGeneralK;
            const int k = k0 + i % kGeneralK;
            const std::int64_t m = m0 + row;
            const int n = n0 + row;
            x_tile[i % kGeneralK][row] =
                m < params.M && k < params.K ? load_x(params, m * params.x_stride + k) : 0.f;
            w_tile[i % kGeneralK][row] =
                n < part.N && k < params.K ? to_float(part.w[n * part.w_stride + k]) : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kGeneralK; ++k) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    sums[i][j] = fmaf(
                        x_tile[k][thread_m + i * 16], w_tile[k][thread_n + j * 16], sums[i][j]
                    );
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const std::int64_t m = m0 + thread_m + i * 16;
            const int n = n0 + thread_n + j * 16;
            if (m < params.M && n < part.N) finish(part, params.mode, m, n, sums[i][j]);
        }
    }
}

constexpr int kBiasThreads = 256;

// grid [M, ceil(N / kBiasThreads)], block [kBiasThreads]; a thread owns an output. Memory-bound: 8
// bytes per output, from L2 after the product that wrote it.
__global__ void __launch_bounds__(kBiasThreads) add_bias_kernel(
    float* __restrict__ y,  // [M, N]
    std::int64_t y_stride,
    std::int64_t N,
    const bf16* __restrict__ bias  // [N]
) {
    const std::int64_t n = std::int64_t{blockIdx.y} * kBiasThreads + threadIdx.x;
    if (n < N) y[blockIdx.x * y_stride + n] += to_float(bias[n]);
}

// ---- the choice ----

template <class Shape>
void run_tiles(const LinearArgs& args) {
    const LinearCut made = cut(args, Shape::kTileN);
    launch<tile_kernel<Shape>>(
        {.grid = dim3(
             narrow<unsigned>(ceil_div(args.x.rows, Shape::kTileM)),
             narrow<unsigned>(made.num_tiles)
         ),
         .block = dim3(Shape::kThreads),
         .shared_bytes = Shape::kSharedBytes,
         .stream = args.stream,
         .starts_early = true},
        made.params
    );
}

void run_split(const LinearArgs& args) {
    const LinearCut made = cut(args, SplitTile::kTileN);
    launch<split_kernel>(
        {.grid = dim3(narrow<unsigned>(made.num_tiles)),
         .block = dim3(kSplitThreads),
         .shared_bytes = kSplit * SplitTile::kSharedBytes,
         .stream = args.stream,
         .starts_early = true},
        made.params
    );
}

void run_general(const LinearArgs& args) {
    const LinearCut made = cut(args, kGeneralTile);
    launch<general_kernel>(
        {.grid = dim3(
             narrow<unsigned>(ceil_div(args.x.rows, kGeneralTile)), narrow<unsigned>(made.num_tiles)
         ),
         .block = dim3(kGeneralThreads),
         .stream = args.stream},
        made.params
    );
}

// Tells whether 16-byte loads fit: a property of the model, not of the batch.
bool fits_chunks(const LinearArgs& args) {
    if (args.x.dtype != DType::kBF16 || args.x.cols % kChunkElements != 0) return false;
    if (!is_aligned(args.x.data, kChunkBytes) || args.x.stride % kChunkElements != 0) return false;
    for (const LinearPart& part : args.parts) {
        if (!is_aligned(part.w.data, kChunkBytes) || part.w.stride % kChunkElements != 0)
            return false;
    }
    return true;
}

}  // namespace

void add_bias_cuda(View2<float> y, const bf16* bias, Stream stream) {
    launch<add_bias_kernel>(
        {.grid = dim3(narrow<unsigned>(y.rows), narrow<unsigned>(ceil_div(y.cols, kBiasThreads))),
         .block = dim3(kBiasThreads),
         .stream = stream},
        y.data,
        y.stride,
        y.cols,
        bias
    );
}

void linear_cuda(const LinearArgs& args) {
    check(args);
    const std::int64_t M = args.x.rows;
    if (M == 0) return;
    if (!fits_chunks(args)) {
        run_general(args);
    } else if (M <= kGemvMaxM) {
        linear_gemv_cuda(args);
    } else if (M > kTilesMaxM) {
        linear_cublas(args);
    } else if (cut(args, SmallTile::kTileN).num_tiles < kSmallTilesWanted) {
        run_split(args);
    } else {
        run_tiles<SmallTile>(args);
    }
}

bool linear_silu_mul_cuda(const LinearArgs& args, const ActView& gated) {
    check(args);
    CHECK(args.parts.size() == 2 && gated.rows == args.x.rows);
    if (args.x.rows > kGemvMaxM || !fits_chunks(args)) return false;
    if (args.x.rows > 0) linear_gemv_silu_mul_cuda(args, gated);
    return true;
}

int tune_linear_cuda(std::span<const LinearArgs> rotation) {
    CHECK(!rotation.empty());
    for (const LinearArgs& args : rotation) check(args);
    if (rotation[0].x.rows <= kTilesMaxM) return 0;
    for (const LinearArgs& args : rotation) {
        if (!fits_chunks(args)) return 0;
    }
    return tune_linear_cublas(rotation);
}

void linear_cuda_deterministic(const LinearArgs& args) {
    check(args);
    const std::int64_t M = args.x.rows;
    if (M == 0) return;
    if (!fits_chunks(args)) {
        run_general(args);
    } else if (M <= SmallTile::kTileM) {
        run_tiles<SmallTile>(args);
    } else if (M <= MediumTile::kTileM) {
        run_tiles<MediumTile>(args);
    } else {
        run_tiles<LargeTile>(args);
    }
}

}  // namespace pitstop::kernels
