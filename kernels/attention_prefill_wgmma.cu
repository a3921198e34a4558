#include "kernels/device/attention_prefill.cuh"
#include "kernels/device/online_softmax.cuh"
#include "kernels/device/prefill_parts.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/device/system_scope.cuh"
#include "kernels/device/wgmma.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

// One warpgroup copies, two multiply, 64 rows each.
constexpr int kThreads = 3 * kWarpgroup;
constexpr int kRows = kPrefillTileRows;
constexpr int kTileKeys = kPrefillTileKeys;
constexpr int kStages = 2;  // stages of keys, and as many of values

template <int D>
struct Shape {
    static constexpr int kPanels = D / kPanelColumns;
    static constexpr int kPanelBytes = kTileKeys * kPanelRowBytes;  // of queries, keys or values
    static constexpr int kTileBytes = kPanels * kPanelBytes;
    static constexpr int kSharedBytes = (1 + 2 * kStages) * kTileBytes;
    static_assert(kRows == kTileKeys);
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kTableTiles = 4;
constexpr int kCopyBarrier = 1;  // 0 is __syncthreads'
constexpr int kTurnBarrier = 2;  // the first multiplying warpgroup's; + 1: the second's

// Registers per thread: 128 * (40 + 2 * 232) = 64,512 of 65,536 are used.
constexpr int kCopyRegisters = 40;
constexpr int kMultiplyRegisters = 232;

// The warpgroups signal full and empty stages with these. Every copying thread arrives at `full`,
// every multiplying warp at `empty`.
struct Barriers {
    std::uint64_t keys_full[kStages];
    std::uint64_t keys_empty[kStages];
    std::uint64_t values_full[kStages];
    std::uint64_t values_empty[kStages];
};
constexpr int kMultiplyWarps = 2 * kWarpgroup / kWarp;

// Returns the offset in bytes of chunk `chunk` (of 8 elements) of row `row` in a tile of panels.
template <int D>
__device__ int panel_place(int row, int chunk) {
    constexpr int kPanelChunks = kPanelRowBytes / kChunkBytes;
    return chunk / kPanelChunks * Shape<D>::kPanelBytes +
           swizzled<kPanelChunks>(row, chunk % kPanelChunks);
}

// The shared memory of the block's warpgroups: [kRows, D] queries and kStages tiles each of keys
// and values.
template <int D>
struct Tiles {
    std::byte* queries;
    std::byte* keys;
    std::byte* values;

    __device__ __forceinline__ std::byte* keys_of(int stage) const {
        return keys + stage * Shape<D>::kTileBytes;
    }
    __device__ __forceinline__ std::byte* values_of(int stage) const {
        return values + stage * Shape<D>::kTileBytes;
    }
};

using TableOfRows =
    std::int32_t[kTableTiles][kTileKeys];  // the KV row of each key of the latest tiles

// The copying warpgroup fills keys and values in the order of their use, one group of cp.async
// ahead of the one it waits for: keys 0 (with the queries), keys 1, values 0, keys 2, values 1, ...
//
// TMA is not used. The driver would have to make a tensor map per layer and page size, to be kept
// as long as the arena. Boxes would have to end with a page and with a row, but pages may have any
// number of tokens. TMA would free registers and issue slots, which the products do not need. Not
// measured.
template <int D>
struct TileCopier {
    static constexpr int kChunks = D / kChunkElements;  // chunks of a row
    static constexpr int kRowsPerPass = kWarpgroup / kChunks;

    const AttentionParams& params;
    const PrefillTile& work;
    const Tiles<D>& tiles;
    Barriers& barriers;
    TableOfRows& rows;
    int thread;  // index in the first warpgroup
    int chunk;   // the chunk that this thread copies of its rows
    std::int32_t tile_begin;
    std::int32_t next_row = kNoRow;   // the row of this thread's key in the next tile
    std::uint64_t* copied = nullptr;  // the barrier of the latest group of copies

