#include "kernels/device/attention_rows.cuh"
#include "kernels/device/decode_records.cuh"
#include "kernels/device/decode_work.cuh"
#include "kernels/device/dependent_launch.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

// A slot of the ring has 16 keys or values; a tile of 64 keys is eight slots, keys first.
constexpr int kSlotKeys = 16;
constexpr int kSlotsPerTile = 2 * kKeysPerTile / kSlotKeys;
constexpr int kSlots = 8;
constexpr int kTilesPerSegment = AttentionArgs::kSegmentKeys / kKeysPerTile;
static_assert(AttentionArgs::kBlockKeys == kKeysPerTile);

template <int D>
constexpr int slot_bytes() {
    return kSlotKeys * D * 2;
}

// ---- a run ----

// Streams the keys and values of a run through the warp's ring.
template <int D>
struct Ring {
    static constexpr int kChunks = D / kChunkElements;
    static constexpr int kKeysPerPass = kWarp / kChunks;  // 2 or 4

    const AttentionParams& params;
    const Run& run;
    std::byte* slots;
    std::int32_t first_tile;
    int num_slots;
    int slot;  // the next slot to read
    // The KV rows of the keys `lane` and `lane + 32` of a tile. `rows` is for the tile whose slots
    // are being filled, `next_rows` for the next tile. The lookup is half a tile ahead of the use.
    std::int32_t rows[2];
    std::int32_t next_rows[2];

    __device__ void look_up(std::int32_t tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            next_rows[i] = key_row(
                params,
                run.row,
                run.kv_head,
                tile * kKeysPerTile + lane_index() + i * kWarp,
                run.keys_begin,
                run.keys_end
            );
        }
    }

    // Starts filling slot `number` of the run, if there is one.
    __device__ void fill(int number) {
        if (number < num_slots) {
            const int part = number % kSlotsPerTile;
            if (part == 0) {
                rows[0] = next_rows[0];
                rows[1] = next_rows[1];
            }
            if (part == kSlotsPerTile / 2) {
#pragma unroll
                for (int i = 0; i < 2; ++i) rows[i] += rows[i] == kNoRow ? 0 : params.value_rows;
                look_up(first_tile + number / kSlotsPerTile + 1);
            }
            // the first of the slot's keys in the tile
            const int first = part % (kSlotsPerTile / 2) * kSlotKeys;
            copy_rows(
                slots + number % kSlots * slot_bytes<D>(),
                first < kWarp ? rows[0] : rows[1],
                first % kWarp
            );
        }
        commit_copies();
    }

    // Copies kSlotKeys rows of KV memory; the lanes from `first_lane` on have the row numbers,
    // which are exchanged before the first copy: the compiler reorders no volatile instructions.
    __device__ void copy_rows(std::byte* to, std::int32_t own_row, int first_lane) const {
        constexpr int kPasses = kSlotKeys / kKeysPerPass;
        constexpr int kPeriod = 8;  // rows after which the swizzle repeats
        static_assert(kPeriod % kKeysPerPass == 0);
        const int key = lane_index() / kChunks;
        const int chunk = lane_index() % kChunks;
        std::int32_t kv_rows[kPasses];
#pragma unroll
        for (int j = 0; j < kPasses; ++j)
            kv_rows[j] = __shfl_sync(kAllLanes, own_row, first_lane + key + j * kKeysPerPass);
        const bf16* const column = static_cast<const bf16*>(params.kv) + chunk * kChunkElements;
#pragma unroll
        for (int j = 0; j < kPasses; ++j) {
            // swizzled(key + j * kKeysPerPass, chunk): the two terms share no bits
            const int place =
                swizzled<kChunks>(key, chunk) ^ (j * kKeysPerPass % kPeriod * kChunkBytes);
            copy16_async(
                to + place + j * kKeysPerPass * D * 2,
                column + std::int64_t{max(kv_rows[j], 0)} * D,
                kv_rows[j] == kNoRow ? 0 : kChunkBytes
            );
        }
    }

    __device__ void start(std::int32_t tile_begin, std::int32_t tile_end) {
        first_tile = tile_begin;
        num_slots = (tile_end - tile_begin) * kSlotsPerTile;
        slot = 0;
        look_up(tile_begin);
        for (int s = 0; s < kSlots - 1; ++s) fill(s);
    }

    // Returns the next slot's contents, after starting to refill the slot that was read before it.
    __device__ const std::byte* next() {
        wait_copies<kSlots - 2>();
        __syncwarp();  // the slot has arrived for all lanes, and all have read the last slot
        fill(slot + kSlots - 1);
        return slots + slot++ % kSlots * slot_bytes<D>();
    }
};

