// The records of decode's blocks: how one is stored and loaded, and how all of a pair are merged in
// free order. For blocks of one warp.
#pragma once

#include "kernels/device/attention_rows.cuh"
#include "kernels/device/decode_work.cuh"

namespace pitstop::kernels {

template <int D>
constexpr int head_floats() {
    return static_cast<int>(decode_record_floats(1, D));
}

template <int D>
__device__ float* record_at(const AttentionParams& params, std::int64_t number) {
    return params.records + number * decode_record_floats(params.group, D);
}

template <int D>
__device__ void store_record(const AttentionState<D>& state, float* record, int group) {
    const int lane = lane_index();
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int head = lane / 4 + e * 8;
        if (head >= group) continue;
        float* const to = record + head * head_floats<D>();
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            *reinterpret_cast<float2*>(to + n * 8 + lane % 4 * 2) =
                make_float2(state.acc[n][2 * e], state.acc[n][2 * e + 1]);
        }
        if (lane % 4 == 0)
            *reinterpret_cast<float2*>(to + D) = make_float2(state.max[e], state.sum[e]);
    }
}

// Heads beyond the group's are not written.
template <int D>
__device__ void load_record(AttentionState<D>& state, const float* record, int group) {
    const int lane = lane_index();
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int head = lane / 4 + e * 8;
        if (head >= group) continue;
        const float* const from = record + head * head_floats<D>();
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            const float2 pair = *reinterpret_cast<const float2*>(from + n * 8 + lane % 4 * 2);
            state.acc[n][2 * e] = pair.x;
            state.acc[n][2 * e + 1] = pair.y;
        }
        const float2 weights = *reinterpret_cast<const float2*>(from + D);
        state.max[e] = weights.x;
        state.sum[e] = weights.y;
    }
}

// Stores the two neighbouring elements of a head's output that a record has at `column`.
template <int D>
__device__ void store_output(
    const AttentionParams& params,
    const BatchRow& row,
    int q_head,
    int column,
    float low,
    float high,
    float sum
) {
    store_pair(
        params,
        head_index(row.q_begin, params.out_stride, q_head, D) + column,
        attention_output(low, sum),
        attention_output(high, sum)
    );
}

// A lane's columns of a head in a record.
template <int D>
struct Columns;
template <>
struct Columns<128> {
    using Pack = float4;
    __device__ static void add(float (&sums)[4], const Pack& pack, float weight) {
        sums[0] = fmaf(pack.x, weight, sums[0]);
        sums[1] = fmaf(pack.y, weight, sums[1]);
        sums[2] = fmaf(pack.z, weight, sums[2]);
        sums[3] = fmaf(pack.w, weight, sums[3]);
    }
};
template <>
struct Columns<64> {
    using Pack = float2;
    __device__ static void add(float (&sums)[2], const Pack& pack, float weight) {
        sums[0] = fmaf(pack.x, weight, sums[0]);
        sums[1] = fmaf(pack.y, weight, sums[1]);
    }
};

// Stores a lane's columns of merged heads.
template <int D, int kHeads>
__device__ void store_heads(
    const AttentionParams& params,
    const Run& run,
    int first_head,
    const float (&sums)[kHeads][D / kWarp],
    const float (&sum)[kHeads]
) {
    constexpr int kColumns = D / kWarp;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
        const int q_head = run.kv_head * params.group + first_head + h;
#pragma unroll
        for (int c = 0; c < kColumns; c += 2) {
            const int column = lane_index() * kColumns + c;
            store_output<D>(params, run.row, q_head, column, sums[h][c], sums[h][c + 1], sum[h]);
        }
    }
}

// In free order, merges all records of a pair, for kHeads heads from `first_head` on: the first,
// then 32 at a time. Each lane computes the weights of one record, and all lanes add columns.
// kHeads * kBatch reads of 512 bytes are in flight: a request of 8k keys has 64 records of 2 KiB
// per KV head at group 4. Reads past the last record read the last record again, with a weight of
// 0.
template <int D, int kHeads>
__device__ void merge_heads(const AttentionParams& params, const Run& run, int first_head) {
    constexpr int kBatch = 8;
    constexpr int kColumns = D / kWarp;
    using Pack = typename Columns<D>::Pack;
    const int lane = lane_index();
    const int record_floats = params.group * head_floats<D>();
    const int offset = first_head * head_floats<D>();
    const float* const before = record_at<D>(params, run.place.first_block) + offset;
    const float* const others = record_at<D>(params, run.place.second_record) + offset;
    // the number of `others`, at least one
    const auto num = static_cast<std::int32_t>(run.place.num_records - 1);
    float max_score[kHeads] = {};
    float sum[kHeads] = {};
    float sums[kHeads][kColumns] = {};
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
        const float* const head = before + h * head_floats<D>();
        const float2 weights = read_record<float2>(head + D);
        max_score[h] = weights.x;
        sum[h] = weights.y;
        Columns<D>::add(sums[h], read_record<Pack>(head + lane * kColumns), 1.f);
    }
    for (std::int32_t first = 0; first < num; first += kWarp) {
        float2 own[kHeads];  // maximum and sum of record first + lane
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
            own[h] = make_float2(minus_infinity(), 0.f);
            if (first + lane < num) {
                own[h] = read_record<float2>(
                    others + std::int64_t{first + lane} * record_floats + h * head_floats<D>() + D
                );
            }
        }
        float weight[kHeads];
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
            const float new_max = fmaxf(max_score[h], warp_max(own[h].x));
            const float factor = rescale_factor(max_score[h], new_max, params.scale_log2);
            weight[h] = rescale_factor(own[h].x, new_max, params.scale_log2);
            sum[h] = fmaf(sum[h], factor, warp_sum(own[h].y * weight[h]));
            max_score[h] = new_max;
#pragma unroll
            for (int c = 0; c < kColumns; ++c) sums[h][c] *= factor;
        }
        for (int begin = 0; begin < kWarp && first + begin < num; begin += kBatch) {
            Pack packs[kBatch][kHeads];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const std::int32_t index = min(first + begin + i, num - 1);
                const float* const record =
                    others + std::int64_t{index} * record_floats + lane * kColumns;
#pragma unroll
                for (int h = 0; h < kHeads; ++h)
                    packs[i][h] = read_record<Pack>(record + h * head_floats<D>());
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
#pragma unroll
                for (int h = 0; h < kHeads; ++h) {
                    const float its_weight = __shfl_sync(kAllLanes, weight[h], begin + i);
                    Columns<D>::add(sums[h], packs[i][h], its_weight);
                }
            }
        }
    }
    store_heads<D>(params, run, first_head, sums, sum);
}

template <int D>
__device__ void merge_in_free_order(const AttentionParams& params, const Run& run) {
    const int in_fours = params.group / 4 * 4;
    for (int head = 0; head < in_fours; head += 4) merge_heads<D, 4>(params, run, head);
    const int rest = params.group - in_fours;
    if (rest >= 2) merge_heads<D, 2>(params, run, in_fours);
    if (rest % 2 == 1) merge_heads<D, 1>(params, run, params.group - 1);
}

}  // namespace pitstop::kernels
