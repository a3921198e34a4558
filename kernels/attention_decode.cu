#include "kernels/device/attention_rows.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/shared_memory.cuh"

#include <algorithm>

namespace pitstop::kernels {
namespace {

// A slot of the ring holds 16 keys or values; a tile of 64 keys is eight slots, keys first.
constexpr int kSlotKeys = 16;
constexpr int kSlotsPerTile = 2 * kKeysPerTile / kSlotKeys;
constexpr int kSlots = 8;

template <int D>
constexpr int slot_bytes() {
    return kSlotKeys * D * 2;
}

// Says where a segment's results are in the workspace: for each (row, KV head, segment) `group`
// rows of D sums, and after all of those a (maximum, sum of weights) for each.
struct SegmentPlace {
    float* acc;      // [group, D]
    float* weights;  // [group, 2]
};
__device__ SegmentPlace segment_place(
    const AttentionParams& params, std::int64_t r, std::int32_t kv_head, std::int32_t segment
) {
    const std::int64_t num =
        std::int64_t{params.num_rows} * params.num_kv_heads * params.num_segments;
    const std::int64_t index = (r * params.num_kv_heads + kv_head) * params.num_segments + segment;
    return {
        params.segments + index * params.group * params.head_dim,
        params.segments + num * params.group * params.head_dim + index * params.group * 2};
}

// Holds the segments that a row of kv_len keys has something in: [begin, end).
struct SegmentRange {
    std::int32_t begin;
    std::int32_t end;
};
__device__ SegmentRange segments_of(const AttentionParams& params, std::int32_t kv_len) {
    return {
        first_key(kv_len - 1, params.window) / params.segment_keys,
        (kv_len + params.segment_keys - 1) / params.segment_keys};
}

// Streams the keys and values of one segment through the warp's ring.
template <int D>
struct Ring {
    static constexpr int kChunks = D / kChunkElements;
    static constexpr int kKeysPerPass = kWarp / kChunks;  // 2 or 4

    const AttentionParams& params;
    const BatchRow& row;
    std::int32_t kv_head;
    std::int32_t keys_begin;  // what may be read of this segment
    std::int32_t keys_end;
    std::byte* slots;
    // These are the KV rows of keys `lane` and `lane + 32` of the tile whose slots are being
    // filled, and of the tile after it, looked up half a tile ahead of their use.
    std::int32_t rows[2];
    std::int32_t next_rows[2];

    __device__ void look_up(std::int32_t tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            next_rows[i] = key_row(
                params,
                row,
                kv_head,
                tile * kKeysPerTile + lane_index() + i * kWarp,
                keys_begin,
                keys_end
            );
        }
    }

    // Starts filling slot `number` of the segment, counted from tile first_tile.
    __device__ void fill(int number, std::int32_t first_tile) {
        const int part = number % kSlotsPerTile;
        const bool is_value = part >= kSlotsPerTile / 2;
        if (part == 0) {
            rows[0] = next_rows[0];
            rows[1] = next_rows[1];
        }
        if (part == kSlotsPerTile / 2) look_up(first_tile + number / kSlotsPerTile + 1);
        std::byte* const slot = slots + number % kSlots * slot_bytes<D>();
        const int first = part % (kSlotsPerTile / 2) * kSlotKeys;  // of the tile's keys
        const std::int32_t own_row = first < kWarp ? rows[0] : rows[1];
#pragma unroll
        for (int j = 0; j < kSlotKeys / kKeysPerPass; ++j) {
            const int key = lane_index() / kChunks + j * kKeysPerPass;
            const std::int32_t kv_row = __shfl_sync(kAllLanes, own_row, first % kWarp + key);
            copy_kv_chunk<D>(
                slot,
                key,
                lane_index() % kChunks,
                params,
                kv_row == kNoRow || !is_value ? kv_row : kv_row + params.value_rows
            );
        }
    }
};

// grid [segments (or fewer), KV heads, R], block [one warp]; a warp owns segments blockIdx.x,
// + gridDim.x, ... of one (row, KV head): the group's query heads are the rows of its mma, padded
// to 16. A warp waits for nobody.
//
// Memory-bound: 4 D bytes per key and KV head; 64 rows of 4096 keys, K = 8, D = 128: 1.07 GB per
// layer, 250 us at 4.3 TB/s. 28 KiB in flight per warp, 6 warps per SM by shared memory: 168 KiB,
// six times what is needed. Tensor cores at 16 FLOP per byte: 69 TFLOP/s, 11 % of what mma.sync
// can. The results of a segment of 256 keys are 2 % of the bytes of its keys and values at group 4.
template <int D>
__global__ void __launch_bounds__(kWarp)
    decode_kernel(const __grid_constant__ AttentionParams params) {
    const std::int64_t r = blockIdx.z;
    const auto kv_head = static_cast<std::int32_t>(blockIdx.y);
    const BatchRow row = batch_row(params, static_cast<std::int32_t>(r));
    if (row.q_len != 1) return;
    const SegmentRange range = segments_of(params, row.kv_len);
    const std::int32_t keys_first = first_key(row.kv_len - 1, params.window);
    const int lane = lane_index();
    const int group = params.group;

    // Queries stay in registers: row g of the mma is head g of the group, zero past it.
    std::uint32_t q[D / 16][4];
    const auto* const q_row = static_cast<const bf16*>(params.q) +
                              head_index(row.q_begin, params.q_stride, kv_head * group, D);
#pragma unroll
    for (int k16 = 0; k16 < D / 16; ++k16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int head = lane / 4 + i % 2 * 8;
            const int column = k16 * 16 + lane % 4 * 2 + i / 2 * 8;
            q[k16][i] = head < group
                            ? *reinterpret_cast<const std::uint32_t*>(q_row + head * D + column)
                            : 0;
        }
    }

