#include "kernels/device/attention_prefill.cuh"

#include "kernels/device/launch.cuh"
#include "kernels/device/shared_memory.cuh"

namespace pitstop::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

template <int D_, int kRowTiles_, int kBlocksPerSm_, bool kIsSegmented_>
struct Shape {
    static constexpr int D = D_;
    static constexpr int kRowTiles = kRowTiles_;  // of 16 rows, per warp
    static constexpr int kBlocksPerSm = kBlocksPerSm_;
    static constexpr bool kIsSegmented = kIsSegmented_;  // states merged at kSegmentKeys (P6)
    static constexpr int kRows = kWarps * kRowTiles * kRowsPerWarp;  // of the block
    static constexpr int kChunks = D / kChunkElements;               // of a row
    static constexpr int kQueryBytes = kRows * D * 2;
    static constexpr int kTileBytes = kKeysPerTile * D * 2;
    static constexpr int kSharedBytes = kQueryBytes + 2 * kTileBytes;
};

// grid [KV heads, num_prefill_blocks], block [kThreads]; a block owns a PrefillTile of kRows rows.
//
// Bound by the tensor cores: 4 D flops per (query head, key) pair; and beside them by exp2, a pair
// of which costs half as long at D = 128. K and V come from L2, once per block. One key tile is in
// flight while the other is multiplied: V during the scores, the next K during the softmax and PV.
// Shared memory feeds 2048 FLOP per clock and SM with one row tile per warp (half of the peak),
// 4096 with two: each warp reads every key and value once for all its rows.
template <class S>
__global__ void __launch_bounds__(kThreads, S::kBlocksPerSm)
    prefill_kernel(const __grid_constant__ AttentionParams params) {
    constexpr int D = S::D;
    __shared__ std::int32_t rows[2][kKeysPerTile];  // of KV memory, this tile's and the next one's
    __shared__ std::int32_t last_keys[S::kRows];    // seen by a row; kNoKey: there is no such row
    std::byte* const queries = dynamic_shared_memory();
    std::byte* const keys = queries + S::kQueryBytes;
    std::byte* const values = keys + S::kTileBytes;
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = lane_index();
    const PrefillTile work = prefill_tile(params, S::kRows);
    if (work.num_tokens <= 0) return;

    // Queries, zeros where the tile has no such row.
    for (int i = thread; i < S::kRows * S::kChunks; i += kThreads) {
        const int tile_row = i / S::kChunks;
        const int chunk = i % S::kChunks;
        const bool is_there = tile_row / params.group < work.num_tokens;
        const auto* const q = static_cast<const bf16*>(params.q);
        const bf16* const from = is_there
                                     ? q + work.query_index(params, tile_row, params.q_stride, D) +
                                           chunk * kChunkElements
                                     : q;
        copy16_async(
            queries + swizzled<S::kChunks>(tile_row, chunk), from, is_there ? kChunkBytes : 0
        );
    }

    // What the tile's rows see lies in shared memory, as it is needed in few key tiles; what any
    // row of the warp sees and what all of them do is in registers.
    for (int i = thread; i < S::kRows; i += kThreads) last_keys[i] = work.last_key(params, i);
    __syncthreads();
    std::int32_t warp_first = work.keys_end;
    std::int32_t warp_last = kNoKey;
    std::int32_t all_first = 0;
    std::int32_t all_last = work.keys_end;
    const int warp_row = warp_index() * S::kRowTiles * kRowsPerWarp;
    const std::byte* const warp_queries = queries + warp_row * D * 2;
    for (int i = lane; i < S::kRowTiles * kRowsPerWarp; i += kWarp) {
        const std::int32_t last = last_keys[warp_row + i];
        const std::int32_t first = last == kNoKey ? work.keys_end : first_key(last, params.window);
        warp_first = min(warp_first, first);
        warp_last = max(warp_last, last);
        all_first = max(all_first, first);
        all_last = min(all_last, last);
    }
    warp_first = __reduce_min_sync(kAllLanes, warp_first);
    warp_last = __reduce_max_sync(kAllLanes, warp_last);
    all_first = __reduce_max_sync(kAllLanes, all_first);
    all_last = __reduce_min_sync(kAllLanes, all_last);

    // A thread copies one chunk of every kThreads / kChunks-th key.
    constexpr int kKeysPerPass = kThreads / S::kChunks;
    const auto copy_tile = [&](std::byte* tile, const std::int32_t* tile_rows, std::int32_t offset
                           ) {
        const int chunk = thread % S::kChunks;
#pragma unroll 4
        for (int j = 0; j < kKeysPerTile / kKeysPerPass; ++j) {
            const int key = thread / S::kChunks + j * kKeysPerPass;
            const std::int32_t kv_row = tile_rows[key];
            copy_kv_chunk<D>(tile, key, chunk, params, kv_row == kNoRow ? kNoRow : kv_row + offset);
        }
    };
    const auto row_of_key = [&](std::int32_t tile) {  // this thread's key of a tile
        return key_row(
            params,
            work.row,
            work.kv_head,
            tile * kKeysPerTile + thread,
            work.keys_begin,
            work.keys_end
        );
    };
    const std::int32_t tile_begin = work.keys_begin / kKeysPerTile;
    const std::int32_t tile_end = (work.keys_end + kKeysPerTile - 1) / kKeysPerTile;
    if (thread < kKeysPerTile) rows[tile_begin % 2][thread] = row_of_key(tile_begin);
    __syncthreads();
    copy_tile(keys, rows[tile_begin % 2], 0);
    commit_copies();

    AttentionState<D> states[S::kRowTiles];
    AttentionState<D> totals[S::kIsSegmented ? S::kRowTiles : 1];
#pragma unroll
    for (int i = 0; i < S::kRowTiles; ++i) {
        states[i].clear();
        if constexpr (S::kIsSegmented) totals[i].clear();
    }
    const auto end_segment = [&] {
        if constexpr (S::kIsSegmented) {
#pragma unroll
            for (int i = 0; i < S::kRowTiles; ++i) {
                sum_over_row(states[i]);
                merge_segment(totals[i], states[i], params.scale_log2);
                states[i].clear();
            }
        }
    };

    for (std::int32_t tile = tile_begin; tile < tile_end; ++tile) {
        // It is looked up early: its latency passes while the scores are computed.
        const std::int32_t next_row = thread < kKeysPerTile ? row_of_key(tile + 1) : kNoRow;
        wait_copies<0>();
        __syncthreads();  // keys (and queries) are there; all are done with the last values
        copy_tile(values, rows[tile % 2], params.value_rows);
        commit_copies();

        const std::int32_t begin = tile * kKeysPerTile;
        const std::int32_t end = begin + kKeysPerTile;
        // A warp none of whose rows sees the tile skips it: for such rows it would change nothing.
        const bool is_seen = begin <= warp_last && end > warp_first;
        float scores[S::kRowTiles][kScoreTiles][4];
        if (is_seen) {
#pragma unroll
            for (int i = 0; i < S::kRowTiles; ++i) {
#pragma unroll
                for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) scores[i][n][e] = 0.f;
                }
            }
#pragma unroll
            for (int k16 = 0; k16 < D / 16; ++k16) {
                std::uint32_t q[S::kRowTiles][4];
#pragma unroll
                for (int i = 0; i < S::kRowTiles; ++i) {
                    load_query<D>(q[i], warp_queries + i * kRowsPerWarp * D * 2, k16);
                }
#pragma unroll
                for (int n = 0; n < kScoreTiles; n += 2) {
                    // The compiler loads a key fragment once for all row tiles.
#pragma unroll
                    for (int i = 0; i < S::kRowTiles; ++i)
                        add_scores<D>(scores[i][n], scores[i][n + 1], q[i], keys, n * 8, k16);
                }
            }
        }
        if (thread < kKeysPerTile) rows[(tile + 1) % 2][thread] = next_row;
        wait_copies<0>();
        __syncthreads();  // values are there; all are done with the keys; the next rows are known
        if (tile + 1 < tile_end) {
            copy_tile(keys, rows[(tile + 1) % 2], 0);
            commit_copies();
        }
        if (is_seen) {
            const bool is_masked = begin < all_first || end - 1 > all_last;
#pragma unroll
            for (int i = 0; i < S::kRowTiles; ++i) {
                if (is_masked) {
                    std::int32_t first[2];
                    std::int32_t last[2];
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        last[e] = last_keys[warp_row + i * kRowsPerWarp + lane / 4 + e * 8];
                        first[e] = first_key(last[e], params.window);
                    }
                    mask_scores(scores[i], begin, first, last);
                }
                softmax_step(states[i], scores[i], params.scale_log2);
            }
