#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/linear_params.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/silu.cuh"
#include "kernels/device/swizzle.h"
#include "kernels/linear_cuda.h"
#include "kernels/runtime/launch.cuh"

#include <algorithm>

// Multiplies a few rows on CUDA cores, with one read of the weights.
namespace pitstop::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRows = 2;  // weight rows of a warp, which share its reads of x
// How many 16-byte loads per row and lane precede the first use: as many as fit into the registers
// besides kM sums.
template <int kM>
constexpr int kUnroll = kM == 1 ? 4 : 2;
constexpr int kTile = kWarps * kRows;  // weight rows of a block, if no warps share a row

// Four blocks per SM, 528 on an H200, hide more of the time in which a block starts or ends: three
// made a layer of qwen3-8b 6 % slower at M = 4, and one of qwen3-0.6b 9 % at M = 1.
constexpr int kBlocksPerSm = 4;
constexpr std::int64_t kBlocksWanted = 512;

// A product of at most this many bytes of weights starts early (dependent_launch.cuh), as its
// launch is most of its time. Blocks of larger products would occupy the SMs that the previous
// kernel leaves first, and only wait there. A step would be slower: 4 % at M = 1, 6 % at M = 4
// (H200, qwen3-8b).
constexpr std::int64_t kEarlyBytesMax = std::int64_t{16} << 20;

// Returns how many warps share a weight row, each with a part of K: the fewest that make
// kBlocksWanted blocks, if each still has a load for every lane. Depends only on N and K, so that a
// product's bits depend neither on M nor on other products of the call.
int split_of(std::int64_t N, std::int64_t K) {
    const std::int64_t num_chunks = K / kChunkElements;
    int split = 1;
    while (split < kWarps && ceil_div(N * split, kTile) < kBlocksWanted &&
           num_chunks >= 2 * split * kWarp)
        split *= 2;
    return split;
}

// The chunks of the warp's part of K; parts begin at whole rounds of the warp.
struct Range {
    int begin;
    int end;
};
__device__ Range part_of(int num_chunks, int part, int split) {
    const auto cut_at = [=](int i) {
        return i == split ? num_chunks : num_chunks / kWarp * i / split * kWarp;
    };
    return {cut_at(part), cut_at(part + 1)};
}

// Where the gated numbers are written.
struct Gated {
    void* y = nullptr;  // [M, N]
    std::int64_t stride = 0;
    DType dtype = DType::kF32;

    __device__ void store(std::int64_t m, int n, float number) const {
        const std::int64_t index = m * stride + n;
        if (dtype == DType::kBF16) {
            static_cast<bf16*>(y)[index] = to_bf16(number);
        } else {
            static_cast<float*>(y)[index] = number;
        }
    }
};

// Returns a sum as it would be read back from the part's y.
__device__ float as_stored(const LinearShare& part, int n, float sum) {
    if (part.bias != nullptr) sum += to_float(part.bias[n]);
    return part.y_dtype == DType::kBF16 ? to_float(to_bf16(sum)) : sum;
}

// Adds kNum of the lane's chunks, ascending from `first`, to the sums of the warp's rows.
template <int kM, int kNum>
__device__ void add_chunks(
    const LinearParams& params, const bf16* const (&w)[kRows], int first, float (&sums)[kRows][kM]
) {
    const bf16* const x = static_cast<const bf16*>(params.x);
    uint4 packs[kNum][kRows];
#pragma unroll
    for (int u = 0; u < kNum; ++u) {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
            packs[u][r] = load16_streaming(w[r] + (first + u * kWarp) * kChunkElements);
    }
    // Keeps the loads above: otherwise the compiler saves registers by waiting for each
    // load in turn.
    if constexpr (kNum > 1) __syncwarp();
#pragma unroll
    for (int u = 0; u < kNum; ++u) {
        float weights[kRows][kChunkElements];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const uint4 pack = packs[u][r];
            unpack_bf16x2(pack.x, weights[r][0], weights[r][1]);
            unpack_bf16x2(pack.y, weights[r][2], weights[r][3]);
            unpack_bf16x2(pack.z, weights[r][4], weights[r][5]);
            unpack_bf16x2(pack.w, weights[r][6], weights[r][7]);
        }
#pragma unroll
        for (int m = 0; m < kM; ++m) {
            float numbers[kChunkElements];
            load_floats(x + m * params.x_stride + (first + u * kWarp) * kChunkElements, numbers);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
#pragma unroll
                for (int k = 0; k < kChunkElements; ++k)
                    sums[r][m] = fmaf(numbers[k], weights[r][k], sums[r][m]);
            }
        }
    }
}

