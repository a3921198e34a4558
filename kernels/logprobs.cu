#include "kernels/logprobs.h"

#include "kernels/device/numbers.cuh"
#include "kernels/device/ordered.h"
#include "kernels/device/reduce.cuh"
#include "kernels/runtime/launch.cuh"

namespace pitstop::kernels {
namespace {

// ---- softmax_stats ----

constexpr int kThreads = 256;
constexpr int kVocabBlock = static_cast<int>(SoftmaxStatsArgs::kVocabBlock);
constexpr int kPacks = kVocabBlock / (kThreads * 4);  // float4s of a thread
constexpr int kMergeThreads = 128;

__device__ float negative_infinity() { return __uint_as_float(0xff800000u); }

// Loads logits 4p .. 4p+3 of a block of kVocabBlock; -inf past the end.
template <bool kIsAligned>
__device__ void load_logits(const float* from, int p, int num, float (&to)[4]) {
    if (kIsAligned && p * 4 + 4 <= num) {
        load_floats(from + p * 4, to);
        return;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) to[k] = p * 4 + k < num ? from[p * 4 + k] : negative_infinity();
}

// grid [blocks of kVocabBlock ids, R], block [kThreads]; a block owns a part of a row, in registers
// between the two sums. Memory-bound: 4 bytes in per logit; 64 rows of 152k: 39 MB, 9 us at 4.3
// TB/s. Only V_rank sets the order of a sum (P6): per thread ascending, then the block's tree.
template <bool kIsAligned>  // rows 16-byte aligned
__global__ void __launch_bounds__(kThreads) softmax_part_kernel(
    const float* __restrict__ logits,  // [R, V_rank]
    std::int64_t stride,
    std::int64_t num_ids,                 // V_rank
    const SoftmaxRow* __restrict__ rows,  // [R]
    SoftmaxStats* __restrict__ parts      // [R, gridDim.x]
) {
    const std::int64_t r = blockIdx.y;
    const std::int64_t begin = std::int64_t{blockIdx.x} * kVocabBlock;
    const int num = static_cast<int>(min(std::int64_t{kVocabBlock}, num_ids - begin));
    const float* const from = logits + r * stride + begin;
    const SoftmaxRow row = rows[r];
    const float inverse = __fdiv_rn(1.f, row.temperature);
    float x[kPacks][4];
    float max = negative_infinity();
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
        load_logits<kIsAligned>(from, static_cast<int>(threadIdx.x) + j * kThreads, num, x[j]);
    }
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            x[j][k] *= inverse;
            if (!(x[j][k] >= row.kept_min)) x[j][k] = negative_infinity();  // NaN too
            max = fmaxf(max, x[j][k]);
        }
    }
    max = block_max<kThreads>(max);
    float sum = 0.f;
    if (max != negative_infinity()) {
#pragma unroll
        for (int j = 0; j < kPacks; ++j) {
#pragma unroll
            for (int k = 0; k < 4; ++k) sum += expf(x[j][k] - max);
        }
    }
    sum = block_sum<kThreads>(sum);
    if (threadIdx.x == 0) parts[r * gridDim.x + blockIdx.x] = {.max = max, .sum = double{sum}};
}

// grid [ceil(R / 4)], block [kMergeThreads]; a warp owns a row: lane l adds parts l, l + 32, ...
// ascending, then the butterfly. Latency-bound: 37 parts of 16 bytes per row of 152k.
__global__ void __launch_bounds__(kMergeThreads) softmax_merge_kernel(
    const SoftmaxStats* __restrict__ parts,  // [R, num_parts]
    int num_parts,
    SoftmaxStats* __restrict__ stats,  // [R]
    std::int64_t num_rows
) {
    const std::int64_t r = std::int64_t{blockIdx.x} * (kMergeThreads / kWarp) + warp_index();
    if (r >= num_rows) return;
    const SoftmaxStats* const row_parts = parts + r * num_parts;
    float max = negative_infinity();
    for (int i = lane_index(); i < num_parts; i += kWarp) max = fmaxf(max, row_parts[i].max);
    max = warp_max(max);
    double sum = 0.0;
    for (int i = lane_index(); i < num_parts; i += kWarp) {
        const SoftmaxStats part = row_parts[i];
        if (part.max == max) {
            sum += part.sum;  // even if both are infinite
        } else if (part.sum != 0.0) {
            sum += part.sum * exp(double{part.max} - double{max});
        }
    }
    sum = warp_sum(sum);
    if (lane_index() == 0) stats[r] = {.max = max, .sum = sum};
}