    __device__ __forceinline__ void copy_queries() const {
        for (int row = thread / kChunks; row < kRows; row += kRowsPerPass) {
            const std::int32_t token = row / params.group;
            const bool is_there = token < work.num_tokens;
            const auto* const q = static_cast<const bf16*>(params.q);
            const bf16* const from =
                is_there
                    ? q + work.query_index(params, row, params.q_stride, D) + chunk * kChunkElements
                    : q;
            copy16_async(
                tiles.queries + panel_place<D>(row, chunk), from, is_there ? kChunkBytes : 0
            );
        }
    }

    __device__ __forceinline__ void look_up(std::int32_t n) {
        next_row = key_row(
            params,
            work.row,
            work.kv_head,
            (tile_begin + n) * kTileKeys + thread,
            work.keys_begin,
            work.keys_end
        );
    }

    // `offset`: from keys to values, in rows of KV memory.
    __device__ __forceinline__ void copy_tile(std::byte* tile, std::int32_t n, std::int32_t offset)
        const {
        constexpr int kPasses = kTileKeys / kRowsPerPass;
        constexpr int kBatch = 8;
        static_assert(kPasses % kBatch == 0 && kRowsPerPass % 8 == 0);  // the swizzle's period
        const bf16* const kv = static_cast<const bf16*>(params.kv) + chunk * kChunkElements;
        const std::int32_t* const kv_rows = rows[n % kTableTiles] + thread / kChunks;
        std::byte* const to = tile + panel_place<D>(thread / kChunks, chunk);
#pragma unroll
        for (int first = 0; first < kPasses; first += kBatch) {
            // Loads before copies: the compiler reorders neither. Alternating took 110 clocks each.
            std::int32_t kv_row[kBatch];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) kv_row[j] = kv_rows[(first + j) * kRowsPerPass];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const bool is_there = kv_row[j] != kNoRow;
                const std::int64_t row = is_there ? kv_row[j] + offset : 0;
                copy16_async(
                    to + (first + j) * kRowsPerPass * kPanelRowBytes,
                    kv + row * D,
                    is_there ? kChunkBytes : 0
                );
            }
        }
        commit_copies();
    }

    // Announces the previous group of copies to the multiplying warpgroups; `next` is the barrier
    // for the latest group.
    __device__ __forceinline__ void announce(std::uint64_t* next) {
        if (copied != nullptr) {
            wait_copies<1>();
            fence_async_proxy();
            barrier_arrive(copied);
        }
        copied = next;
    }

    __device__ __forceinline__ void copy_keys(std::int32_t n) {
        const int stage = n % kStages;
        if (n >= kStages) barrier_wait(&barriers.keys_empty[stage], (n / kStages - 1) % 2);
        rows[n % kTableTiles][thread] = next_row;
        named_barrier<kWarpgroup>(kCopyBarrier);
        copy_tile(tiles.keys_of(stage), n, 0);
        look_up(n + 1);
        announce(&barriers.keys_full[stage]);
    }

    __device__ __forceinline__ void copy_values(std::int32_t n) {
        const int stage = n % kStages;
        if (n >= kStages) barrier_wait(&barriers.values_empty[stage], (n / kStages - 1) % 2);
        copy_tile(tiles.values_of(stage), n, params.value_rows);
        announce(&barriers.values_full[stage]);
    }

    __device__ __forceinline__ void announce_last() const {
        wait_copies<0>();
        fence_async_proxy();
        barrier_arrive(copied);
    }
};

// Run by the first warpgroup.
template <int D>
__device__ __forceinline__ void copy_tiles(
    const AttentionParams& params,
    const PrefillTile& work,
    const Tiles<D>& tiles,
    Barriers& barriers,
    TableOfRows& rows
) {
    const int thread = static_cast<int>(threadIdx.x);
    TileCopier<D> copier{
        .params = params,
        .work = work,
        .tiles = tiles,
        .barriers = barriers,
        .rows = rows,
        .thread = thread,
        .chunk = thread % TileCopier<D>::kChunks,
        .tile_begin = work.keys_begin / kTileKeys};
    const std::int32_t num_tiles = num_key_tiles(work);
    copier.copy_queries();
    copier.look_up(0);
    copier.copy_keys(0);
    for (std::int32_t n = 1; n < num_tiles; ++n) {
        copier.copy_keys(n);
        copier.copy_values(n - 1);
    }
    copier.copy_values(num_tiles - 1);
    copier.announce_last();
}

