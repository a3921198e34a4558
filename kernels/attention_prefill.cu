#include "kernels/device/attention_prefill.cuh"

#include "kernels/device/shared_memory.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

template <int D_, int kRowTiles_, int kBlocksPerSm_, bool kIsSegmented_>
struct Shape {
    static constexpr int D = D_;
    static constexpr int kRowTiles = kRowTiles_;  // tiles of 16 rows, per warp
    static constexpr int kBlocksPerSm = kBlocksPerSm_;
    static constexpr bool kIsSegmented = kIsSegmented_;  // states merged at kSegmentKeys (P6)
    static constexpr int kWarpRows = kRowTiles * kRowsPerWarp;
    static constexpr int kRows = kWarps * kWarpRows;    // rows of the block
    static constexpr int kChunks = D / kChunkElements;  // chunks of a row
    static constexpr int kQueryBytes = kRows * D * 2;
    static constexpr int kTileBytes = kKeysPerTile * D * 2;
    static constexpr int kSharedBytes = kQueryBytes + 2 * kTileBytes;
};

// Starts the copy of the tile's queries; zeros for rows that do not exist.
template <class S>
__device__ __forceinline__ void copy_queries(
    const AttentionParams& params, const PrefillTile& work, std::byte* queries
) {
    for (int i = static_cast<int>(threadIdx.x); i < S::kRows * S::kChunks; i += kThreads) {
        const int tile_row = i / S::kChunks;
        const int chunk = i % S::kChunks;
        const bool is_there = tile_row / params.group < work.num_tokens;
        const auto* const q = static_cast<const bf16*>(params.q);
        const bf16* const from =
            is_there ? q + work.query_index(params, tile_row, params.q_stride, S::D) +
                           chunk * kChunkElements
                     : q;
        copy16_async(
            queries + swizzled<S::kChunks>(tile_row, chunk), from, is_there ? kChunkBytes : 0
        );
    }
}

// Starts the copy of a tile of keys or values: each thread copies one chunk of every kThreads /
// kChunks-th key.
template <class S>
__device__ __forceinline__ void copy_tile(
    const AttentionParams& params,
    std::byte* tile,
    const std::int32_t (&rows)[kKeysPerTile],
    std::int32_t offset  // from keys to values, in rows of KV memory
) {
    constexpr int kKeysPerPass = kThreads / S::kChunks;
    const int thread = static_cast<int>(threadIdx.x);
    const int chunk = thread % S::kChunks;
#pragma unroll 4
    for (int j = 0; j < kKeysPerTile / kKeysPerPass; ++j) {
        const int key = thread / S::kChunks + j * kKeysPerPass;
        const std::int32_t kv_row = rows[key];
        copy_kv_chunk<S::D>(tile, key, chunk, params, kv_row == kNoRow ? kNoRow : kv_row + offset);
    }
    commit_copies();
}

// Returns the row of KV memory of this thread's key of a tile.
__device__ __forceinline__ std::int32_t row_of_key(
    const AttentionParams& params, const PrefillTile& work, std::int32_t tile
) {
    return key_row(
        params,
        work.row,
        work.kv_head,
        tile * kKeysPerTile + static_cast<int>(threadIdx.x),
        work.keys_begin,
        work.keys_end
    );
}

// The keys that a warp's rows see. The bounds of each row are in shared memory, because few key
// tiles need them.
struct SeenKeys {
    std::int32_t first;  // the first key that any row sees
    std::int32_t last;
    std::int32_t all_first;  // the first key that all rows see
    std::int32_t all_last;

    // A tile that no row of the warp sees is skipped: it would change nothing.
    __device__ __forceinline__ bool has_any_of(std::int32_t begin, std::int32_t end) const {
        return begin <= last && end > first;
    }
    // A tile that every row sees whole needs no mask.
    __device__ __forceinline__ bool has_all_of(std::int32_t begin, std::int32_t end) const {
        return begin >= all_first && end - 1 <= all_last;
    }
};

template <class S>
__device__ __forceinline__ SeenKeys seen_keys(
    const AttentionParams& params,
    const PrefillTile& work,
    const std::int32_t* last_keys  // [kWarpRows] for the warp's rows
) {
    SeenKeys seen{work.keys_end, kNoKey, 0, work.keys_end};
    for (int i = lane_index(); i < S::kWarpRows; i += kWarp) {
        const std::int32_t last = last_keys[i];
        const std::int32_t first = last == kNoKey ? work.keys_end : first_key(last, params.window);
        seen.first = min(seen.first, first);
        seen.last = max(seen.last, last);
        seen.all_first = max(seen.all_first, first);
        seen.all_last = min(seen.all_last, last);
    }
    seen.first = __reduce_min_sync(kAllLanes, seen.first);
    seen.last = __reduce_max_sync(kAllLanes, seen.last);
    seen.all_first = __reduce_max_sync(kAllLanes, seen.all_first);
    seen.all_last = __reduce_min_sync(kAllLanes, seen.all_last);
    return seen;
}