// ---- pick_logits ----

// grid [ceil(num_picks / kThreads)], block [kThreads]; a thread owns a pick. Latency-bound.
__global__ void __launch_bounds__(kThreads) pick_logits_kernel(
    const float* __restrict__ logits,
    std::int64_t stride,
    std::int64_t num_ids,
    std::int64_t vocab_begin,
    const LogitPick* __restrict__ picks,  // [num_picks]
    std::int64_t num_picks,
    float* __restrict__ values  // [num_picks]
) {
    const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= num_picks) return;
    const LogitPick pick = picks[i];
    const std::int64_t index = std::int64_t{raw(pick.id)} - vocab_begin;
    const bool is_here = index >= 0 && index < num_ids;
    values[i] = is_here ? logits[pick.row * stride + index] : negative_infinity();
}

// ---- count_before ----

constexpr int kCountThreads = 1024;

// grid [num_picks], block [kCountThreads]; a block owns a pick. Memory-bound: 4 bytes in per logit,
// which softmax_stats has just read, so mostly from L2. A step of few rows has few blocks: their
// width and the loads in flight set the speed. A count has no order (P6).
__global__ void __launch_bounds__(kCountThreads) count_before_kernel(
    const float* __restrict__ logits,  // [R, V_rank]
    std::int64_t stride,
    std::int64_t num_ids,
    std::int64_t vocab_begin,
    const LogitPick* __restrict__ picks,  // [num_picks]
    const float* __restrict__ values,     // [num_picks]
    std::int32_t* __restrict__ counts     // [num_picks]
) {
    const LogitPick pick = picks[blockIdx.x];
    const float value = values[blockIdx.x];
    const float* const from = logits + pick.row * stride;
    const std::int64_t index = std::int64_t{raw(pick.id)} - vocab_begin;
    std::int32_t count = 0;
#pragma unroll 8
    for (std::int64_t i = threadIdx.x; i < num_ids; i += kCountThreads) {
        const float logit = from[i];
        count += logit > value || (logit == value && i < index) ? 1 : 0;
    }
    count = block_sum<kCountThreads>(count);
    if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// ---- top_logits ----

constexpr int kTopThreads = 1024;
constexpr int kTopWarps = kTopThreads / kWarp;
constexpr int kTopMax = static_cast<int>(TopLogitsArgs::kTopMax);
constexpr int kDigits = 256;

// NaN counts as -inf; -0 and 0 are one value.
__device__ std::uint32_t top_image(float logit) {
    return ordered_image(isnan(logit) ? negative_infinity() : logit + 0.f);
}

struct TopShared {
    std::uint32_t histogram[kDigits];
    std::uint32_t prefix;  // the known bits of the n-th largest image
    std::uint32_t wanted;  // how many of those with the prefix are still wanted
    std::uint32_t num_found;
    std::uint32_t num_ties[kTopWarps];  // images equal to the n-th, in a warp's part of the row
    unsigned long long found[kTopMax];  // image in the upper half, ~id in the lower
};

// One warp finds the digit of the wanted-th largest: lane l looks at digits 8l .. 8l+7.
__device__ void find_digit(TopShared& shared, int shift) {
    const int lane = lane_index();
    // read before the shuffles: one lane changes it after
    const std::uint32_t wanted = shared.wanted;
    std::uint32_t counts[8];
    std::uint32_t sum = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += counts[k] = shared.histogram[lane * 8 + k];
    std::uint32_t above = sum;  // in this lane's digits and all above, then only in those above
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
        const std::uint32_t other = __shfl_down_sync(kAllLanes, above, offset);
        if (lane + offset < kWarp) above += other;
    }
    above -= sum;
    if (above < wanted && above + sum >= wanted) {
#pragma unroll
        for (int k = 7; k >= 0; --k) {
            if (above + counts[k] >= wanted) {
                shared.prefix |= static_cast<std::uint32_t>(lane * 8 + k) << shift;
                shared.wanted = wanted - above;
                break;
            }
            above += counts[k];
        }
    }
}

// The n-th largest image of a row. `num_ties` of the images equal to it are among the n largest.
struct NthImage {
    std::uint32_t image;
    std::uint32_t num_ties;  // at least 1: the n-th itself
};