// Loads the queries into registers: row g of the mma is head g of the group, zero beyond the group.
template <int D>
__device__ void load_queries(
    std::uint32_t (&q)[D / 16][4], const AttentionParams& params, const Run& run
) {
    const int lane = lane_index();
    const auto* const q_row =
        static_cast<const bf16*>(params.q) +
        head_index(run.row.q_begin, params.q_stride, run.kv_head * params.group, D);
#pragma unroll
    for (int k16 = 0; k16 < D / 16; ++k16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int head = lane / 4 + i % 2 * 8;
            const int column = k16 * 16 + lane % 4 * 2 + i / 2 * 8;
            q[k16][i] = head < params.group
                            ? *reinterpret_cast<const std::uint32_t*>(q_row + head * D + column)
                            : 0;
        }
    }
}

// Adds a tile's keys to the state.
template <int D>
__device__ void take_tile(
    AttentionState<D>& state,
    Ring<D>& ring,
    const std::uint32_t (&q)[D / 16][4],
    std::int32_t tile,
    float scale_log2
) {
    float scores[kScoreTiles][4] = {};
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2) {
        const std::byte* const keys = ring.next();
#pragma unroll
        for (int k16 = 0; k16 < D / 16; ++k16)
            add_scores<D>(scores[n], scores[n + 1], q[k16], keys, 0, k16);
    }
    const std::int32_t begin = tile * kKeysPerTile;
    const std::int32_t first[2] = {ring.run.keys_begin, ring.run.keys_begin};
    const std::int32_t last[2] = {ring.run.keys_end - 1, ring.run.keys_end - 1};
    if (begin < first[0] || begin + kKeysPerTile - 1 > last[0])
        mask_scores(scores, begin, first, last);
    softmax_step(state, scores, scale_log2);
#pragma unroll
    for (int n = 0; n < kScoreTiles; n += 2)
        add_values(state, scores[n], scores[n + 1], ring.next(), 0);
}

// Returns true in the last block to arrive among a pair's blocks, when all of the pair's records
// are written. The count is zero again afterwards. A divided pair has the count of its first block:
// no block is the first of two divided pairs.
__device__ bool is_last_to_arrive(const AttentionParams& params, const PairPlace& place) {
    const auto others = static_cast<unsigned>(place.last_block - place.first_block);
    unsigned num_before = 0;
    __syncwarp();  // all lanes have stored
    if (lane_index() == 0) {
        __threadfence();  // orders the warp's stores before its arrival
        num_before = atomicInc(params.arrivals + place.first_block, others);
        __threadfence();  // orders other blocks' stores before the reads below
    }
    num_before = __shfl_sync(kAllLanes, num_before, 0);
    __syncwarp();
    return num_before == others;
}