// grid [tiles of kTile / split weight rows], block [kThreads]; `split` neighbouring warps share two
// rows of w. Each warp owns a part of K, and a lane every 32nd chunk of 8 elements of that part.
// Memory-bound: 2 N K bytes of w, read once past L1; x comes from L1. For qwen3-8b at 4.3 TB/s, QKV
// (50 MB) takes 11.7 us, gate-up (201 MB) 46.8 us, the head (1.24 GB) 289 us.
//
// A lane has 8 loads of 16 bytes in flight (4 at M > 1): 4 KiB per warp, and 128 KiB per SM at 32
// warps. 26 KiB would suffice. Each 16 bytes of w take about 26 instructions at M = 1, which at
// that rate is a quarter of the SM's issue slots; M = 4 stays below the limit. An output's sum adds
// a lane's chunks in ascending order, then the lanes by a butterfly, then the parts of K in
// ascending order.
//
// When gated, the two rows of a warp are one of gate and one of up, so that their product needs no
// other warp; a block has half as many of each.
template <int kM, bool kIsGated>  // M == kM
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    gemv_kernel(const __grid_constant__ LinearParams params, const Gated gated) {
    __shared__ float partial[kWarps][kRows][kM];
    const LinearPlace place = kIsGated ? LinearPlace{0, static_cast<int>(blockIdx.x)}
                                       : place_of(params, static_cast<int>(blockIdx.x));
    const LinearShare& part = params.parts[place.part];
    const int split = part.split;
    const int first_row = place.tile * (kWarps / split) + warp_index() / split;
    const int n0 = kIsGated ? first_row : first_row * kRows;
    const Range chunks = part_of(params.K / kChunkElements, warp_index() % split, split);
    const bf16* w[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const LinearShare& of = params.parts[kIsGated ? r : place.part];
        w[r] = of.w + std::int64_t{min(kIsGated ? n0 : n0 + r, of.N - 1)} * of.w_stride;
    }
    const bool is_inside = n0 < part.N;  // the same for all lanes of a warp
    let_next_kernel_start();
    wait_for_kernel_before();
    float sums[kRows][kM] = {};
    int chunk = (is_inside ? chunks.begin : chunks.end) + lane_index();
    for (; chunk - lane_index() + kUnroll<kM> * kWarp <= chunks.end; chunk += kUnroll<kM> * kWarp)
        add_chunks<kM, kUnroll<kM>>(params, w, chunk, sums);
    for (; chunk < chunks.end; chunk += kWarp) add_chunks<kM, 1>(params, w, chunk, sums);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
            const float sum = warp_sum(sums[r][m]);
            if (lane_index() == 0) partial[warp_index()][r][m] = sum;
        }
    }
    __syncthreads();
    if (warp_index() % split != 0 || lane_index() >= kRows * kM) return;
    const int r = lane_index() / kM;
    const int m = lane_index() % kM;
    const auto sum_of = [&](int row) {
        float sum = partial[warp_index()][row][m];
        for (int i = 1; i < split; ++i) sum += partial[warp_index() + i][row][m];
        return sum;
    };
    if constexpr (kIsGated) {
        if (r != 0 || n0 >= part.N) return;
        const float gate = as_stored(part, n0, sum_of(0));
        gated.store(m, n0, silu_mul(gate, as_stored(params.parts[1], n0, sum_of(1))));
    } else if (n0 + r < part.N) {
        finish(part, params.mode, m, n0 + r, sum_of(r));
    }
}

template <int kM, bool kIsGated>
void run(const LinearArgs& args, const Gated& gated) {
    LinearCut made = cut(args, kTile);
    made.num_tiles = 0;
    for (std::size_t i = 0; i < args.parts.size(); ++i) {
        LinearShare& part = made.params.parts[i];
        part.split = split_of(part.N, made.params.K);
        const int tile = (kIsGated ? kWarps : kTile) / part.split;
        if (kIsGated && i > 0) break;
        made.num_tiles += narrow<std::int32_t>(ceil_div(part.N, tile));
        part.tile_end = made.num_tiles;
    }
    launch<gemv_kernel<kM, kIsGated>>(
        {.grid = dim3(narrow<unsigned>(made.num_tiles)),
         .block = dim3(kThreads),
         .stream = args.stream,
         .starts_early = weight_bytes(args) <= kEarlyBytesMax},
        made.params,
        gated
    );
}

template <bool kIsGated>
void run(const LinearArgs& args, const Gated& gated) {
    switch (args.x.rows) {
        case 1:
            return run<1, kIsGated>(args, gated);
        case 2:
            return run<2, kIsGated>(args, gated);
        case 3:
            return run<3, kIsGated>(args, gated);
        case 4:
            return run<4, kIsGated>(args, gated);
        default:
            CHECK(args.x.rows == 0);
    }
}

}  // namespace

void linear_gemv_cuda(const LinearArgs& args) { run<false>(args, {}); }

void linear_gemv_silu_mul_cuda(const LinearArgs& args, const ActView& gated) {
    CHECK(args.mode == LinearMode::kWrite && args.parts.size() == 2);
    const LinearPart& gate = args.parts[0];
    const LinearPart& up = args.parts[1];
    CHECK(gate.w.rows == up.w.rows && gate.y.dtype == up.y.dtype && gated.cols == gate.w.rows);
    run<true>(args, {.y = gated.data, .stride = gated.stride, .dtype = gated.dtype});
}

}  // namespace pitstop::kernels
