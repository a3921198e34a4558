#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/linear_params.cuh"
#include "kernels/device/linear_tile.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/linear_cuda.h"
#include "kernels/runtime/launch.cuh"

// The ways to multiply, all with the weights as they are in the checkpoint:
//
//   gemv      M <= 4: CUDA cores, one read of the weights (linear_gemv.cu)
//   tiles     mma.sync m16n8k16, k ascending, one fp32 sum per output: its bits depend only on
//             x[m], w[n] and K, whatever the tile. For small M; for every M in deterministic mode
//   split     tiles for M <= 16 and few weight rows: four warps sum a part of K each per output.
//             Not in deterministic mode, where tiles for any M would need four sums, too
//   cuBLASLt  larger M, and M > 4 where weights are large (linear_cublas.cpp)
//   general   fp32 x, and shapes or addresses that 16-byte loads do not fit
namespace pitstop::kernels {
namespace {

// Above either limit, cuBLASLt multiplies. With its kernels a layer of qwen3-8b is 30 % faster at M
// = 32, 3 % at 16 and 2 % at 8, and one of qwen3-0.6b 21 % slower at M = 8 (H200).
constexpr std::int64_t kTilesMaxM = 16;
constexpr std::int64_t kTilesBytesMax = std::int64_t{16} << 20;  // of the call's weights

// ---- tiles ----

// grid [tiles of M, tiles of N over all parts], block [kThreads]; a block owns a tile of y.
// Memory-bound for small M, bound by the tensor cores for large M (see the shapes). Neither this
// kernel nor split_kernel starts early: its few large blocks would fill the SMs that the previous
// kernel leaves first, so some SMs would have three blocks and others none. A layer of qwen3-8b at
// M = 8 would take 23 % longer (H200). 2 M N K flops; 2 (M + N) K bytes if each operand is read
// from memory once.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    tile_kernel(const __grid_constant__ LinearParams params) {
    std::byte* const shared = dynamic_shared_memory();
    const LinearPlace place = place_of(params, static_cast<int>(blockIdx.y));
    const LinearShare& part = params.parts[place.part];
    const std::int64_t m0 = std::int64_t{blockIdx.x} * Shape::kTileM;
    const int n0 = place.tile * Shape::kTileN;

    let_next_kernel_start();
    wait_for_kernel_before();
    multiply_tile<Shape>(shared, params, part, m0, params.M, n0);
}

// ---- split ----

// A warp's tile and ring. A block has four of them: 72 KiB, 20 KiB of w in flight. N = 1024 makes
// 128 blocks, where SmallTile makes 32.
using SplitTile = TileShape<16, 8, 1, 1, 6, 3>;
constexpr int kSplit = 4;  // warps per block: fixed, as it sets the order of the sum
constexpr int kSplitThreads = kSplit * kWarp;
static_assert(SplitTile::kTileM * SplitTile::kTileN == kSplitThreads);
// With fewer tiles of SmallTile than this, some of an H200's 132 SMs are idle.
constexpr std::int64_t kSmallTilesWanted = 128;

// grid [tiles of N over all parts], block [kSplitThreads]; a block owns kTileN weight rows. A warp
// owns every kSplit-th group of kTileK columns of them and loads it through a ring of its own, so
// no warp waits for another before the end. Bytes: 2 N K of w; x from L2 once per block. An
// output's sum: the warp's columns ascending, then the warps ascending.
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
    const StageLoader<Shape> loader(params, part, 0, params.M, n0, lane);
    const auto load = [&](int s) {
        std::byte* const stage = ring + s % Shape::kStages * Shape::kStageBytes;
        if (s < num_stages) loader.load(stage, (s * kSplit + warp) * kTileK);
        commit_copies();  // even an empty one, because the waits count groups
    };

    let_next_kernel_start();
    wait_for_kernel_before();
    float sums[1][1][4] = {};
    for (int s = 0; s < Shape::kStages - 1; ++s) load(s);
    for (int s = 0; s < num_stages; ++s) {
        wait_copies<Shape::kStages - 2>();
        __syncwarp();  // stage s has arrived for all lanes, and all are done with stage s - 1
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

// grid [tiles of M, tiles of N over all parts], block [kGeneralThreads]; a thread owns 4 x 4
// outputs, 16 apart. Bound by FMA: 2 M N K flops at 60 TFLOP/s of fp32 at best. k ascends in one
// chain per output. For fp32 activations (the truth mode), which need no speed.
__global__ void __launch_bounds__(kGeneralThreads)
    general_kernel(const __grid_constant__ LinearParams params) {
    const LinearPlace place = place_of(params, static_cast<int>(blockIdx.y));
    const LinearShare& part = params.parts[place.part];
    const std::int64_t m0 = std::int64_t{blockIdx.x} * kGeneralTile;
    const int n0 = place.tile * kGeneralTile;
    multiply_general_tile(params, part, m0, params.M, n0);
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
         .stream = args.stream},
        made.params
    );
}

void run_split(const LinearArgs& args) {
    const LinearCut made = cut(args, SplitTile::kTileN);
    launch<split_kernel>(
        {.grid = dim3(narrow<unsigned>(made.num_tiles)),
         .block = dim3(kSplitThreads),
         .shared_bytes = kSplit * SplitTile::kSharedBytes,
         .stream = args.stream},
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

// Returns whether 16-byte loads fit: a property of the model, not of the batch.
bool fits_chunks(const LinearArgs& args) {
    if (args.x.dtype != DType::kBF16 || args.x.cols % kChunkElements != 0) return false;
    if (!is_aligned(args.x.data, kChunkBytes) || args.x.stride % kChunkElements != 0) return false;
    for (const LinearPart& part : args.parts) {
        if (!is_aligned(part.w.data, kChunkBytes) || part.w.stride % kChunkElements != 0)
            return false;
    }
    return true;
}

bool takes_cublas(const LinearArgs& args) {
    const std::int64_t M = args.x.rows;
    return M > kTilesMaxM || (M > kGemvMaxM && weight_bytes(args) > kTilesBytesMax);
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
    } else if (takes_cublas(args)) {
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
    if (!takes_cublas(rotation[0])) return 0;
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