// Four passes of a radix select, with a digit of 8 bits each. The whole block calls it.
__device__ __forceinline__ NthImage
find_nth(TopShared& shared, const float* from, std::int64_t num_ids, int n) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
        shared.prefix = 0;
        shared.wanted = static_cast<std::uint32_t>(n);
        shared.num_found = 0;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (thread < kDigits) shared.histogram[thread] = 0;
        __syncthreads();
        const std::uint32_t prefix = shared.prefix;
        const std::uint32_t known = shift == 24 ? 0 : ~0u << (shift + 8);
        for (std::int64_t i = thread; i < num_ids; i += kTopThreads) {
            const std::uint32_t image = top_image(from[i]);
            if ((image & known) == prefix)
                atomicAdd(&shared.histogram[image >> shift & (kDigits - 1)], 1u);
        }
        __syncthreads();
        if (warp_index() == 0) find_digit(shared, shift);
        __syncthreads();
    }
    return {shared.prefix, shared.wanted};
}

// Puts the n largest into shared.found, in no order, and fills the rest with 0. Among ties, the
// lower ids come first: warps own ascending parts of the row, and each counts the ties of its part
// first, so that later warps know how many precede theirs.
__device__ __forceinline__ void collect_top(
    TopShared& shared, const float* from, std::int64_t num_ids, NthImage nth
) {
    const std::int64_t part = (num_ids + kTopWarps - 1) / kTopWarps;
    const std::int64_t begin = warp_index() * part;
    const std::int64_t end = min(begin + part, num_ids);
    std::uint32_t num_ties = 0;
    for (std::int64_t i = begin + lane_index(); i < end; i += kWarp)
        num_ties += top_image(from[i]) == nth.image ? 1 : 0;
    num_ties = warp_sum(num_ties);
    if (lane_index() == 0) shared.num_ties[warp_index()] = num_ties;
    shared.found[threadIdx.x] = 0;
    __syncthreads();
    std::uint32_t ties_before = 0;
    for (int warp = 0; warp < warp_index(); ++warp) ties_before += shared.num_ties[warp];
    for (std::int64_t base = begin; base < end; base += kWarp) {
        const std::int64_t i = base + lane_index();
        const std::uint32_t image = i < end ? top_image(from[i]) : 0;
        const bool is_tie = i < end && image == nth.image;
        const unsigned tie_lanes = __ballot_sync(kAllLanes, is_tie);
        const std::uint32_t tie =
            ties_before +
            static_cast<std::uint32_t>(__popc(tie_lanes & ((1u << lane_index()) - 1)));
        if (i < end && (image > nth.image || (is_tie && tie < nth.num_ties))) {
            const std::uint32_t slot = atomicAdd(&shared.num_found, 1u);  // sorted afterwards
            shared.found[slot] = static_cast<unsigned long long>(image) << 32 |
                                 static_cast<std::uint32_t>(~static_cast<std::uint32_t>(i));
        }
        ties_before += static_cast<std::uint32_t>(__popc(tie_lanes));
    }
    __syncthreads();
}

// Sorts shared.found, descending: a bitonic sort, one pair per thread. Unfilled entries are 0 and
// sink to the end.
__device__ __forceinline__ void sort_found(TopShared& shared) {
    const int thread = static_cast<int>(threadIdx.x);
    for (int size = 2; size <= kTopMax; size *= 2) {
        for (int step = size / 2; step > 0; step /= 2) {
            const int other = thread ^ step;
            if (other > thread) {
                const unsigned long long a = shared.found[thread];
                const unsigned long long b = shared.found[other];
                if ((a < b) == ((thread & size) == 0)) {
                    shared.found[thread] = b;
                    shared.found[other] = a;
                }
            }
            __syncthreads();
        }
    }
}

