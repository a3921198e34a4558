#include "kernels/device/launch.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/device/swizzle.h"
#include "kernels/linear_cuda.h"

// Four ways to multiply, all with the weights as they lie in the checkpoint:
//
//   gemv      M <= 4: CUDA cores, one read of the weights
//   tiles     mma.sync m16n8k16, k ascending, one fp32 sum per output: its bits depend on x[m],
//             w[n] and K alone, whatever the tile. Small M; every M where determinism is asked for
//   cuBLASLt  M > kTilesMaxM (linear_cublas.cpp)
//   general   fp32 x, and shapes or addresses that 16-byte loads do not fit
namespace pitstop::kernels {
namespace {

// Above kTilesMaxM cuBLASLt takes over: its kernels for such M should be as good. Not measured.
constexpr std::int64_t kGemvMaxM = 4;
constexpr std::int64_t kTilesMaxM = 16;

struct Part {
    const bf16* w = nullptr;  // [N, K]
    std::int64_t w_stride = 0;
    const bf16* bias = nullptr;  // [N] or null
    void* y = nullptr;           // [M, N]
    std::int64_t y_stride = 0;
    std::int32_t N = 0;
    std::int32_t tile_end = 0;  // tiles of N of this part and all before it
    DType y_dtype = DType::kF32;
};

struct Params {
    const void* x = nullptr;  // [M, K]
    std::int64_t x_stride = 0;
    std::int64_t M = 0;
    std::int32_t K = 0;
    std::int32_t num_parts = 0;
    LinearMode mode = LinearMode::kWrite;
    DType x_dtype = DType::kBF16;
    Part parts[LinearArgs::kPartsMax];
};

// Says which part a tile of N belongs to, and the tile's number in it.
struct Place {
    int part;
    int tile;
};
__device__ Place place_of(const Params& params, int tile) {
    int part = 0;
    while (part + 1 < params.num_parts && params.parts[part].tile_end <= tile) ++part;
    return {part, part == 0 ? tile : tile - params.parts[part - 1].tile_end};
}

__device__ void finish(const Part& part, LinearMode mode, std::int64_t m, int n, float sum) {
    if (part.bias != nullptr) sum += to_float(part.bias[n]);
    const std::int64_t index = m * part.y_stride + n;
    if (part.y_dtype == DType::kBF16) {
        static_cast<bf16*>(part.y)[index] = to_bf16(sum);
    } else {
        float* const y = static_cast<float*>(part.y) + index;
        *y = mode == LinearMode::kAdd ? sum + *y : sum;
    }
}

// ---- gemv ----

constexpr int kGemvThreads = 256;
constexpr int kGemvWarps = kGemvThreads / kWarp;
constexpr int kGemvRows = 2;  // weight rows of a warp, which share its reads of x
// Says how many 16-byte loads per row and lane come before the first use: as the registers allow
// beside kM sums.
template <int kM>
constexpr int kGemvUnroll = kM == 1 ? 4 : 2;
constexpr int kGemvTile = kGemvWarps * kGemvRows;

// grid [tiles of kGemvTile weight rows], block [kGemvThreads]; a warp owns two rows of w, its lanes
// every 32nd chunk of 8 of them. Memory-bound: 2 N K bytes of w, read once past L1; x comes from
// L1. qwen3-8b at 4.3 TB/s: QKV 50 MB 11.7 us, gate-up 201 MB 46.8 us, head 1.24 GB 289 us. 8 loads
// of 16 bytes in flight per lane (4 at M > 1): 4 KiB per warp, 96 KiB per SM at 24 warps, three
// times what is needed (26 KiB). About 26 instructions per 16 bytes of w at M = 1, a quarter of the
// SM's issue slots at that rate; M = 4 stays below it. An output's sum: the lane's chunks
// ascending, then the butterfly.
template <int kM>  // M <= kM; the loads of x past M repeat the last row
__global__ void __launch_bounds__(kGemvThreads) gemv_kernel(const __grid_constant__ Params params) {
    const Place place = place_of(params, static_cast<int>(blockIdx.x));
    const Part& part = params.parts[place.part];
    const int n0 = place.tile * kGemvTile + warp_index() * kGemvRows;
    if (n0 >= part.N) return;  // whole warps
    const int num_chunks = params.K / kChunkElements;
    const bf16* const x = static_cast<const bf16*>(params.x);
    const bf16* w[kGemvRows];
#pragma unroll
    for (int r = 0; r < kGemvRows; ++r) w[r] = part.w + min(n0 + r, part.N - 1) * part.w_stride;
    float sums[kGemvRows][kM] = {};
    // Adds kNum of the lane's chunks, ascending.
    const auto add_chunks = [&]<int kNum>(int first) {
        uint4 packs[kNum][kGemvRows];
#pragma unroll
        for (int u = 0; u < kNum; ++u) {
#pragma unroll
            for (int r = 0; r < kGemvRows; ++r)
                packs[u][r] = load16_streaming(w[r] + (first + u * kWarp) * kChunkElements);
        }
        // No load may sink below it: the compiler would save registers by waiting for each in turn.
        if constexpr (kNum > 1) __syncwarp();
#pragma unroll
        for (int u = 0; u < kNum; ++u) {
            float weights[kGemvRows][kChunkElements];
#pragma unroll
            for (int r = 0; r < kGemvRows; ++r) {
                const uint4 pack = packs[u][r];
                unpack_bf16x2(pack.x, weights[r][0], weights[r][1]);
                unpack_bf16x2(pack.y, weights[r][2], weights[r][3]);
                unpack_bf16x2(pack.z, weights[r][4], weights[r][5]);
                unpack_bf16x2(pack.w, weights[r][6], weights[r][7]);
            }
#pragma unroll
            for (int m = 0; m < kM; ++m) {
                const std::int64_t row = min(std::int64_t{m}, params.M - 1);
                float numbers[kChunkElements];
                load_floats(
                    x + row * params.x_stride + (first + u * kWarp) * kChunkElements, numbers
                );
#pragma unroll
                for (int r = 0; r < kGemvRows; ++r) {
#pragma unroll
                    for (int k = 0; k < kChunkElements; ++k)
                        sums[r][m] = fmaf(numbers[k], weights[r][k], sums[r][m]);
                }
            }
        }
    };
    int first = 0;  // of the warp's chunks
    for (; first + kGemvUnroll<kM> * kWarp <= num_chunks; first += kGemvUnroll<kM> * kWarp)
        add_chunks.template operator()<kGemvUnroll<kM>>(first + lane_index());
    for (int chunk = first + lane_index(); chunk < num_chunks; chunk += kWarp)
        add_chunks.template operator()<1>(chunk);
#pragma unroll
    for (int r = 0; r < kGemvRows; ++r) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
            const float sum = warp_sum(sums[r][m]);
            if (lane_index() == 0 && n0 + r < part.N && m < params.M)
                finish(part, params.mode, m, n0 + r, sum);
        }
    }
}

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
    static constexpr int kBlocksPerSm = kBlocksPerSm_;  // that the registers must leave room for
    static constexpr int kThreads = kWarp * kWarpsM * kWarpsN;
    static constexpr int kTilesM = kTileM / kWarpsM / 16;  // 16-token tiles of a warp
    static constexpr int kTilesN = kTileN / kWarpsN / 8;   // 8-row tiles of a warp
    static constexpr int kStageBytes = (kTileM + kTileN) * kTileChunks * kChunkBytes;
    static constexpr int kSharedBytes = kStages * kStageBytes;
    static_assert(kTilesN == 1 || kTilesN % 2 == 0);
};
// M <= 16: 72 KiB of ring, 44 KiB of w in flight per block, 3 blocks per SM; N = 4096 makes 128
// blocks. The chain of K / 16 mma of one warp, some 33 clocks each, takes 4.6 us at K = 4096,
// within the 7.8 us that the weights take to come.
using SmallTile = TileShape<16, 32, 1, 4, 12, 3>;
// M <= 64: 80 KiB, 2 blocks per SM; x is read from shared memory once per warp, 4 times the bytes
// of w at 18 bytes per clock and SM: 108 of 128 bytes per clock with w itself and the fill.
using MediumTile = TileShape<64, 64, 1, 4, 5, 2>;
// Larger M: 96 KiB, 2 blocks per SM. A warp's 64 x 32 reads 3 KiB per 65,536 FLOP: 2,730 FLOP per
// clock by shared memory, 67 % of the tensor cores' peak; mma.sync itself reaches 62 %.
using LargeTile = TileShape<128, 128, 2, 4, 3, 2>;

