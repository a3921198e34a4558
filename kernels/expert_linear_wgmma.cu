#include "kernels/device/expert_params.cuh"
#include "kernels/device/linear_tile.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/expert_linear_cuda.h"
#include "kernels/runtime/launch.cuh"

#include <cstdint>

namespace pitstop::kernels {
namespace {

// Two warpgroups, 64 rows of x each, by 256 weight rows. An instruction takes the tensor cores 128
// clocks, and reads 10 KiB of shared memory: 80 bytes per clock. Shared memory moves 128, so 48 are
// left for arriving data. A stage of 64 columns needs these: 48 KiB in 1,024 clocks.
using Tile = TileShape<128, 256, 2, 4, 4, 1>;
static_assert(Tile::kThreads == 2 * kWarpgroup && Tile::kTileM == 2 * 64);
static_assert(kTileK == kPanelColumns);  // a stage is a panel of x and a panel of w

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kSums = Tile::kTileN / 2;  // of a thread

// Stages whose copies are under way. Products read one or both of the other two stages.
constexpr int kAhead = Tile::kStages - 2;

// Issues the products of the warpgroup's 64 rows with a stage's weights: its kTileK columns, 16 at
// a time, ascending.
__device__ __forceinline__ void multiply_stage_async(
    float (&sums)[kSums], const std::byte* stage, int warpgroup
) {
    const std::byte* const x = stage + warpgroup * 64 * kPanelRowBytes;
    const std::byte* const w = stage + Tile::kTileM * kPanelRowBytes;
#pragma unroll
    for (int k16 = 0; k16 < kTileK / 16; ++k16) {
        wgmma_ss(
            sums,
            wgmma_rows_descriptor(shared_address(x + k16 * 32)),
            wgmma_rows_descriptor(shared_address(w + k16 * 32)),
            1
        );
    }
    wgmma_commit();
}

__device__ __forceinline__ void store_pair(bf16* to, float low, float high) {
    *reinterpret_cast<std::uint32_t*>(to) = pack_bf16x2(low, high);
}
__device__ __forceinline__ void store_pair(float* to, float low, float high) {
    *reinterpret_cast<float2*>(to) = make_float2(low, high);
}

// Stores a thread's outputs of a row, in pairs where the row's address and end allow.
template <class Y>
__device__ __forceinline__ void store_row(
    Y* row,     // output n0 of y's row
    int num,    // outputs from n0 on that y has
    int first,  // index of the row's first sum: a thread has sums of two rows
    const float (&sums)[kSums]
) {
    const bool is_paired = reinterpret_cast<std::uintptr_t>(row) % (2 * sizeof(Y)) == 0;
#pragma unroll
    for (int j = 0; j < Tile::kTileN / 8; ++j) {
        const int n = j * 8 + lane_index() % 4 * 2;
        const float low = sums[j * 4 + first];
        const float high = sums[j * 4 + first + 1];
        if (is_paired && n + 1 < num) {
            store_pair(row + n, low, high);
        } else {
            if (n < num) store_float(row + n, low);
            if (n + 1 < num) store_float(row + n + 1, high);
        }
    }
}

template <class Y>
__device__ __forceinline__ void store_tile(
    const LinearShare& part, const ExpertPlace& at, int n0, const float (&sums)[kSums]
) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const std::int64_t m = at.m0 + warp_index() * 16 + lane_index() / 4 + r * 8;
        if (m >= at.m_end) continue;
        store_row(static_cast<Y*>(part.y) + m * part.y_stride + n0, part.N - n0, 2 * r, sums);
    }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// grid [tiles of rows x tiles of N over all parts], block [Tile::kThreads]; a block owns a tile of
// y. The tiles of N come first: blocks that run at once share rows of x and an expert's weights in
// L2. The grid has all full tiles of rows, and one more for each expert's remaining rows. Blocks
// without a tile end at once. An output's sum: 16 columns at a time, ascending.
//
// All threads copy and multiply; products of a stage overlap the copies of the next two. Bound by
// the tensor cores: 2 R N K flops. 192 KiB of shared memory: one block per SM. NOT MEASURED on a
// device.
__global__ void __launch_bounds__(Tile::kThreads, 1)
    expert_wgmma_kernel(const __grid_constant__ ExpertParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    std::byte* const shared = dynamic_shared_memory();
    const int num_tiles_n = params.linear.parts[params.linear.num_parts - 1].tile_end;
    const int block = static_cast<int>(blockIdx.x);
    const ExpertPlace at = place_of_tile(params, block / num_tiles_n, Tile::kTileM);
    if (at.expert < 0) return;
    const LinearPlace place = place_of(params.linear, block % num_tiles_n);
    const LinearShare part = share_of(params, place.part, at.expert);
    const int n0 = place.tile * Tile::kTileN;
    const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
    const int num_stages = (params.linear.K + kTileK - 1) / kTileK;
    const auto stage_at = [=](int s) { return shared + s % Tile::kStages * Tile::kStageBytes; };
    const StageLoader<Tile> loader(
        params.linear, part, at.m0, at.m_end, n0, static_cast<int>(threadIdx.x)
    );

    float sums[kSums] = {};
    for (int s = 0; s < kAhead; ++s) {
        if (s < num_stages) loader.load(stage_at(s), s * kTileK);
        commit_copies();  // even an empty one, because the waits count groups
    }
    for (int s = 0; s < num_stages; ++s) {
        wait_copies<kAhead - 1>();
        fence_async_proxy();
        __syncthreads();  // stage s has arrived for all, and the products of s - 2 are done for all
        wgmma_fence();
        multiply_stage_async(sums, stage_at(s), warpgroup);
        const int next = s + kAhead;
        if (next < num_stages) loader.load(stage_at(next), next * kTileK);
        commit_copies();
        wgmma_wait<1>();
    }
    wgmma_wait<0>(sums);
    if (part.y_dtype == DType::kBF16) {
        store_tile<bf16>(part, at, n0, sums);
    } else {
        store_tile<float>(part, at, n0, sums);
    }
#else
    __trap();  // built for sm_90 without wgmma, which cmake/cuda.cmake refuses
#endif
}

}  // namespace

void expert_linear_wgmma_cuda(const ExpertLinearArgs& args) {
    const ExpertCut made = cut_experts(args, Tile::kTileN);
    const std::int64_t num_blocks = std::int64_t{tiles_max(args, Tile::kTileM)} * made.num_tiles;
    launch<expert_wgmma_kernel>(
        {.grid = dim3(narrow<unsigned>(num_blocks)),
         .block = dim3(Tile::kThreads),
         .shared_bytes = Tile::kSharedBytes,
         .stream = args.stream},
        made.params
    );
}

}  // namespace pitstop::kernels
