// The state of a truncating row in sampling's kernels: its maximum, the bin and the weight of an
// id, and the bin below which nothing survives.
#pragma once

#include "kernels/device/reduce.cuh"
#include "kernels/device/sampled_row.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace pitstop::kernels {

__device__ inline float row_max(const SampleParams& params, std::int64_t r) {
    float max = negative_infinity();
    for (int i = 0; i < params.num_parts; ++i)
        max = fmaxf(max, params.parts[r * params.num_parts + i].score);
    return max;
}
__device__ inline float min_p_threshold_of(const SampleRow& row, float max) {
    if (row.min_p <= 0.f) return negative_infinity();
    return static_cast<float>(double{max} + log(double{row.min_p}));
}
__device__ inline std::uint64_t top_p_target_of(const SampleRow& row, std::uint64_t total) {
    const auto target =
        static_cast<std::uint64_t>(ceil(double{row.top_p} * static_cast<double>(total)));
    return min(max(target, std::uint64_t{1}), max(total, std::uint64_t{1}));
}
// Returns how far x is below the maximum; 0 for the maximum, even if both are infinite.
__device__ inline float below(float max, float x) { return x == max ? 0.f : max - x; }
__device__ inline int bin_of(float max, float x) {
    return static_cast<int>(fminf(below(max, x) * kBinsPerUnit, static_cast<float>(kBins - 1)));
}
__device__ inline std::uint64_t mass_of(float max, float x) {
    return __float2ull_rn(expf(-below(max, x)) * kMassOne);
}

// The use that the collect kernel makes of the ids of a row.
enum class Collect : std::uint8_t {
    kList,  // lists all ids that may survive
    kRace,  // lists the ids of the boundary's bin; those above survive and race
    kNone,  // none: too many ids in one bin, or top-k; the resolve kernel reads the whole row
};

// The bin below which no id survives.
struct Boundary {
    int bin;                // kBins if all that min-p left survive
    std::uint32_t num_ids;  // in the bin and above
    std::uint32_t num_in_bin;
    std::uint64_t mass_above;  // the mass of the bins above
    std::uint64_t mass;        // the mass of all ids that min-p left

    __device__ Collect collect(const SampleRow& row, std::int32_t num_vocab_ids) const {
        if (num_ids <= kListMax) return Collect::kList;
        // then top-p counts the mass of ids that top-k kept
        const bool is_top_k = row.top_k < num_vocab_ids;
        return is_top_k || num_in_bin > kListMax ? Collect::kNone : Collect::kRace;
    }
};

// The count and the mass of each of two adjacent bins, including all bins of greater x.
struct PairSums {
    std::uint32_t counts[2];
    std::uint64_t mass[2];
};

// Returns the sums for bins `bin` and `bin` + 1 of this lane. Lower lanes have the bins of greater
// x, because bins are numbered from the maximum down. REQUIRES: the whole warp calls it.
__device__ inline PairSums pair_sums(const RowSpace& space, int bin) {
    PairSums sums{};
    sums.counts[0] = space.counts[bin];
    sums.mass[0] = space.mass[bin];
    const std::uint32_t pair_count = sums.counts[0] + space.counts[bin + 1];
    const std::uint64_t pair_mass = sums.mass[0] + space.mass[bin + 1];
    sums.counts[1] = pair_count;
    sums.mass[1] = pair_mass;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
        const std::uint32_t count = __shfl_up_sync(kAllLanes, sums.counts[1], offset);
        const std::uint64_t other = __shfl_up_sync(kAllLanes, sums.mass[1], offset);
        if (lane_index() >= offset) {
            sums.counts[1] += count;
            sums.mass[1] += other;
        }
    }
    sums.counts[0] += sums.counts[1] - pair_count;
    sums.mass[0] += sums.mass[1] - pair_mass;
    return sums;
}

// Finds the boundary. With top-k, the boundary is the first bin, from above, at which the number
// of ids reaches top_k; all of that bin is needed, because top-p counts the mass of the ids that
// top-k kept. Without top-k, it is the first bin, from above, at which the mass reaches top-p's
// target. Every thread gets the same. REQUIRES: the whole block calls it; the first kThreads
// threads do the work.
__device__ inline Boundary boundary_of(
    const RowSpace& space, const SampleRow& row, std::int32_t num_ids
) {
    __shared__ std::uint32_t warp_counts[kThreads / kWarp];
    __shared__ std::uint64_t warp_mass[kThreads / kWarp];
    __shared__ Boundary boundary;
    const int thread = static_cast<int>(threadIdx.x);
    const bool works = thread < kThreads;
    const int bin = 2 * thread;
    PairSums sums{};
    if (works) {
        sums = pair_sums(space, bin);
        if (lane_index() == kWarp - 1) {
            warp_counts[warp_index()] = sums.counts[1];
            warp_mass[warp_index()] = sums.mass[1];
        }
    }
    __syncthreads();
    std::uint32_t count_all = 0;
    std::uint64_t mass_all = 0;
    std::uint32_t count_before = 0;
    std::uint64_t mass_before = 0;
    for (int warp = 0; warp < kThreads / kWarp; ++warp) {
        if (warp == warp_index()) {
            count_before = count_all;
            mass_before = mass_all;
        }
        count_all += warp_counts[warp];
        mass_all += warp_mass[warp];
    }
    if (thread == 0) {
        boundary = {
            .bin = kBins,
            .num_ids = count_all,
            .num_in_bin = 0,
            .mass_above = mass_all,
            .mass = mass_all};
    }
    __syncthreads();
    if (works) {
        sums.counts[0] += count_before, sums.counts[1] += count_before;
        sums.mass[0] += mass_before, sums.mass[1] += mass_before;
        const bool is_top_k = row.top_k < num_ids;
        const auto top_k = static_cast<std::uint32_t>(row.top_k);
        const std::uint64_t target = top_p_target_of(row, mass_all);
        std::uint32_t count_above = sums.counts[0] - space.counts[bin];
        std::uint64_t mass_above = sums.mass[0] - space.mass[bin];
#pragma unroll
        for (int b = 0; b < 2; ++b) {
            const bool is_first =
                is_top_k ? sums.counts[b] >= top_k && count_above < top_k
                         : row.top_p < 1.f && sums.mass[b] >= target && mass_above < target;
            if (is_first) {
                boundary.bin = bin + b;  // at most one thread writes: no other bin is the first
                boundary.num_ids = sums.counts[b];
                boundary.num_in_bin = sums.counts[b] - count_above;
                boundary.mass_above = mass_above;
            }
            count_above = sums.counts[b];
            mass_above = sums.mass[b];
        }
    }
    __syncthreads();
    return boundary;
}

}  // namespace pitstop::kernels