// Issues the products of the warpgroup's 64 queries with a tile's keys.
template <int D>
__device__ void multiply_keys(
    float (&scores)[64], const std::byte* queries, const std::byte* keys
) {
#pragma unroll
    for (int k16 = 0; k16 < D / 16; ++k16) {
        const int place = k16 / 4 * Shape<D>::kPanelBytes + k16 % 4 * 32;
        wgmma_ss(
            scores,
            wgmma_rows_descriptor(shared_address(queries + place)),
            wgmma_rows_descriptor(shared_address(keys + place)),
            k16 > 0
        );
    }
    wgmma_commit();
}

// Issues the products of the probabilities with a tile's values.
template <int D>
__device__ void multiply_values(
    float (&acc)[D / 2], const std::uint32_t (&p)[8][4], const std::byte* values
) {
#pragma unroll
    for (int k16 = 0; k16 < kTileKeys / 16; ++k16) {
        wgmma_rs(
            acc,
            p[k16],
            wgmma_columns_descriptor(
                shared_address(values + k16 * 16 * kPanelRowBytes), Shape<D>::kPanelBytes
            )
        );
    }
    wgmma_commit();
}

__device__ __forceinline__ void softmax_tile(
    float (&scores)[64],
    RowState& state,
    const RowKeys& seen,
    std::int32_t begin,  // the tile's first key
    float scale_log2
) {
    if (begin < seen.all_first || begin + kTileKeys - 1 > seen.all_last)
        mask(scores, begin, seen.first, seen.last);
    softmax(scores, state, scale_log2);
}

// Signals that a warp is done with a stage.
__device__ __forceinline__ void release(std::uint64_t* empty) {
    if (lane_index() == 0) barrier_arrive(empty);
}

// The multiplying warpgroups issue their products in turn, so that the softmax of each overlaps the
// products of the other ("ping-pong", FlashAttention-3, arXiv:2407.08608, section 3.1). Each
// warpgroup passes the turn as often as it waits for one. The first warpgroup begins.
__device__ __forceinline__ void give_turn_to(int warpgroup) {
    named_barrier_arrive<2 * kWarpgroup>(kTurnBarrier + warpgroup);
}
__device__ __forceinline__ void wait_for_turn(int warpgroup) {
    named_barrier<2 * kWarpgroup>(kTurnBarrier + warpgroup);
}

template <int D>
__device__ __forceinline__ void store_rows(
    const AttentionParams& params,
    const PrefillTile& work,
    const float (&acc)[D / 2],
    const RowState& state,
    const RowKeys& seen
) {
    const int lane = lane_index();
    // the warp's first row among the block's 128
    const int warp_row = (warp_index() - kWarpgroup / kWarp) * kRowsPerWarp;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = warp_sum<4>(state.sum[r]);
        if (seen.last[r] == kNoKey) continue;
        const std::int64_t index =
            work.query_index(params, warp_row + lane / 4 + r * 8, params.out_stride, D);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            store_pair(
                params,
                index + n * 8 + lane % 4 * 2,
                attention_output(acc[n * 4 + 2 * r], sum),
                attention_output(acc[n * 4 + 2 * r + 1], sum)
            );
        }
    }
}

// Stores the warp's rows; if blocks share the tile's keys, stores this block's part of the sums.
template <int D>
__device__ __forceinline__ void store_tile(
    const AttentionParams& params,
    const PrefillTile& work,
    const float (&acc)[D / 2],
    const RowState& state,
    const RowKeys& seen,
    std::int32_t num_parts,
    bool& is_last
) {
    if (num_parts == 1) {
        store_rows<D>(params, work, acc, state, seen);
        return;
    }
    const int warp_row = (warp_index() - kWarpgroup / kWarp) * kRowsPerWarp;
    store_part<D>(params, acc, state, warp_row);
    if (is_last_part(params, num_parts, is_last))
        merge_parts<D>(params, work, num_parts, seen, warp_row);
}

