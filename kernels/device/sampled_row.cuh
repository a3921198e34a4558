// Shared by sampling's kernels: the workspace of a row, and how its logits are read and scaled.
#pragma once

#include "kernels/device/gumbel_race.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/sampling.h"

#include <cstdint>

namespace pitstop::kernels {

constexpr int kThreads = 256;
constexpr int kBlockIds = static_cast<int>(kSampleVocabBlock);
constexpr int kPacks = kBlockIds / (kThreads * 4);  // float4s per thread
constexpr int kResolveThreads = 1024;
constexpr int kListMax = 4096;  // ids
// How many rows use the workspace at once; further rows take turns.
constexpr std::int64_t kRowsPerGroup = SampleArgs::kArrivals;

// A bin spans 1/16 of x, from the maximum down; the last bin has everything below. At 32 below the
// maximum the mass round(2^40 e^-32) is 0.
constexpr int kBins = 512;
constexpr float kBinsPerUnit = 16.f;
static_assert(kBins == 2 * kThreads);

struct Listed {
    float x;
    std::int32_t id;
};

// One row's part of the workspace.
struct RowSpace {
    std::uint64_t mass[kBins];
    std::uint32_t counts[kBins];
    Listed list[kListMax];
    alignas(8) std::uint32_t num_listed;
};

struct SampleParams {
    const float* logits;  // [R, V_rank]
    std::int64_t stride;
    std::int32_t num_ids;  // V_rank
    std::int64_t vocab_begin;
    const SampleRow* rows;          // [R]
    std::uint32_t first_position;   // added to the rows' positions
    Choice* choices;                // [R]
    RowSpace* spaces;               // [R]
    RacePart* parts;                // [R, num_parts]
    RacePart* race_parts;           // [R, num_parts], of rows whose collect is Collect::kRace
    std::int32_t* nonfinite_parts;  // [R, num_parts]
    std::int32_t* num_nonfinite;    // [R] or null
    // [R]: the last part of a row merges all; null: the resolve kernel does
    std::uint32_t* arrivals;
    int num_parts;
    bool is_aligned_16;  // whether every row of logits is 16-byte aligned
};

__device__ inline SampleRow sample_row(const SampleParams& params, std::int64_t r) {
    SampleRow row = params.rows[r];
    row.position += params.first_position;
    return row;
}

__device__ inline float inverse_temperature(const SampleRow& row) {
    return row.temperature == 0.f ? 1.f : __fdiv_rn(1.f, row.temperature);
}
__device__ inline float scaled(float logit, float inverse) {
    const float x = __fmul_rn(logit, inverse);
    return isnan(x) ? negative_infinity() : x;
}

// Loads x of ids 4p .. 4p+3 of a block of `num` ids, -inf from `num` on. Returns how many of the
// logits are not finite.
__device__ inline int load_x(
    const SampleParams& params, const float* from, int p, int num, float inverse, float (&x)[4]
) {
    int num_nonfinite = 0;
    if (params.is_aligned_16 && p * 4 + 4 <= num) {
        load_floats(from + p * 4, x);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            num_nonfinite += is_nonfinite(x[k]);
            x[k] = scaled(x[k], inverse);
        }
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const bool is_inside = p * 4 + k < num;
            const float logit = is_inside ? from[p * 4 + k] : 0.f;
            num_nonfinite += is_nonfinite(logit);
            x[k] = is_inside ? scaled(logit, inverse) : negative_infinity();
        }
    }
    return num_nonfinite;
}

// Loads a thread's part of a block of kBlockIds. For a whole block all loads precede the first use.
// Returns what load_x() does.
__device__ inline int load_block(
    const SampleParams& params, const float* from, int num, float inverse, float (&x)[kPacks][4]
) {
    const int thread = static_cast<int>(threadIdx.x);
    int num_nonfinite = 0;
    if (params.is_aligned_16 && num == kBlockIds) {
#pragma unroll
        for (int j = 0; j < kPacks; ++j) load_floats(from + (thread + j * kThreads) * 4, x[j]);
#pragma unroll
        for (int j = 0; j < kPacks; ++j) {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                num_nonfinite += is_nonfinite(x[j][k]);
                x[j][k] = scaled(x[j][k], inverse);
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < kPacks; ++j)
            num_nonfinite += load_x(params, from, thread + j * kThreads, num, inverse, x[j]);
    }
    return num_nonfinite;
}

}  // namespace pitstop::kernels