// grid [R], block [kTopThreads]; a block owns a row. Four passes of a radix select for the
// n-th largest, two to collect (ties by lower id), then a bitonic sort of at most 1024. Six
// reads of a row, five of them from L2: about 30 us for a row of 152k at one block's 115 GB/s;
// rows run in parallel.
__global__ void __launch_bounds__(kTopThreads) top_logits_kernel(
    const float* __restrict__ logits,  // [R, V_rank]
    std::int64_t stride,
    std::int64_t num_ids,
    std::int64_t vocab_begin,
    int n,                      // 1 <= n <= min(num_ids, kTopMax)
    TokenId* __restrict__ ids,  // [R, n]
    std::int64_t ids_stride,
    float* __restrict__ values,  // [R, n]
    std::int64_t values_stride
) {
    __shared__ TopShared shared;
    const std::int64_t r = blockIdx.x;
    const int thread = static_cast<int>(threadIdx.x);
    const float* const from = logits + r * stride;
    const NthImage nth = find_nth(shared, from, num_ids, n);
    collect_top(shared, from, num_ids, nth);
    sort_found(shared);
    if (thread < n) {
        const auto index =
            static_cast<std::int64_t>(~static_cast<std::uint32_t>(shared.found[thread]));
        const float logit = from[index];
        ids[r * ids_stride + thread] = static_cast<TokenId>(vocab_begin + index);
        values[r * values_stride + thread] = isnan(logit) ? negative_infinity() : logit;
    }
}
static_assert(kTopThreads == kTopMax);

}  // namespace

void softmax_stats_cuda(const SoftmaxStatsArgs& args) {
    check(args);
    const auto& [logits, rows, stats, workspace, stream] = args;
    if (logits.rows == 0) return;
    CHECK(workspace.bytes >= softmax_stats_workspace_bytes(logits.rows, logits.cols));
    auto* const parts = static_cast<SoftmaxStats*>(workspace.data);
    const std::int64_t num_parts = ceil_div(logits.cols, kVocabBlock);
    const bool is_aligned_16 = is_aligned(logits.data, 16) && logits.stride % 4 == 0;
    // Rows are in y, in groups: a grid's y has 16 bits.
    constexpr std::int64_t kRowsPerLaunch = 32768;
    for (std::int64_t begin = 0; begin < logits.rows; begin += kRowsPerLaunch) {
        const std::int64_t num = std::min(kRowsPerLaunch, logits.rows - begin);
        const auto run = [&]<bool kIsAligned>() {
            launch<softmax_part_kernel<kIsAligned>>(
                {.grid = dim3(narrow<unsigned>(num_parts), narrow<unsigned>(num)),
                 .block = dim3(kThreads),
                 .stream = stream},
                logits.data + begin * logits.stride,
                logits.stride,
                logits.cols,
                rows + begin,
                parts + begin * num_parts
            );
        };
        is_aligned_16 ? run.operator()<true>() : run.operator()<false>();
    }
    launch<softmax_merge_kernel>(
        {.grid = dim3(narrow<unsigned>(ceil_div(logits.rows, kMergeThreads / kWarp))),
         .block = dim3(kMergeThreads),
         .stream = stream},
        parts,
        narrow<int>(num_parts),
        stats,
        logits.rows
    );
}

void pick_logits_cuda(const PickLogitsArgs& args) {
    check(args);
    launch<pick_logits_kernel>(
        {.grid = dim3(narrow<unsigned>(ceil_div(args.num_picks, kThreads))),
         .block = dim3(kThreads),
         .stream = args.stream},
        args.logits.data,
        args.logits.stride,
        args.logits.cols,
        args.vocab_begin,
        args.picks,
        args.num_picks,
        args.values
    );
}

void count_before_cuda(const CountBeforeArgs& args) {
    check(args);
    if (args.num_picks == 0) return;
    launch<count_before_kernel>(
        {.grid = dim3(narrow<unsigned>(args.num_picks)),
         .block = dim3(kCountThreads),
         .stream = args.stream},
        args.logits.data,
        args.logits.stride,
        args.logits.cols,
        args.vocab_begin,
        args.picks,
        args.values,
        args.counts
    );
}

void top_logits_cuda(const TopLogitsArgs& args) {
    check(args);
    if (args.ids.cols == 0) return;
    CHECK(args.logits.cols < std::int64_t{1} << 31);
    launch<top_logits_kernel>(
        {.grid = dim3(narrow<unsigned>(args.logits.rows)),
         .block = dim3(kTopThreads),
         .stream = args.stream},
        args.logits.data,
        args.logits.stride,
        args.logits.cols,
        args.vocab_begin,
        narrow<int>(args.ids.cols),
        args.ids.data,
        args.ids.stride,
        args.values.data,
        args.values.stride
    );
}

}  // namespace pitstop::kernels