    Ring<D> ring{params, row, kv_head, 0, 0, dynamic_shared_memory(), {}, {}};
    const std::int32_t segment_begin =
        range.begin + (static_cast<std::int32_t>(blockIdx.x) -
                       range.begin % static_cast<std::int32_t>(gridDim.x) +
                       static_cast<std::int32_t>(gridDim.x)) %
                          static_cast<std::int32_t>(gridDim.x);
    for (std::int32_t segment = segment_begin; segment < range.end;
         segment += static_cast<std::int32_t>(gridDim.x)) {
        ring.keys_begin = max(keys_first, segment * params.segment_keys);
        ring.keys_end = min(row.kv_len, (segment + 1) * params.segment_keys);
        const std::int32_t tile_begin = ring.keys_begin / kKeysPerTile;
        const std::int32_t tile_end = (ring.keys_end + kKeysPerTile - 1) / kKeysPerTile;
        const int num_slots = (tile_end - tile_begin) * kSlotsPerTile;
        const std::int32_t first[2] = {ring.keys_begin, ring.keys_begin};
        const std::int32_t last[2] = {ring.keys_end - 1, ring.keys_end - 1};

        ring.look_up(tile_begin);
        for (int s = 0; s < kSlots - 1; ++s) {
            if (s < num_slots) ring.fill(s, tile_begin);
            commit_copies();
        }
        AttentionState<D> state;
        state.clear();
        // Gives the next slot's contents, after starting to fill the one that was read before it.
        int slot = 0;
        const auto next_slot = [&]() -> const std::byte* {
            wait_copies<kSlots - 2>();
            __syncwarp();  // this slot is there for all lanes, and all are done with the last one
            if (slot + kSlots - 1 < num_slots) ring.fill(slot + kSlots - 1, tile_begin);
            commit_copies();
            return ring.slots + slot++ % kSlots * slot_bytes<D>();
        };
        for (std::int32_t tile = tile_begin; tile < tile_end; ++tile) {
            float scores[kScoreTiles][4] = {};
#pragma unroll
            for (int n = 0; n < kScoreTiles; n += 2) {
                const std::byte* const keys = next_slot();
#pragma unroll
                for (int k16 = 0; k16 < D / 16; ++k16)
                    add_scores<D>(scores[n], scores[n + 1], q[k16], keys, 0, k16);
            }
            const std::int32_t begin = tile * kKeysPerTile;
            if (begin < first[0] || begin + kKeysPerTile - 1 > last[0])
                mask_scores(scores, begin, first, last);
            softmax_step(state, scores, params.scale_log2);
#pragma unroll
            for (int n = 0; n < kScoreTiles; n += 2)
                add_values(state, scores[n], scores[n + 1], next_slot(), 0);
        }
        __syncwarp();  // the next segment refills slots that other lanes may still read
        sum_over_row(state);

        if (range.end - range.begin == 1) {
            AttentionState<D> total;
            total.clear();
            merge_segment(
                total, state, params.scale_log2
            );  // as the others', sign of zero included
            state = total;
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int head = lane / 4 + e * 8;
            if (head >= group) continue;
            if (range.end - range.begin == 1) {
                const std::int64_t index =
                    head_index(row.q_begin, params.out_stride, kv_head * group + head, D);
#pragma unroll
                for (int n = 0; n < D / 8; ++n) {
                    store_pair(
                        params,
                        index + n * 8 + lane % 4 * 2,
                        attention_output(state.acc[n][2 * e], state.sum[e]),
                        attention_output(state.acc[n][2 * e + 1], state.sum[e])
                    );
                }
            } else {
                const SegmentPlace place = segment_place(params, r, kv_head, segment);
#pragma unroll
                for (int n = 0; n < D / 8; ++n) {
                    *reinterpret_cast<float2*>(place.acc + head * D + n * 8 + lane % 4 * 2) =
                        make_float2(state.acc[n][2 * e], state.acc[n][2 * e + 1]);
                }
                if (lane % 4 == 0) {
                    place.weights[head * 2] = state.max[e];
                    place.weights[head * 2 + 1] = state.sum[e];
                }
            }
        }
    }
}

