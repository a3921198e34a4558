// The tiles of products on CUDA: a ring of stages for mma.sync, and fp32 sums for inputs that
// tensor cores do not support. For linear.cu and expert_linear.cu.
#pragma once

#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/linear_params.cuh"
#include "kernels/device/ptx.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/swizzle.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace pitstop::kernels {

inline constexpr int kTileK = 64;  // elements: 8 chunks, a row of 128 bytes
inline constexpr int kTileChunks = kTileK / kChunkElements;

template <int kTileM_, int kTileN_, int kWarpsM_, int kWarpsN_, int kStages_, int kBlocksPerSm_>
struct TileShape {
    static constexpr int kTileM = kTileM_;  // tokens
    static constexpr int kTileN = kTileN_;  // weight rows
    static constexpr int kWarpsM = kWarpsM_;
    static constexpr int kWarpsN = kWarpsN_;
    static constexpr int kStages = kStages_;
    static constexpr int kBlocksPerSm = kBlocksPerSm_;  // the registers must allow this
    static constexpr int kThreads = kWarp * kWarpsM * kWarpsN;
    static constexpr int kTilesM = kTileM / kWarpsM / 16;  // 16-token tiles of a warp
    static constexpr int kTilesN = kTileN / kWarpsN / 8;   // 8-row tiles of a warp
    static constexpr int kStageBytes = (kTileM + kTileN) * kTileChunks * kChunkBytes;
    static constexpr int kSharedBytes = kStages * kStageBytes;
    static_assert(kTilesN == 1 || kTilesN % 2 == 0);
};
// For M <= 16 a block has 72 KiB of ring, 44 KiB of w in flight, and there are 3 per SM; N = 4096
// makes 128 blocks. The chain of K / 16 mma of one warp, about 33 clocks each, takes 4.6 us at K =
// 4096, within the 7.8 us in which the weights arrive.
using SmallTile = TileShape<16, 32, 1, 4, 12, 3>;
// For M <= 64 a block has 80 KiB, and there are 2 per SM. w arrives at 18 bytes per clock and SM.
// Each warp reads all of x from shared memory: 4 warps read 4 times these bytes. With the reads of
// w and the stores of arriving data, shared memory moves 108 of its 128 bytes per clock.
using MediumTile = TileShape<64, 64, 1, 4, 5, 2>;
// For larger M a block has 96 KiB, and there are 2 per SM. A warp's tile of 64 x 32 reads 3 KiB
// from shared memory per 65,536 FLOP. Shared memory therefore allows 2,730 FLOP per clock, 67 % of
// the tensor cores' peak; mma.sync itself reaches 62 %.
using LargeTile = TileShape<128, 128, 2, 4, 3, 2>;

// One thread's copies of each stage: chunk `thread % kTileChunks` of every kStep-th row, first of
// x, then of w. The constructor computes all that does not depend on the stage. Without that, a
// stage had 205 instructions around 4 mma of a warp (SmallTile, sm_90a, CUDA 13.0).
template <class Shape>
class StageLoader {
  public:
    __device__ StageLoader(
        const LinearParams& params,
        const LinearShare& part,
        std::int64_t m0,
        std::int64_t m_end,
        int n0,
        int thread  // of kThreads
    )
        : none_(static_cast<const bf16*>(params.x)) {
        const int row = thread / kTileChunks;
        const int column = thread % kTileChunks * kChunkElements;
        x_ = none_ + (m0 + row) * params.x_stride + column;
        w_ = part.w + std::int64_t{n0 + row} * part.w_stride + column;
        x_step_ = kStep * params.x_stride;
        w_step_ = kStep * part.w_stride;
        x_rows_ = static_cast<int>(min(m_end - m0, std::int64_t{Shape::kTileM})) - row;
        w_rows_ = part.N - n0 - row;
        columns_ = params.K - column;
        row_ = row;
        chunk_ = thread % kTileChunks;
    }

    // Fills a stage with columns [k, k + kTileK) of x and w. Elements outside become zero, and a
    // product of zeros leaves a sum unchanged.
    __device__ void load(std::byte* stage, int k) const {
        const bool is_column = k < columns_;
#pragma unroll
        for (int j = 0; j < kLoadsOfX; ++j)
            copy(stage, j, x_ + k + j * x_step_, is_column && j * kStep < x_rows_);
#pragma unroll
        for (int j = 0; j < kLoadsOfW; ++j)
            copy(stage, kLoadsOfX + j, w_ + k + j * w_step_, is_column && j * kStep < w_rows_);
    }

