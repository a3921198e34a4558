// Shared by the kernels of linear: the products of a call in the form that they read, and the
// processing of a sum.
#pragma once

#include "kernels/device/numbers.cuh"
#include "kernels/linear.h"
#include "kernels/runtime/launch.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

struct LinearShare {
    const bf16* w = nullptr;  // [N, K]
    std::int64_t w_stride = 0;
    const bf16* bias = nullptr;  // [N] or null
    void* y = nullptr;           // [M, N]
    std::int64_t y_stride = 0;
    std::int32_t N = 0;
    std::int32_t tile_end = 0;  // tiles of N of this part and all before it
    std::int32_t split = 1;     // gemv: number of parts of K
    DType y_dtype = DType::kF32;
};

struct LinearParams {
    const void* x = nullptr;  // [M, K]
    std::int64_t x_stride = 0;
    std::int64_t M = 0;
    std::int32_t K = 0;
    std::int32_t num_parts = 0;
    LinearMode mode = LinearMode::kWrite;
    DType x_dtype = DType::kBF16;
    LinearShare parts[LinearArgs::kPartsMax];
};

// Returns the bytes that a call reads at least, for few rows of x.
[[nodiscard]] inline std::int64_t weight_bytes(const LinearArgs& args) {
    std::int64_t num = 0;
    for (const LinearPart& part : args.parts)
        num += part.w.rows * part.w.cols * std::int64_t{sizeof(bf16)};
    return num;
}

// The part of a tile of N, and the tile's number within it.
struct LinearPlace {
    int part;
    int tile;
};
__device__ inline LinearPlace place_of(const LinearParams& params, int tile) {
    int part = 0;
    while (part + 1 < params.num_parts && params.parts[part].tile_end <= tile) ++part;
    return {part, part == 0 ? tile : tile - params.parts[part - 1].tile_end};
}

__device__ inline void finish(
    const LinearShare& part, LinearMode mode, std::int64_t m, int n, float sum
) {
    if (part.bias != nullptr) sum += to_float(part.bias[n]);
    const std::int64_t index = m * part.y_stride + n;
    if (part.y_dtype == DType::kBF16) {
        static_cast<bf16*>(part.y)[index] = to_bf16(sum);
    } else {
        float* const y = static_cast<float*>(part.y) + index;
        *y = mode == LinearMode::kAdd ? sum + *y : sum;
    }
}

// The params for tiles of `tile_n` weight rows, and the number of tiles.
struct LinearCut {
    LinearParams params{};
    std::int32_t num_tiles = 0;
};
inline LinearCut cut(const LinearArgs& args, int tile_n) {
    LinearCut made{
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

}  // namespace pitstop::kernels