template <class S>
using Scores = float[S::kRowTiles][kScoreTiles][4];

template <class S>
__device__ __forceinline__ void multiply_keys(
    Scores<S>& scores, const std::byte* warp_queries, const std::byte* keys
) {
#pragma unroll
    for (int i = 0; i < S::kRowTiles; ++i) {
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
            for (int e = 0; e < 4; ++e) scores[i][n][e] = 0.f;
        }
    }
#pragma unroll
    for (int k16 = 0; k16 < S::D / 16; ++k16) {
        std::uint32_t q[S::kRowTiles][4];
#pragma unroll
        for (int i = 0; i < S::kRowTiles; ++i) {
            load_query<S::D>(q[i], warp_queries + i * kRowsPerWarp * S::D * 2, k16);
        }
#pragma unroll
        for (int n = 0; n < kScoreTiles; n += 2) {
            // The compiler loads a key fragment once for all row tiles.
#pragma unroll
            for (int i = 0; i < S::kRowTiles; ++i)
                add_scores<S::D>(scores[i][n], scores[i][n + 1], q[i], keys, n * 8, k16);
        }
    }
}

// Sets to -inf the scores of keys that a row must not see.
__device__ __forceinline__ void mask_rows(
    float (&scores)[kScoreTiles][4],
    std::int32_t begin,             // the tile's first key
    const std::int32_t* last_keys,  // for the block's rows
    int row,                        // the first of the 16 rows
    const AttentionParams& params
) {
    std::int32_t first[2];
    std::int32_t last[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        last[e] = last_keys[row + lane_index() / 4 + e * 8];
        first[e] = first_key(last[e], params.window);
    }
    mask_scores(scores, begin, first, last);
}

// The state of a warp's rows over the keys so far.
template <class S>
struct Sums {
    AttentionState<S::D> states[S::kRowTiles];                        // of this segment
    AttentionState<S::D> totals[S::kIsSegmented ? S::kRowTiles : 1];  // of earlier segments

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < S::kRowTiles; ++i) {
            states[i].clear();
            if constexpr (S::kIsSegmented) totals[i].clear();
        }
    }

    __device__ __forceinline__ void multiply_values(
        const Scores<S>& probabilities, const std::byte* values
    ) {
#pragma unroll
        for (int n = 0; n < kScoreTiles; n += 2) {
#pragma unroll
            for (int i = 0; i < S::kRowTiles; ++i) {
                add_values(states[i], probabilities[i][n], probabilities[i][n + 1], values, n * 8);
            }
        }
    }

    __device__ __forceinline__ void end_segment(float scale_log2) {
        if constexpr (S::kIsSegmented) {
#pragma unroll
            for (int i = 0; i < S::kRowTiles; ++i) {
                sum_over_row(states[i]);
                merge_segment(totals[i], states[i], scale_log2);
                states[i].clear();
            }
        }
    }
};

template <class S>
__device__ __forceinline__ void store_rows(
    Sums<S>& sums,
    const AttentionParams& params,
    const PrefillTile& work,
    int warp_row,                  // the warp's first row within the block
    const std::int32_t* last_keys  // for the block's rows
) {
#pragma unroll
    for (int i = 0; i < S::kRowTiles; ++i) {
        AttentionState<S::D>& state = sums.states[i];
        if constexpr (S::kIsSegmented) {
            state = sums.totals[i];
        } else {
            sum_over_row(state);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int tile_row = warp_row + i * kRowsPerWarp + lane_index() / 4 + e * 8;
            if (last_keys[tile_row] == kNoKey) continue;
            const std::int64_t index = work.query_index(params, tile_row, params.out_stride, S::D);
#pragma unroll
            for (int n = 0; n < S::D / 8; ++n) {
                store_pair(
                    params,
                    index + n * 8 + lane_index() % 4 * 2,
                    attention_output(state.acc[n][2 * e], state.sum[e]),
                    attention_output(state.acc[n][2 * e + 1], state.sum[e])
                );
            }
        }
    }
}

