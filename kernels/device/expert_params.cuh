// Shared by the kernels of expert_linear: the products of a call in the form that they read, and
// how a block finds its expert and its rows on the device.
#pragma once

#include "kernels/device/linear_params.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/expert_linear.h"
#include "kernels/runtime/launch.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace pitstop::kernels {

struct ExpertParams {
    LinearParams linear{};
    std::int64_t expert_strides[ExpertLinearArgs::kPartsMax]{};
    const std::int32_t* begins = nullptr;
    std::int32_t num_experts = 0;
};

// The product of one expert: its weights, and where its rows begin and end.
struct ExpertPlace {
    std::int32_t expert = -1;  // none
    std::int64_t m0 = 0;
    std::int64_t m_end = 0;
};

__device__ inline LinearShare share_of(const ExpertParams& params, int part, int expert) {
    LinearShare share = params.linear.parts[part];
    share.w += expert * params.expert_strides[part];
    return share;
}

// Finds tile `index` of tile_m rows among all experts' tiles, in order. Every warp does the same.
__device__ inline ExpertPlace place_of_tile(const ExpertParams& params, int index, int tile_m) {
    int before = 0;
    for (int from = 0; from < params.num_experts; from += kWarp) {
        const int expert = from + lane_index();
        int num = 0;
        if (expert < params.num_experts) {
            const int rows = params.begins[expert + 1] - params.begins[expert];
            num = (rows + tile_m - 1) / tile_m;
        }
        int end = num;
#pragma unroll
        for (int offset = 1; offset < kWarp; offset *= 2) {
            const int lower = __shfl_up_sync(kAllLanes, end, offset);
            if (lane_index() >= offset) end += lower;
        }
        const unsigned behind = __ballot_sync(kAllLanes, before + end > index);
        if (behind != 0) {
            const int lane = __popc(~behind & (behind - 1u));  // the lowest lane in `behind`
            const int first = before + __shfl_sync(kAllLanes, end - num, lane);
            const int found = from + lane;
            const std::int64_t m0 = params.begins[found] + std::int64_t{index - first} * tile_m;
            return {found, m0, params.begins[found + 1]};
        }
        before += __shfl_sync(kAllLanes, end, kWarp - 1);
    }
    return {};
}

struct ExpertCut {
    ExpertParams params{};
    unsigned num_tiles = 0;  // of N, over all parts
};

inline ExpertCut cut_experts(const ExpertLinearArgs& args, int tile_n) {
    LinearPart parts[ExpertLinearArgs::kPartsMax];
    for (std::size_t i = 0; i < args.parts.size(); ++i)
        parts[i] = {.w = args.parts[i].w, .y = args.parts[i].y};
    const LinearCut made = cut({.x = args.x, .parts = std::span(parts, args.parts.size())}, tile_n);
    ExpertCut all{
        .params = {.linear = made.params, .begins = args.begins, .num_experts = args.num_experts},
        .num_tiles = narrow<unsigned>(made.num_tiles)};
    for (std::size_t i = 0; i < args.parts.size(); ++i)
        all.params.expert_strides[i] = args.parts[i].expert_stride;
    return all;
}

// An upper bound of the tiles of rows: all full tiles, and one partly filled tile per expert.
inline unsigned tiles_max(const ExpertLinearArgs& args, int tile_m) {
    const std::int64_t experts = std::min<std::int64_t>(args.num_experts, args.x.rows);
    return narrow<unsigned>(args.x.rows / tile_m + experts);
}

}  // namespace pitstop::kernels