// Run by the two multiplying warpgroups, in turn. Each computes the scores of a tile while the
// values of the previous tile are multiplied; its softmax overlaps that product and two products of
// the other warpgroup.
template <int D>
__device__ __forceinline__ void multiply_tiles(
    const AttentionParams& params,
    const PrefillTile& work,
    const Tiles<D>& tiles,
    Barriers& barriers,
    const std::int32_t* last_keys,  // for this warp's 16 rows
    int warpgroup,                  // which of the two: 0 or 1
    std::int32_t num_parts,
    bool& is_last  // in shared memory
) {
    const std::byte* const queries = tiles.queries + warpgroup * 64 * kPanelRowBytes;
    const std::int32_t tile_begin = work.keys_begin / kTileKeys;
    const std::int32_t num_tiles = num_key_tiles(work);
    const RowKeys seen = row_keys(params, last_keys);
    RowState state{{minus_infinity(), minus_infinity()}, {0.f, 0.f}, {0.f, 0.f}};
    float acc[D / 2];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) acc[i] = 0.f;
    float scores[64];
    std::uint32_t p[8][4];

    // The first tile is outside of the loop: with a condition around the product of the values, the
    // compiler can no longer prove that no product in flight uses a register, and serializes them
    // all.
    barrier_wait(&barriers.keys_full[0], 0);
    wgmma_fence();
    multiply_keys<D>(scores, queries, tiles.keys_of(0));
    wgmma_wait<0>(scores);
    release(&barriers.keys_empty[0]);
    if (warpgroup == 0) give_turn_to(0);
    softmax_tile(scores, state, seen, tile_begin * kTileKeys, params.scale_log2);
    pack_probabilities(p, scores);

    for (std::int32_t n = 1; n < num_tiles; ++n) {
        const int stage = n % kStages;
        const int before = (n - 1) % kStages;
        barrier_wait(&barriers.keys_full[stage], n / kStages % 2);
        wait_for_turn(warpgroup);
        wgmma_fence();
        multiply_keys<D>(scores, queries, tiles.keys_of(stage));
        barrier_wait(&barriers.values_full[before], (n - 1) / kStages % 2);
        wgmma_fence();
        multiply_values<D>(acc, p, tiles.values_of(before));
        give_turn_to(1 - warpgroup);
        wgmma_wait<1>(scores);
        release(&barriers.keys_empty[stage]);
        softmax_tile(scores, state, seen, (tile_begin + n) * kTileKeys, params.scale_log2);
        // Never true. Without a branch on the result ptxas (CUDA 13.0) moves the wait below above
        // the softmax, which then runs after the products of the values
        // (tests/kernels/machine_code.py).
        if (state.sum[0] < 0.f) stand_by();
        wgmma_wait<0>(acc);
        release(&barriers.values_empty[before]);
#pragma unroll
        for (int i = 0; i < D / 2; ++i) acc[i] *= state.factor[i % 4 / 2];
        pack_probabilities(p, scores);
    }
    if (warpgroup == 0) wait_for_turn(0);  // the second warpgroup passed the turn last
    const int final_stage = (num_tiles - 1) % kStages;
    barrier_wait(&barriers.values_full[final_stage], (num_tiles - 1) / kStages % 2);
    wgmma_fence();
    multiply_values<D>(acc, p, tiles.values_of(final_stage));
    wgmma_wait<0>(acc);
    store_tile<D>(params, work, acc, state, seen, num_parts, is_last);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// grid [KV heads, num_prefill_blocks, parts of keys], block [kThreads]; tiles and order as in
