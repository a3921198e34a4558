// Finds the keys, queries and outputs of a ragged batch; shared by the attention kernels.
#pragma once

#include "kernels/attention_cuda.h"
#include "kernels/device/attention_index.h"
#include "kernels/device/attention_tile.cuh"
#include "kernels/device/numbers.cuh"
#include "kernels/device/ptx.cuh"

#include <cuda_runtime.h>

namespace pitstop::kernels {

inline constexpr std::int32_t kNoRow = -1;  // copied as zeros, without a read

// One request of the batch.
struct BatchRow {
    std::int32_t q_begin;  // index in the batch of the row's first new token
    std::int32_t q_len;    // new tokens
    std::int32_t kv_len;   // including the new ones
    const PageId* pages;

    // Returns the position of the row's new token `token`.
    __device__ std::int32_t position(std::int32_t token) const { return kv_len - q_len + token; }
};

__device__ inline BatchRow batch_row(const AttentionParams& params, std::int32_t r) {
    const std::int32_t begin = params.q_starts[r];
    return {
        begin,
        params.q_starts[r + 1] - begin,
        params.kv_lens[r],
        params.pages + params.page_starts[r]};
}

// Returns the number of the KV row with the key at `position`, or kNoRow outside [begin, end).
__device__ inline std::int32_t key_row(
    const AttentionParams& params,
    const BatchRow& row,
    std::int32_t kv_head,
    std::int32_t position,
    std::int32_t begin,
    std::int32_t end
) {
    if (position < begin || position >= end) return kNoRow;
    const auto page =
        static_cast<std::int32_t>(params.page_size.quotient(static_cast<std::uint32_t>(position)));
    const auto P = static_cast<std::int32_t>(params.page_size.divisor());
    return raw(in_global(row.pages)[page]) * params.page_rows + kv_head * P + (position - page * P);
}

// Starts the copy of one chunk of a KV row into a tile.
template <int D>
__device__ void copy_kv_chunk(
    std::byte* tile, int tile_row, int chunk, const AttentionParams& params, std::int32_t kv_row
) {
    const bool is_there = kv_row != kNoRow;
    const auto* const kv = static_cast<const bf16*>(params.kv);
    const bf16* const from = is_there ? kv + std::int64_t{kv_row} * D + chunk * kChunkElements : kv;
    copy16_async(tile + swizzled<D / 8>(tile_row, chunk), from, is_there ? kChunkBytes : 0);
}

// Reads memory that another block has written, from L2: L1 may still have the old contents.
template <class T>
__device__ T read_record(const float* from) {
    return __ldcg(reinterpret_cast<const T*>(from));
}

// Returns the index of the elements of q and out of token `t` of the batch, query head `head`.
__device__ inline std::int64_t head_index(std::int64_t t, std::int64_t stride, int head, int D) {
    return t * stride + std::int64_t{head} * D;
}

// Stores two neighbouring elements of out, in one store if the address allows: a row of out may
// start at any element.
__device__ inline void store_pair(
    const AttentionParams& params, std::int64_t index, float low, float high
) {
    if (params.out_dtype == DType::kBF16) {
        bf16* const to = static_cast<bf16*>(params.out) + index;
        if (reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
            *reinterpret_cast<std::uint32_t*>(to) = pack_bf16x2(low, high);
        } else {
            store_float(to, low);
            store_float(to + 1, high);
        }
    } else {
        float* const to = static_cast<float*>(params.out) + index;
        if (reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {
            *reinterpret_cast<float2*>(to) = make_float2(low, high);
        } else {
            store_float(to, low);
            store_float(to + 1, high);
        }
    }
}

// Sets to -inf the scores of a tile (keys from tile_begin) that the warp's two rows must not see.
__device__ inline void mask_scores(
    float (&scores)[kScoreTiles][4],
    std::int32_t tile_begin,
    const std::int32_t (&first)[2],  // for rows g and g + 8: the visible keys are first .. last
    const std::int32_t (&last)[2]
) {
    const std::int32_t column = tile_begin + lane_index() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const std::int32_t key = column + n * 8 + e % 2;
            if (key < first[e / 2] || key > last[e / 2]) scores[n][e] = minus_infinity();
        }
    }
}

}  // namespace pitstop::kernels
