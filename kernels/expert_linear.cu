#include "kernels/device/expert_params.cuh"
#include "kernels/device/linear_tile.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/expert_linear_cuda.h"
#include "kernels/runtime/compute_capability.h"
#include "kernels/runtime/launch.cuh"

#include <algorithm>

// Four ways to multiply by experts; none asks the host which experts were chosen:
//
//   rows      few rows: CUDA cores, a block for a row and some of its expert's weights
//   tiles     mma.sync, as linear.cu's: a block finds its expert, and its rows among the expert's
//   wgmma     many rows per expert on Hopper, not in deterministic mode (expert_linear_wgmma.cu)
//   general   fp32 x, and shapes or addresses that 16-byte loads do not fit
namespace pitstop::kernels {
namespace {

// ---- tiles ----

// grid [tiles of rows, tiles of N over all parts], block [kThreads]; a block owns a tile of y.
// The grid has all full tiles, and one more for each expert's remaining rows. Blocks without a tile
// end at once. Bytes: 2 N K of each chosen expert, read once if the tiles of an
// expert meet in L2. NOT MEASURED on a device.
template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocksPerSm)
    expert_tile_kernel(const __grid_constant__ ExpertParams params) {
    std::byte* const shared = dynamic_shared_memory();
    let_next_kernel_start();
    wait_for_kernel_before();
    const ExpertPlace at = place_of_tile(params, static_cast<int>(blockIdx.x), Shape::kTileM);
    if (at.expert < 0) return;
    const LinearPlace place = place_of(params.linear, static_cast<int>(blockIdx.y));
    const LinearShare part = share_of(params, place.part, at.expert);
    multiply_tile<Shape>(shared, params.linear, part, at.m0, at.m_end, place.tile * Shape::kTileN);
}

// grid, block: as above, kGeneralThreads. For fp32 activations, which need no speed.
__global__ void __launch_bounds__(kGeneralThreads)
    expert_general_kernel(const __grid_constant__ ExpertParams params) {
    const ExpertPlace at = place_of_tile(params, static_cast<int>(blockIdx.x), kGeneralTile);
    if (at.expert < 0) return;
    const LinearPlace place = place_of(params.linear, static_cast<int>(blockIdx.y));
    const LinearShare part = share_of(params, place.part, at.expert);
    multiply_general_tile(params.linear, part, at.m0, at.m_end, place.tile * kGeneralTile);
}

// ---- rows ----

constexpr int kRowsThreads = 256;
constexpr int kRowsWarps = kRowsThreads / kWarp;
constexpr int kRowsTile = kRowsWarps * 2;  // weight rows of a block, two per warp
// Up to this many rows mostly have an expert each. More rows share experts, and a tile reads an
// expert once.
constexpr std::int64_t kRowsMax = 32;

// grid [R, tiles of N over all parts], block [kRowsThreads]; a warp owns two outputs of a row, a
// lane every 32nd chunk of 8 weights. Memory-bound: 2 N K bytes of each chosen expert, from memory
// for its first row and from L2 for further rows. An output's sum: the lane's chunks ascending,
// then the butterfly. NOT MEASURED on a device.
__global__ void __launch_bounds__(kRowsThreads)
    expert_rows_kernel(const __grid_constant__ ExpertParams params) {
    let_next_kernel_start();
    wait_for_kernel_before();
    const int r = static_cast<int>(blockIdx.x);
    const ExpertPlace at = place_of_tile(params, r, 1);
    if (at.expert < 0) return;
    const LinearPlace place = place_of(params.linear, static_cast<int>(blockIdx.y));
    const LinearShare part = share_of(params, place.part, at.expert);
    const int n0 = place.tile * kRowsTile + warp_index() * 2;
    if (n0 >= part.N) return;
    const int n1 = min(n0 + 1, part.N - 1);
    const bf16* const x =
        static_cast<const bf16*>(params.linear.x) + at.m0 * params.linear.x_stride;
    const bf16* const w0 = part.w + n0 * part.w_stride;
    const bf16* const w1 = part.w + n1 * part.w_stride;
    float sums[2] = {};
#pragma unroll 2
    for (int k = lane_index() * kChunkElements; k < params.linear.K; k += kWarp * kChunkElements) {
        const uint4 packs[2] = {load16_streaming(w0 + k), load16_streaming(w1 + k)};
        float numbers[kChunkElements];
        load_floats(x + k, numbers);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float weights[kChunkElements];
            unpack_bf16x2(packs[i].x, weights[0], weights[1]);
            unpack_bf16x2(packs[i].y, weights[2], weights[3]);
            unpack_bf16x2(packs[i].z, weights[4], weights[5]);
            unpack_bf16x2(packs[i].w, weights[6], weights[7]);
#pragma unroll
            for (int c = 0; c < kChunkElements; ++c)
                sums[i] = fmaf(numbers[c], weights[c], sums[i]);
        }
    }
    sums[0] = warp_sum(sums[0]);
    sums[1] = warp_sum(sums[1]);
    if (lane_index() != 0) return;
    finish(part, LinearMode::kWrite, at.m0, n0, sums[0]);
    if (n0 + 1 < part.N) finish(part, LinearMode::kWrite, at.m0, n1, sums[1]);
}