constexpr int kSegmentsAhead = 8;

// grid [Q, R], block [D]; a thread owns a dimension of one head's output and merges the segments in
// ascending order. From L2, 4 (D + 2) bytes per segment: latency, which one request of 4k tokens
// would meet 64 times, so that eight segments are loaded before the first of them is merged.
template <int D>
__global__ void __launch_bounds__(D)
    combine_kernel(const __grid_constant__ AttentionParams params) {
    const std::int64_t r = blockIdx.y;
    const auto q_head = static_cast<std::int32_t>(blockIdx.x);
    const BatchRow row = batch_row(params, static_cast<std::int32_t>(r));
    if (row.q_len != 1) return;
    const SegmentRange range = segments_of(params, row.kv_len);
    if (range.end - range.begin == 1) return;  // decode wrote the output
    const int head = q_head % params.group;
    const int d = static_cast<int>(threadIdx.x);
    float max = minus_infinity();
    float sum = 0.f;
    float acc = 0.f;
    struct Loaded {
        float2 weights;  // maximum, sum
        float acc;
    };
    const auto load = [&](std::int32_t segment) -> Loaded {
        const SegmentPlace place = segment_place(params, r, q_head / params.group, segment);
        return {
            *reinterpret_cast<const float2*>(place.weights + head * 2), place.acc[head * D + d]};
    };
    const auto merge = [&](const Loaded& segment) {
        const MergeFactors factors = merge_factors(max, segment.weights.x, params.scale_log2);
        max = factors.max;
        sum = merged(sum, segment.weights.y, factors);
        acc = merged(acc, segment.acc, factors);
    };
    std::int32_t segment = range.begin;
    for (; segment + kSegmentsAhead <= range.end; segment += kSegmentsAhead) {
        Loaded loaded[kSegmentsAhead];
#pragma unroll
        for (int i = 0; i < kSegmentsAhead; ++i) loaded[i] = load(segment + i);
        __syncwarp();  // no load may sink below it
#pragma unroll
        for (int i = 0; i < kSegmentsAhead; ++i) merge(loaded[i]);
    }
    for (; segment < range.end; ++segment) merge(load(segment));
    const std::int64_t index = head_index(row.q_begin, params.out_stride, q_head, D) + d;
    const float out = attention_output(acc, sum);
    if (params.out_dtype == DType::kBF16) {
        store_float(static_cast<bf16*>(params.out) + index, out);
    } else {
        store_float(static_cast<float*>(params.out) + index, out);
    }
}

template <int D>
void run(const AttentionParams& params, Stream stream) {
    const std::int64_t num_pairs = std::int64_t{params.num_rows} * params.num_kv_heads;
    // No more blocks than can be of use: each takes several segments where there are many rows.
    const std::int64_t blocks_per_pair = std::clamp<std::int64_t>(
        ceil_div(2 * kDecodeWarpsWanted, num_pairs), 1, params.num_segments
    );
    CHECK(params.num_rows <= 65535 && params.num_kv_heads <= 65535);
    const auto R = narrow<unsigned>(params.num_rows);
    launch<decode_kernel<D>>(
        {.grid = dim3(narrow<unsigned>(blocks_per_pair), narrow<unsigned>(params.num_kv_heads), R),
         .block = dim3(kWarp),
         .shared_bytes = kSlots * slot_bytes<D>(),
         .stream = stream},
        params
    );
    if (params.num_segments == 1) return;
    launch<combine_kernel<D>>(
        {.grid = dim3(narrow<unsigned>(params.num_kv_heads * params.group), R),
         .block = dim3(D),
         .stream = stream},
        params
    );
}

}  // namespace

void attention_decode_cuda(const AttentionParams& params, Stream stream) {
    params.head_dim == 128 ? run<128>(params, stream) : run<64>(params, stream);
}

}  // namespace pitstop::kernels