#pragma unroll
            for (int n = 0; n < kScoreTiles; n += 2) {
#pragma unroll
                for (int i = 0; i < S::kRowTiles; ++i)
                    add_values(states[i], scores[i][n], scores[i][n + 1], values, n * 8);
            }
        }
        if (end % AttentionArgs::kSegmentKeys == 0) end_segment();
    }
    end_segment();  // the last one may be short; where it is empty nothing changes

#pragma unroll
    for (int i = 0; i < S::kRowTiles; ++i) {
        if constexpr (S::kIsSegmented) {
            states[i] = totals[i];
        } else {
            sum_over_row(states[i]);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int tile_row = warp_row + i * kRowsPerWarp + lane / 4 + e * 8;
            if (last_keys[tile_row] == kNoKey) continue;
            const std::int64_t index = work.query_index(params, tile_row, params.out_stride, D);
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                store_pair(
                    params,
                    index + n * 8 + lane % 4 * 2,
                    attention_output(states[i].acc[n][2 * e], states[i].sum[e]),
                    attention_output(states[i].acc[n][2 * e + 1], states[i].sum[e])
                );
            }
        }
    }
}

template <class S>
void run(const AttentionParams& params, Stream stream) {
    const std::int32_t tile_len = S::kRows / params.group;
    const std::int64_t num_blocks =
        num_prefill_blocks(params.num_tokens, params.num_rows, tile_len);
    CHECK(num_blocks <= 65535);  // a grid's y; T and R of a step are far below
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