// attention_prefill.cu. If there are few tiles, their keys are divided into parts: 64 tokens on 8k
// keys at group 4 and 8 KV heads are 16 tiles of 64 steps for 132 SMs; 5 parts per tile make 80
// blocks of 13 steps. The last block to arrive merges the parts of its tile, 70 KB each from L2.
// This example reads KV at 725 GB/s on an H200, whose copies reach 4,265 GB/s. Without parts it was
// not measured.
//
// Bound by the tensor cores: 4 D flops per (query head, key) pair, 0.55 TFLOP per layer of qwen3-8b
// at 8k. wgmma reads its operands from shared memory once per 64 rows, so exp2 (16 per clock and
// SM, half as long as the products at D = 128) is the second limit: a tile's softmax overlaps the
// other warpgroup's products and this one's product of the previous values. 160 KiB of shared
// memory at D = 128 (queries 32, two stages of keys and of values 32 each): one block per SM.
template <int D>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_wgmma_kernel(const __grid_constant__ AttentionParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = Shape<D>;
    __shared__ Barriers barriers;
    __shared__ TableOfRows rows;
    __shared__ std::int32_t last_keys[kRows];
    __shared__ bool is_last;
    std::byte* const shared = dynamic_shared_memory();
    const Tiles<D> tiles{
        .queries = shared,
        .keys = shared + S::kTileBytes,
        .values = shared + (1 + kStages) * S::kTileBytes};
    const int thread = static_cast<int>(threadIdx.x);
    PrefillTile work = prefill_tile(params, kRows);
    if (work.num_tokens <= 0) return;
    const Part part =
        part_of(work, static_cast<std::int32_t>(blockIdx.z), static_cast<std::int32_t>(gridDim.z));
    if (part.keys_begin >= part.keys_end) return;
    work.keys_begin = part.keys_begin;
    work.keys_end = part.keys_end;
    if (thread < kRows) last_keys[thread] = work.last_key(params, thread);
    if (thread == 0) {
        for (int stage = 0; stage < kStages; ++stage) {
            barrier_init(&barriers.keys_full[stage], kWarpgroup);
            barrier_init(&barriers.values_full[stage], kWarpgroup);
            barrier_init(&barriers.keys_empty[stage], kMultiplyWarps);
            barrier_init(&barriers.values_empty[stage], kMultiplyWarps);
        }
        fence_async_proxy();
    }
    __syncthreads();
    if (thread < kWarpgroup) {
        give_registers<kCopyRegisters>();
        copy_tiles(params, work, tiles, barriers, rows);
    } else {
        take_registers<kMultiplyRegisters>();
        multiply_tiles(
            params,
            work,
            tiles,
            barriers,
            last_keys + (thread - kWarpgroup) / kWarp * kRowsPerWarp,
            thread / kWarpgroup - 1,
            part.num,
            is_last
        );
    }
#else
    __trap();  // built for sm_90 without wgmma, which cmake/cuda.cmake refuses
#endif
}

template <int D>
void run(const AttentionParams& params, Stream stream) {
    const std::int64_t num_blocks =
        num_prefill_blocks(params.num_tokens, params.num_rows, kRows / params.group);
    CHECK(num_blocks <= 65535);
    const std::int64_t num_tiles = params.num_kv_heads * num_blocks;
    const std::int64_t num_parts = num_tiles > AttentionArgs::kArrivals
                                       ? 1
                                       : prefill_parts_max(num_tiles, params.num_prefill_blocks);
    launch<prefill_wgmma_kernel<D>>(
        {.grid = dim3(
             narrow<unsigned>(params.num_kv_heads),
             narrow<unsigned>(num_blocks),
             narrow<unsigned>(num_parts)
         ),
         .block = dim3(kThreads),
         .shared_bytes = Shape<D>::kSharedBytes,
         .stream = stream},
        params
    );
}

}  // namespace

void attention_prefill_wgmma_cuda(const AttentionParams& params, Stream stream) {
    params.head_dim == 128 ? run<128>(params, stream) : run<64>(params, stream);
}

}  // namespace pitstop::kernels