// In fixed order, merges all records of a pair, ascending. Half of the ring receives the next
// records from L2, 4 (D + 8) bytes per head, while the records in the other half are merged. One
// request of 32k keys over 792 blocks has 86 records of 2 KiB per KV head at
// group 4, in 13 rounds.
template <int D>
__device__ void merge_records(const AttentionParams& params, const Run& run, std::byte* slots) {
    constexpr int kHalfBytes = kSlots / 2 * slot_bytes<D>();
    static_assert(kHalfBytes >= kAttentionGroupMax * head_floats<D>() * 4);
    const int record_floats = params.group * head_floats<D>();
    const int per_half = kHalfBytes / (record_floats * 4);
    const std::int64_t num = run.place.num_records;
    const auto fetch = [&](std::int64_t first, int half) {
        for (int i = 0; i < per_half && first + i < num; ++i) {
            const float* const from = record_at<D>(params, record_of(run.place, first + i));
            std::byte* const to = slots + half * kHalfBytes + i * record_floats * 4;
            for (int chunk = lane_index(); chunk < record_floats / 4; chunk += kWarp)
                copy16_async(to + chunk * 16, from + chunk * 4, 16);
        }
        commit_copies();
    };
    AttentionState<D> total;
    AttentionState<D> state;
    total.clear();
    state.clear();
    fetch(0, 0);
    int half = 0;
    for (std::int64_t first = 0; first < num; first += per_half) {
        fetch(first + per_half, 1 - half);
        wait_copies<1>();
        __syncwarp();  // the other lanes' copies have arrived
        for (int i = 0; i < per_half && first + i < num; ++i) {
            const auto* const record =
                reinterpret_cast<const float*>(slots + half * kHalfBytes) + i * record_floats;
            if (first + i == 0) {
                load_record(total, record, params.group);
            } else {
                load_record(state, record, params.group);
                merge_segment(total, state, params.scale_log2);
            }
        }
        __syncwarp();  // all have read this half, which is refilled next
        half = 1 - half;
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int head = lane_index() / 4 + e * 8;
        if (head >= params.group) continue;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            store_output<D>(
                params,
                run.row,
                run.kv_head * params.group + head,
                n * 8 + lane_index() % 4 * 2,
                total.acc[n][2 * e],
                total.acc[n][2 * e + 1],
                total.sum[e]
            );
        }
    }
}

// Merges a segment into the block's own record, which has the merged segments before this one (none
// before the first). The result is the output, or replaces the record. REQUIRES: the run has the
// pair's first unit, so that no other run precedes it. A lane reads only values that it stored
// itself, except for the maximum and the sum: one of four lanes stores these.
template <int D>
__device__ void fold_into_record(
    const AttentionParams& params,
    const Run& run,
    const AttentionState<D>& state,
    bool is_first,
    bool is_output
) {
    float* const record = record_at<D>(params, static_cast<std::int32_t>(blockIdx.x));
    const int lane = lane_index();
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int head = lane / 4 + e * 8;
        float* const own = record + head * head_floats<D>();
        const bool has_head = head < params.group;
        float2 weights = make_float2(minus_infinity(), 0.f);
        __syncwarp();  // all values have been stored
        if (has_head && !is_first) weights = *reinterpret_cast<const float2*>(own + D);
        __syncwarp();  // all have loaded the values to be overwritten
        if (!has_head) continue;
        const MergeFactors factors = merge_factors(weights.x, state.max[e], params.scale_log2);
        const float sum = merged(weights.y, state.sum[e], factors);
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            const int column = n * 8 + lane % 4 * 2;
            auto* const at = reinterpret_cast<float2*>(own + column);
            const float2 old = is_first ? make_float2(0.f, 0.f) : *at;
            const float low = merged(old.x, state.acc[n][2 * e], factors);
            const float high = merged(old.y, state.acc[n][2 * e + 1], factors);
            if (is_output) {
                const int q_head = run.kv_head * params.group + head;
                store_output<D>(params, run.row, q_head, column, low, high, sum);
            } else {
                *at = make_float2(low, high);
            }
        }
        if (!is_output && lane % 4 == 0)
            *reinterpret_cast<float2*>(own + D) = make_float2(factors.max, sum);
    }
}