// ---- the choice ----

template <class Shape>
void run_tiles(const ExpertLinearArgs& args) {
    const ExpertCut made = cut_experts(args, Shape::kTileN);
    launch<expert_tile_kernel<Shape>>(
        {.grid = dim3(tiles_max(args, Shape::kTileM), made.num_tiles),
         .block = dim3(Shape::kThreads),
         .shared_bytes = Shape::kSharedBytes,
         .stream = args.stream,
         .starts_early = true},
        made.params
    );
}

void run_general(const ExpertLinearArgs& args) {
    const ExpertCut made = cut_experts(args, kGeneralTile);
    launch<expert_general_kernel>(
        {.grid = dim3(tiles_max(args, kGeneralTile), made.num_tiles),
         .block = dim3(kGeneralThreads),
         .stream = args.stream},
        made.params
    );
}

void run_rows(const ExpertLinearArgs& args) {
    const ExpertCut made = cut_experts(args, kRowsTile);
    launch<expert_rows_kernel>(
        {.grid = dim3(narrow<unsigned>(args.x.rows), made.num_tiles),
         .block = dim3(kRowsThreads),
         .stream = args.stream,
         .starts_early = true},
        made.params
    );
}

bool fits_chunks(const ExpertLinearArgs& args) {
    if (args.x.dtype != DType::kBF16 || args.x.cols % kChunkElements != 0) return false;
    if (!is_aligned(args.x.data, kChunkBytes) || args.x.stride % kChunkElements != 0) return false;
    return std::ranges::all_of(args.parts, [](const ExpertLinearPart& part) {
        return is_aligned(part.w.data, kChunkBytes) && part.w.stride % kChunkElements == 0 &&
               part.expert_stride % kChunkElements == 0;
    });
}

// If experts have at least this many rows on average, the tiles of 128 rows of wgmma are mostly
// full.
constexpr std::int64_t kWgmmaRowsMin = 65;

bool takes_wgmma(const ExpertLinearArgs& args) {
    return args.x.rows / args.num_experts >= kWgmmaRowsMin && compute_capability() == kHopper;
}

// Chosen by the average number of rows per expert, so that each weight is read once for as many
// rows as possible.
void run_fitting_tiles(const ExpertLinearArgs& args) {
    const std::int64_t average = args.x.rows / args.num_experts;
    if (average <= SmallTile::kTileM) {
        run_tiles<SmallTile>(args);
    } else if (average <= MediumTile::kTileM) {
        run_tiles<MediumTile>(args);
    } else {
        run_tiles<LargeTile>(args);
    }
}

}  // namespace

void expert_linear_cuda(const ExpertLinearArgs& args) {
    check(args);
    if (args.x.rows == 0) return;
    if (!fits_chunks(args)) {
        run_general(args);
    } else if (args.x.rows <= kRowsMax) {
        run_rows(args);
    } else if (takes_wgmma(args)) {
        expert_linear_wgmma_cuda(args);
    } else {
        run_fitting_tiles(args);
    }
}

void expert_linear_cuda_deterministic(const ExpertLinearArgs& args) {
    check(args);
    if (args.x.rows == 0) return;
    fits_chunks(args) ? run_fitting_tiles(args) : run_general(args);
}

}  // namespace pitstop::kernels