  private:
    static constexpr int kStep = Shape::kThreads / kTileChunks;  // rows
    static constexpr int kLoadsOfX = Shape::kTileM / kStep;
    static constexpr int kLoadsOfW = Shape::kTileN / kStep;
    static_assert(Shape::kTileM % kStep == 0 && Shape::kTileN % kStep == 0);

    __device__ void copy(std::byte* stage, int load, const bf16* from, bool is_inside) const {
        std::byte* const to = stage + swizzled<kTileChunks>(row_ + load * kStep, chunk_);
        copy16_async(to, is_inside ? from : none_, is_inside ? kChunkBytes : 0);
    }

    const bf16* none_;  // an address for copies of zeros, which do not read it
    const bf16* x_;     // this thread's chunk in column 0 of its first row
    const bf16* w_;
    std::int64_t x_step_;  // elements
    std::int64_t w_step_;
    int x_rows_;  // rows of the tile from this thread's first row on
    int w_rows_;
    int columns_;  // columns of x from this thread's chunk on
    int row_;      // this thread's first row in the tile
    int chunk_;
};

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

// Multiplies rows [m0, m_end) of x, at most a tile of them, by a tile of the part's weight rows
// from n0 on. REQUIRES: all kThreads of the block call it; `shared` has kSharedBytes.
template <class Shape>
__device__ void multiply_tile(
    std::byte* shared,
    const LinearParams& params,
    const LinearShare& part,
    std::int64_t m0,
    std::int64_t m_end,
    int n0
) {
    const int warp_m = warp_index() / Shape::kWarpsN;
    const int warp_n = warp_index() % Shape::kWarpsN;
    const int num_stages = (params.K + kTileK - 1) / kTileK;
    const auto stage_at = [=](int s) { return shared + s % Shape::kStages * Shape::kStageBytes; };
    const StageLoader<Shape> loader(params, part, m0, m_end, n0, static_cast<int>(threadIdx.x));

    float sums[Shape::kTilesM][Shape::kTilesN][4] = {};
    for (int s = 0; s < Shape::kStages - 1; ++s) {
        if (s < num_stages) loader.load(stage_at(s), s * kTileK);
        commit_copies();  // even an empty one, because the waits count groups
    }
    for (int s = 0; s < num_stages; ++s) {
        wait_copies<Shape::kStages - 2>();
        __syncthreads();  // stage s has arrived for all, and all are done with stage s - 1
        const int next = s + Shape::kStages - 1;
        if (next < num_stages) loader.load(stage_at(next), next * kTileK);
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
                if (m < m_end && n < part.N) finish(part, params.mode, m, n, sums[i][j][e]);
            }
        }
    }
}

// ---- fp32 ----

inline constexpr int kGeneralTile = 64;
inline constexpr int kGeneralK = 16;
inline constexpr int kGeneralThreads = 256;  // 16 x 16, each 4 x 4 outputs

__device__ inline float load_x(const LinearParams& params, std::int64_t index) {
    return params.x_dtype == DType::kF32 ? static_cast<const float*>(params.x)[index]
                                         : to_float(static_cast<const bf16*>(params.x)[index]);
}

// Computes a tile on CUDA cores, for any x: a thread owns 4 x 4 outputs, 16 apart. Each output is
// one chain of sums, k ascending. REQUIRES: all kGeneralThreads of the block call it.
__device__ inline void multiply_general_tile(
    const LinearParams& params, const LinearShare& part, std::int64_t m0, std::int64_t m_end, int n0
) {
    __shared__ float x_tile[kGeneralK][kGeneralTile + 1];  // + 1: a column's stores use all banks
    __shared__ float w_tile[kGeneralK][kGeneralTile + 1];
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
                m < m_end && k < params.K ? load_x(params, m * params.x_stride + k) : 0.f;
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
            if (m < m_end && n < part.N) finish(part, params.mode, m, n, sums[i][j]);
        }
    }
}

}  // namespace pitstop::kernels