// grid [KV heads, num_prefill_blocks], block [kThreads]; a block owns a PrefillTile of kRows rows.
//
// Bound by the tensor cores: 4 D flops per (query head, key) pair; the second limit is exp2, which
// takes half of that time per pair at D = 128. K and V come from L2, once per block. One key tile
// is in flight while the other is multiplied: V during the scores, the next K during the softmax
// and PV. Shared memory feeds 2048 FLOP per clock and SM with one row tile per warp (half of the
// peak), 4096 with two: each warp reads every key and value once for all its rows.
template <class S>
__global__ void __launch_bounds__(kThreads, S::kBlocksPerSm)
    prefill_kernel(const __grid_constant__ AttentionParams params) {
    __shared__ std::int32_t rows[2][kKeysPerTile];  // of KV memory, for this tile and the next
    // the last key that each row sees; kNoKey: the row does not exist
    __shared__ std::int32_t last_keys[S::kRows];
    std::byte* const queries = dynamic_shared_memory();
    std::byte* const keys = queries + S::kQueryBytes;
    std::byte* const values = keys + S::kTileBytes;
    const int thread = static_cast<int>(threadIdx.x);
    const PrefillTile work = prefill_tile(params, S::kRows);
    if (work.num_tokens <= 0) return;
    copy_queries<S>(params, work, queries);
    for (int i = thread; i < S::kRows; i += kThreads) last_keys[i] = work.last_key(params, i);
    __syncthreads();
    const int warp_row = warp_index() * S::kWarpRows;
    const std::byte* const warp_queries = queries + warp_row * S::D * 2;
    const SeenKeys seen = seen_keys<S>(params, work, last_keys + warp_row);

    const std::int32_t tile_begin = work.keys_begin / kKeysPerTile;
    const std::int32_t tile_end = (work.keys_end + kKeysPerTile - 1) / kKeysPerTile;
    if (thread < kKeysPerTile) rows[tile_begin % 2][thread] = row_of_key(params, work, tile_begin);
    __syncthreads();
    copy_tile<S>(params, keys, rows[tile_begin % 2], 0);

    Sums<S> sums;
    sums.clear();
    for (std::int32_t tile = tile_begin; tile < tile_end; ++tile) {
        // Looked up early, so that its latency overlaps the scores.
        const std::int32_t next_row =
            thread < kKeysPerTile ? row_of_key(params, work, tile + 1) : kNoRow;
        wait_copies<0>();
        __syncthreads();  // keys (and queries) have arrived; all have used the last values
        copy_tile<S>(params, values, rows[tile % 2], params.value_rows);

        const std::int32_t begin = tile * kKeysPerTile;
        const std::int32_t end = begin + kKeysPerTile;
        const bool is_seen = seen.has_any_of(begin, end);
        Scores<S> scores;
        if (is_seen) multiply_keys<S>(scores, warp_queries, keys);
        if (thread < kKeysPerTile) rows[(tile + 1) % 2][thread] = next_row;
        wait_copies<0>();
        // values have arrived; all are done with the keys; the next rows are known
        __syncthreads();
        if (tile + 1 < tile_end) copy_tile<S>(params, keys, rows[(tile + 1) % 2], 0);
        if (is_seen) {
            const bool is_masked = !seen.has_all_of(begin, end);
#pragma unroll
            for (int i = 0; i < S::kRowTiles; ++i) {
                if (is_masked)
                    mask_rows(scores[i], begin, last_keys, warp_row + i * kRowsPerWarp, params);
                softmax_step(sums.states[i], scores[i], params.scale_log2);
            }
            sums.multiply_values(scores, values);
        }
        if (end % AttentionArgs::kSegmentKeys == 0) sums.end_segment(params.scale_log2);
    }
    sums.end_segment(params.scale_log2);  // the last segment may be short or empty
    store_rows<S>(sums, params, work, warp_row, last_keys);
}

template <class S>
void run(const AttentionParams& params, Stream stream) {
    const std::int32_t tile_len = S::kRows / params.group;
    const std::int64_t num_blocks =
        num_prefill_blocks(params.num_tokens, params.num_rows, tile_len);
    CHECK(num_blocks <= 65535);  // the limit of a grid's y; T and R of a step are far below
    launch<prefill_kernel<S>>(
        {.grid = dim3(narrow<unsigned>(params.num_kv_heads), narrow<unsigned>(num_blocks)),
         .block = dim3(kThreads),
         .shared_bytes = S::kSharedBytes,
         .stream = stream},
        params
    );
}

}  // namespace

void attention_prefill_cuda(const AttentionParams& params, AttentionOrder order, Stream stream) {
    const bool is_fixed = order == AttentionOrder::kFixed;
    if (params.head_dim == 128) {
        is_fixed ? run<Shape<128, 1, 2, true>>(params, stream)
                 : run<Shape<128, 2, 1, false>>(params, stream);
    } else {
        is_fixed ? run<Shape<64, 1, 3, true>>(params, stream)
                 : run<Shape<64, 2, 2, false>>(params, stream);
    }
}

}  // namespace pitstop::kernels