template <int D>
__device__ void take_run(
    const AttentionParams& params, const Run& run, std::int64_t carried_per_block
) {
    const auto block = static_cast<std::int32_t>(blockIdx.x);
    std::uint32_t q[D / 16][4];
    load_queries<D>(q, params, run);
    Ring<D> ring{params, run, dynamic_shared_memory(), 0, 0, 0, {}, {}};
    const std::int32_t tile_end = (run.keys_end - 1) / kKeysPerTile + 1;
    std::int32_t tile = run.keys_begin / kKeysPerTile;
    ring.start(tile, tile_end);
    const bool is_alone = run.place.first_block == run.place.last_block;
    std::int64_t carried = first_carried_record(block, carried_per_block, params.num_decode_blocks);
    bool is_first = true;
    while (tile < tile_end) {
        // In free order a run is one online softmax; in fixed order each segment is.
        const std::int32_t end =
            params.order == AttentionOrder::kFree
                ? tile_end
                : min(tile_end, (tile / kTilesPerSegment + 1) * kTilesPerSegment);
        AttentionState<D> state;
        state.clear();
        for (; tile < end; ++tile) take_tile(state, ring, q, tile, params.scale_log2);
        sum_over_row(state);
        if (!run.has_first) {
            store_record(state, record_at<D>(params, carried++), params.group);
            continue;
        }
        const bool is_output = is_alone && tile == tile_end;
        fold_into_record(params, run, state, is_first, is_output);
        is_first = false;
    }
    // The refills of the slots follow a __syncwarp(), here as in next_run().
    if (is_alone || !is_last_to_arrive(params, run.place)) return;
    if (params.order == AttentionOrder::kFree) {
        merge_in_free_order<D>(params, run);
    } else {
        merge_records<D>(params, run, dynamic_shared_memory());
    }
}

// grid [num_decode_blocks], block [one warp], all of them on the GPU at once. Every block owns the
// same number of units, whatever the rows' lengths (attention_index.h), and processes them pair by
// pair: the group's query heads are the rows of its mma, padded to 16. No block waits for another:
// the last block to arrive at a pair that several blocks share merges their records.
//
// Memory-bound: 4 D bytes per key and KV head; 64 rows of 4096 keys, K = 8, D = 128: 1.07 GB per
// layer, 250 us at 4.3 TB/s. A warp has 28 KiB in flight. Shared memory limits an SM to 6 warps:
// 168 KiB, six times the need. The tensor cores compute 16 FLOP per byte: 69 TFLOP/s, 11 % of the
// peak of mma.sync. In free order a block writes at most two records, about 1 % of the bytes of 1k
// rows at group 4. In fixed order each segment of 256 keys has a record, 2 % of the bytes.
//
// The kernel reads nothing before the wait, not even KV of earlier tokens: a row may read pages
// that another row of the same step fills. Today's scheduler plans no such step
// (scheduler_proc/prefix_cache.h), but plans have no rule against it.
template <int D>
__global__ void __launch_bounds__(kWarp)
    decode_kernel(const __grid_constant__ AttentionParams params) {
    __shared__ Work work;
    let_next_kernel_start();
    wait_for_kernel_before();
    if (!begin_work(params, work)) return;
    do {
        next_run(params, work);
        take_run<D>(params, work.run, work.cut.carried_per_block);
    } while (work.units_done < work.units_end);
}

template <int D>
void run(const AttentionParams& params, Stream stream) {
    launch<decode_kernel<D>>(
        {.grid = dim3(narrow<unsigned>(params.num_decode_blocks)),
         .block = dim3(kWarp),
         .shared_bytes = kSlots * slot_bytes<D>(),
         .stream = stream,
         .starts_early = true},
        params
    );
}

}  // namespace

void attention_decode_cuda(const AttentionParams& params, Stream stream) {
    CHECK(params.num_decode_blocks >= 1 && params.num_records >= 2 * params.num_decode_blocks);
    CHECK(params.arrivals != nullptr && is_aligned(params.records, 16));
    params.head_dim == 128 ? run<128>(params, stream) : run<64>(params, stream);
}

}  // namespace pitstop::kernels