// Fills one stage with columns [k, k + kTileK) of x and w; what lies outside them becomes zero, and
// a product of zeros leaves a sum as it was.
template <class Shape>
__device__ void load_stage(
    std::byte* stage, const Params& params, const Part& part, std::int64_t m0, int n0, int k
) {
    constexpr int kRows = Shape::kTileM + Shape::kTileN;
    static_assert(kRows * kTileChunks % Shape::kThreads == 0);
    const bf16* const x = static_cast<const bf16*>(params.x);
#pragma unroll 4
    for (int j = 0; j < kRows * kTileChunks / Shape::kThreads; ++j) {
        const int i = static_cast<int>(threadIdx.x) + j * Shape::kThreads;
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
        // Matrices 0 and 1: rows 0-7 of w at k and k + 8; 2 and 3: rows 8-15.
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
    tile_kernel(const __grid_constant__ Params params) {
    std::byte* const shared = dynamic_shared_memory();
    const Place place = place_of(params, static_cast<int>(blockIdx.y));
    const Part& part = params.parts[place.part];
    const std::int64_t m0 = std::int64_t{blockIdx.x} * Shape::kTileM;
    const int n0 = place.tile * Shape::kTileN;
    const int warp_m = warp_index() / Shape::kWarpsN;
    const int warp_n = warp_index() % Shape::kWarpsN;
    const int num_stages = (params.K + kTileK - 1) / kTileK;
    const auto stage_at = [=](int s) { return shared + s % Shape::kStages * Shape::kStageBytes; };

    float sums[Shape::kTilesM][Shape::kTilesN][4] = {};
    for (int s = 0; s < Shape::kStages - 1; ++s) {
        if (s < num_stages) load_stage<Shape>(stage_at(s), params, part, m0, n0, s * kTileK);
        commit_copies();  // also an empty one: the waits count groups
    }
    for (int s = 0; s < num_stages; ++s) {
        wait_copies<Shape::kStages - 2>();
        __syncthreads();  // stage s is there for all, and all are done with stage s - 1
        const int next = s + Shape::kStages - 1;
        if (next < num_stages)
            load_stage<Shape>(stage_at(next), params, part, m0, n0, next * kTileK);
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

// ---- general ----

constexpr int kGeneralTile = 64;
constexpr int kGeneralK = 16;
constexpr int kGeneralThreads = 256;  // 16 x 16, each 4 x 4 outputs

__device__ float load_x(const Params& params, std::int64_t index) {
    return params.x_dtype == DType::kF32 ? static_cast<const float*>(params.x)[index]
                                         : to_float(static_cast<const bf16*>(params.x)[index]);
}

// grid [tiles of M, tiles of N over all parts], block [kGeneralThreads]; a thread owns 4 x 4
// outputs, 16 apart. Bound by FMA: 2 M N K flops at 60 TFLOP/s of fp32 at best. k ascends in one
// chain per output. For fp32 activations (the truth mode), where speed is not the point.
__global__ void __launch_bounds__(kGeneralThreads)
    general_kernel(const __grid_constant__ Params params) {
    __shared__ float x_tile[kGeneralK][kGeneralTile + 1];  // + 1: a column's stores meet all banks
    __shared__ float w_tile[kGeneralK][kGeneralTile + 1];
    const Place place = place_of(params, static_cast<int>(blockIdx.y));
    const Part& part = params.parts[place.part];
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

// Params for tiles of `tile_n` weight rows, and how many there are.
struct Cut {
    Params params{};
    std::int32_t num_tiles = 0;
};
Cut cut(const LinearArgs& args, int tile_n) {
    Cut made{
        .params = {
            .x = args.x.data,
            .x_stride = args.x.stride,
            .M = args.x.rows,
            .K = narrow<std::int32_t>(args.x.cols),
            .num_parts = narrow<std::int32_t>(args.parts.size()),
            .mode = args.mode,
            .x_dtype = args.x.dtype,
            .parts = {}}};
    for (std::size_t i = 0; i < args.parts.size(); ++i) {
        const LinearPart& part = args.parts[i];
        made.num_tiles += narrow<std::int32_t>(ceil_div(part.w.rows, tile_n));
        made.params.parts[i] = {
            .w = part.w.data,
            .w_stride = part.w.stride,
            .bias = part.bias,
            .y = part.y.data,
            .y_stride = part.y.stride,
            .N = narrow<std::int32_t>(part.w.rows),
            .tile_end = made.num_tiles,
            .y_dtype = part.y.dtype};
    }
    return made;
}

template <class Shape>
void run_tiles(const LinearArgs& args) {
    const Cut made = cut(args, Shape::kTileN);
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

void run_general(const LinearArgs& args) {
    const Cut made = cut(args, kGeneralTile);
    launch<general_kernel>(
        {.grid = dim3(
             narrow<unsigned>(ceil_div(args.x.rows, kGeneralTile)), narrow<unsigned>(made.num_tiles)
         ),
         .block = dim3(kGeneralThreads),
         .stream = args.stream},
        made.params
    );
}

template <int kM>
void run_gemv(const LinearArgs& args) {
    const Cut made = cut(args, kGemvTile);
    launch<gemv_kernel<kM>>(
        {.grid = dim3(narrow<unsigned>(made.num_tiles)),
         .block = dim3(kGemvThreads),
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
    } else if (M == 1) {
        run_gemv<1>(args);
    } else if (M <= kGemvMaxM) {
        run_gemv<kGemvMaxM>(args);
    } else if (M <= kTilesMaxM) {
        run_tiles<SmallTile>(args);
    } else {
        linear_cublas(args);
    }
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
