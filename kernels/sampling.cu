#include "kernels/sampling.h"

#include "kernels/device/gumbel_race.cuh"
#include "kernels/device/radix_select.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/sample_thresholds.cuh"
#include "kernels/device/sampled_row.cuh"
#include "kernels/device/wide_sum.cuh"
#include "kernels/runtime/launch.cuh"

#include <algorithm>

// Sampling is one kernel if no row truncates, and otherwise four, each over all rows; a row leaves
// kernels that it does not need at once.
//
//   race or maximum   every row. For a row that does not truncate only the merge of its parts is
//                     left, which the last part to end does if no kernel follows
//   histogram         count and mass of the ids, by distance below the maximum
//   collect           into a list: the ids of the bins that may survive, if they are few; else the
//                     ids of the bin that contains top-p's threshold, while those above it race
//   resolve           the exact thresholds and the race over the list; the merge of a race's parts.
//                     If the list would be too long, resolve reads the whole row again
//
// A row of 152k logits is read from memory once and, if it truncates, twice more from L2, peaked or
// flat. Logits that are not finite are counted when they are first read.
namespace pitstop::kernels {
namespace {

// ---- race or maximum ----

// Sums the counts of non-finite logits of the row's parts. REQUIRES: one whole warp calls it.
__device__ void merge_nonfinite(const SampleParams& params, std::int64_t r) {
    if (params.num_nonfinite == nullptr) return;
    std::int32_t num = 0;
    for (int i = lane_index(); i < params.num_parts; i += kWarp)
        num += params.nonfinite_parts[r * params.num_parts + i];
    num = warp_sum(num);
    if (lane_index() == 0) params.num_nonfinite[r] = num;
}

// Decides a row that does not truncate: all of its ids have raced. REQUIRES: one whole
// warp calls it.
__device__ void merge_race(const SampleParams& params, std::int64_t r) {
    RacePart best{.score = negative_infinity(), .id = 0};
    for (int i = lane_index(); i < params.num_parts; i += kWarp) {
        const RacePart part = params.parts[r * params.num_parts + i];
        if (is_better(part.score, part.id, best)) best = part;
    }
    best = warp_best(best);
    if (lane_index() == 0) {
        params.choices[r] = {
            .id = static_cast<TokenId>(static_cast<std::int32_t>(params.vocab_begin) + best.id),
            .score = best.score,
            .kept_min = negative_infinity()};
    }
}

// Called by the block's first thread when its part of the row is stored; the last block merges all.
__device__ void arrive(const SampleParams& params, std::int64_t r) {
    if (params.arrivals == nullptr || warp_index() != 0) return;
    const auto others = static_cast<std::uint32_t>(params.num_parts) - 1;
    std::uint32_t num_before = 0;
    if (lane_index() == 0) {
        __threadfence();  // orders the part before its arrival
        num_before = atomicInc(params.arrivals + r, others);
        __threadfence();  // orders other blocks' parts before the reads below
    }
    num_before = __shfl_sync(kAllLanes, num_before, 0);
    __syncwarp();  // no lane reads parts before the first lane is past its fence
    if (num_before != others) return;
    merge_race(params, r);
    merge_nonfinite(params, r);
}

// Returns the maximum of a thread's x, for a row that truncates; clears its bins.
__device__ RacePart
begin_row(const SampleParams& params, std::int64_t r, const float (&x)[kPacks][4]) {
    RowSpace& space = params.spaces[r];
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = static_cast<int>(blockIdx.x) * kThreads + thread; i < kBins;
         i += params.num_parts * kThreads) {
        space.counts[i] = 0;
        space.mass[i] = 0;
    }
    if (blockIdx.x == 0 && thread == 0) space.num_listed = 0;
    float max = negative_infinity();
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) max = fmaxf(max, x[j][k]);
    }
    return {.score = block_max<kThreads>(max), .id = 0};
}

// grid [parts, R], block [kThreads]; a block owns kBlockIds ids of a row. Memory-bound: 4 bytes in
// per logit; 64 rows of 152k: 39 MB, 9 us at 4.3 TB/s. The draws cost 17 instructions per id
// (Philox), the bound 8 more, counting non-finite logits 3. Logarithms are computed only for ids
// that can still win according to the bound: 64 rows then need about 8 us of the SMs' issue slots,
// in parallel with the loads.
__global__ void __launch_bounds__(kThreads)
    race_or_max_kernel(const __grid_constant__ SampleParams params) {
    const std::int64_t r = blockIdx.y;
    const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * kBlockIds;
    const int num = min(kBlockIds, params.num_ids - begin);
    const float* const from = params.logits + r * params.stride + begin;
    const SampleRow row = sample_row(params, r);
    const int thread = static_cast<int>(threadIdx.x);
    const std::int64_t part = r * params.num_parts + blockIdx.x;
    float x[kPacks][4];
    int num_nonfinite = load_block(params, from, num, inverse_temperature(row), x);

    RacePart best{.score = negative_infinity(), .id = begin};
    if (is_truncating(row, params.num_ids)) {
        best = begin_row(params, r, x);
    } else {
        const bool is_greedy = row.temperature == 0.f;
        float to_beat = negative_infinity();
#pragma unroll
        for (int j = 0; j < kPacks; ++j) {
            const int first = begin + (thread + j * kThreads) * 4;
            if (is_greedy) {
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    if (x[j][k] > best.score) best = {x[j][k], first + k};
                continue;
            }
            race(row, params.vocab_begin, first, x[j], to_beat, best);
            to_beat = score_to_beat(best);
        }
        best = block_best<kThreads>(best);
    }
    if (params.num_nonfinite != nullptr) num_nonfinite = block_sum<kThreads>(num_nonfinite);
    if (thread == 0) {
        params.parts[part] = best;
        params.nonfinite_parts[part] = num_nonfinite;
    }
    arrive(params, r);
}

// ---- thresholds ----

// grid [parts, R], block [kThreads]: as above. Reads from L2. A block's masses are summed in its
// own histogram first; the sums are integers, so the order of the atomics does not matter.
__global__ void __launch_bounds__(kThreads)
    histogram_kernel(const __grid_constant__ SampleParams params) {
    __shared__ WideSum mass[kBins];
    __shared__ std::uint32_t counts[kBins];
    const std::int64_t r = blockIdx.y;
    const SampleRow row = sample_row(params, r);
    if (!is_truncating(row, params.num_ids)) return;
    const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * kBlockIds;
    const int num = min(kBlockIds, params.num_ids - begin);
    const float* const from = params.logits + r * params.stride + begin;
    const float inverse = inverse_temperature(row);
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < kBins; i += kThreads) {
        mass[i] = {};
        counts[i] = 0;
    }
    const float max = row_max(params, r);
    const float min_p = min_p_threshold_of(row, max);
    __syncthreads();
    for (int j = 0; j < kPacks; ++j) {
        const int p = thread + j * kThreads;
        float x[4];
        load_x(params, from, p, num, inverse, x);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (p * 4 + k >= num || !(x[k] >= min_p)) continue;
            const int bin = bin_of(max, x[k]);
            atomicAdd(&counts[bin], 1u);
            const std::uint64_t own = mass_of(max, x[k]);
            if (own != 0) atomic_add(mass[bin], own);
        }
    }
    __syncthreads();
    RowSpace& space = params.spaces[r];
    for (int i = thread; i < kBins; i += kThreads) {
        if (counts[i] == 0) continue;
        atomicAdd(&space.counts[i], counts[i]);
        const std::uint64_t own = mass[i].value();
        if (own != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&space.mass[i]), own);
    }
}

// grid [parts, R], block [kThreads]: as above. Reads from L2, and writes the list and the race's
// parts (Collect).
__global__ void __launch_bounds__(kThreads)
    collect_kernel(const __grid_constant__ SampleParams params) {
    const std::int64_t r = blockIdx.y;
    const SampleRow row = sample_row(params, r);
    if (!is_truncating(row, params.num_ids)) return;
    RowSpace& space = params.spaces[r];
    const Boundary boundary = boundary_of(space, row, params.num_ids);
    const Collect collect = boundary.collect(row, params.num_ids);
    if (collect == Collect::kNone) return;
    const bool races = collect == Collect::kRace;
    const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * kBlockIds;
    const int num = min(kBlockIds, params.num_ids - begin);
    const float* const from = params.logits + r * params.stride + begin;
    const float inverse = inverse_temperature(row);
    const float max = row_max(params, r);
    const float min_p = min_p_threshold_of(row, max);
    RacePart best{.score = negative_infinity(), .id = begin};
    float to_beat = negative_infinity();
    for (int j = 0; j < kPacks; ++j) {
        const int p = static_cast<int>(threadIdx.x) + j * kThreads;
        float x[4];
        load_x(params, from, p, num, inverse, x);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const bool may_survive = p * 4 + k < num && x[k] >= min_p;
            const int bin = may_survive ? bin_of(max, x[k]) : kBins;
            if (races && may_survive && bin < boundary.bin) continue;
            if (may_survive && bin <= boundary.bin) {
                const std::uint32_t slot =
                    atomicAdd(&space.num_listed, 1u);  // in any order: see resolve
                space.list[slot] = {.x = x[k], .id = begin + p * 4 + k};
            }
            x[k] = negative_infinity();  // excluded from the race of this thread
        }
        if (!races) continue;
        race(row, params.vocab_begin, begin + p * 4, x, to_beat, best);
        to_beat = score_to_beat(best);
    }
    if (!races) return;
    best = block_best<kThreads>(best);
    if (threadIdx.x == 0) params.race_parts[r * params.num_parts + blockIdx.x] = best;
}

// The ids over which the exact thresholds are computed: the list, or the whole row.
struct Source {
    const Listed* list;   // null: the row
    const float* logits;  // the row
    float inverse;
    std::int32_t num;

    __device__ Listed operator[](std::int32_t i) const {
        return list != nullptr ? list[i] : Listed{scaled(logits[i], inverse), i};
    }
};

// Returns the best of the ids that the thresholds keep, in the block's first thread; if `collect`
// is kRace, also of the ids above the boundary, which have raced.
__device__ RacePart race_kept(
    const SampleParams& params,
    const SampleRow& row,
    const Source& source,
    float kept_min,
    Collect collect
) {
    const int thread = static_cast<int>(threadIdx.x);
    RacePart best{.score = negative_infinity(), .id = 0};
    for (std::int32_t i = thread; i < source.num; i += kResolveThreads) {
        const Listed one = source[i];
        if (!(one.x >= kept_min) || one.x == negative_infinity()) continue;
        const std::int64_t id = params.vocab_begin + one.id;
        const float score = one.x + gumbel(draw(row, id / 4)[static_cast<std::size_t>(id % 4)]);
        if (is_better(score, one.id, best)) best = {score, one.id};
    }
    if (collect == Collect::kRace) {
        for (int i = thread; i < params.num_parts; i += kResolveThreads) {
            const RacePart part =
                params.race_parts[std::int64_t{blockIdx.x} * params.num_parts + i];
            if (is_better(part.score, part.id, best)) best = part;
        }
    }
    return block_best<kResolveThreads>(best);
}

// grid [R], block [kResolveThreads]; a block owns a row. With a list it is latency-bound: about ten
// passes over at most 32 KiB in L2. Without one (Collect::kNone: a top-k in the thousands, or as
// many equal logits) each pass reads the row from L2, about 5 us for 152k ids at one block's 115
// GB/s.
__global__ void __launch_bounds__(kResolveThreads)
    resolve_kernel(const __grid_constant__ SampleParams params) {
    __shared__ Select shared;
    const std::int64_t r = blockIdx.x;
    const SampleRow row = sample_row(params, r);
    if (warp_index() == 0) merge_nonfinite(params, r);
    if (!is_truncating(row, params.num_ids)) {
        if (warp_index() == 0) merge_race(params, r);
        return;
    }

    const RowSpace& space = params.spaces[r];
    const Boundary boundary = boundary_of(space, row, params.num_ids);
    const Collect collect = boundary.collect(row, params.num_ids);
    const bool is_listed = collect != Collect::kNone;
    const Source source{
        .list = is_listed ? space.list : nullptr,
        .logits = params.logits + r * params.stride,
        .inverse = inverse_temperature(row),
        .num = is_listed ? static_cast<std::int32_t>(space.num_listed) : params.num_ids};
    const float max = row_max(params, r);
    float kept_min = min_p_threshold_of(row, max);
    const bool is_top_k = row.top_k < params.num_ids;
    // If the list has fewer than top_k ids, it has all ids that min-p kept, and top-k removes none
    // of them.
    if (is_top_k && row.top_k <= source.num) {
        const auto one = [](float) { return std::uint64_t{1}; };
        kept_min = fmaxf(
            kept_min,
            select_threshold<kResolveThreads>(
                shared, source, static_cast<std::uint64_t>(row.top_k), one
            )
        );
    }
    if (row.top_p < 1.f) {
        const auto mass = [=](float x) {
            return x >= kept_min ? mass_of(max, x) : std::uint64_t{0};
        };
        // Without top-k, ids that count towards the total may be missing from the source:
        // those below the boundary, and in a race those above it. The target excludes the mass
        // of the ids above.
        const std::uint64_t total =
            is_top_k ? total_weight<kResolveThreads>(source, mass) : boundary.mass;
        const std::uint64_t target =
            top_p_target_of(row, total) - (collect == Collect::kRace ? boundary.mass_above : 0);
        kept_min = fmaxf(kept_min, select_threshold<kResolveThreads>(shared, source, target, mass));
    }
    const RacePart best = race_kept(params, row, source, kept_min, collect);
    if (threadIdx.x == 0) {
        params.choices[r] = {
            .id = static_cast<TokenId>(static_cast<std::int32_t>(params.vocab_begin) + best.id),
            .score = best.score,
            .kept_min = kept_min};
    }
}

std::int64_t group_bytes(std::int64_t num_rows, std::int64_t vocab_len) {
    const std::int64_t num_parts = ceil_div(vocab_len, kBlockIds);
    return std::min(num_rows, kRowsPerGroup) *
           static_cast<std::int64_t>(
               sizeof(RowSpace) +
               (2 * sizeof(RacePart) + sizeof(std::int32_t)) * static_cast<std::size_t>(num_parts)
           );
}

}  // namespace

std::int64_t sample_cuda_workspace_bytes(std::int64_t num_rows, std::int64_t vocab_len) {
    return std::max(sample_workspace_bytes(num_rows, vocab_len), group_bytes(num_rows, vocab_len));
}

void sample_cuda(const SampleArgs& args) {
    check(args);
    const View2<const float> logits = args.logits;
    if (logits.rows == 0) return;
    CHECK(args.workspace.bytes >= sample_cuda_workspace_bytes(logits.rows, logits.cols));
    CHECK(is_aligned(args.workspace.data, 8));
    const std::int64_t num_parts = ceil_div(logits.cols, kBlockIds);
    const std::int64_t rows_at_once = std::min(logits.rows, kRowsPerGroup);
    auto* const spaces = static_cast<RowSpace*>(args.workspace.data);
    auto* const parts = reinterpret_cast<RacePart*>(spaces + rows_at_once);
    const bool is_one_launch = !args.may_truncate && args.arrivals != nullptr;
    for (std::int64_t begin = 0; begin < logits.rows; begin += kRowsPerGroup) {
        const std::int64_t num = std::min(kRowsPerGroup, logits.rows - begin);
        const SampleParams params{
            .logits = logits.data + begin * logits.stride,
            .stride = logits.stride,
            .num_ids = narrow<std::int32_t>(logits.cols),
            .vocab_begin = args.vocab_begin,
            .rows = args.rows + begin,
            .first_position = args.first_position,
            .choices = args.choices + begin,
            .spaces = spaces,
            .parts = parts,
            .race_parts = parts + rows_at_once * num_parts,
            .nonfinite_parts =
                reinterpret_cast<std::int32_t*>(parts + 2 * rows_at_once * num_parts),
            .num_nonfinite = args.num_nonfinite == nullptr ? nullptr : args.num_nonfinite + begin,
            .arrivals = is_one_launch ? args.arrivals : nullptr,
            .num_parts = narrow<int>(num_parts),
            .is_aligned_16 = is_aligned(logits.data, 16) && logits.stride % 4 == 0};
        const Launch over_parts{
            .grid = dim3(narrow<unsigned>(num_parts), narrow<unsigned>(num)),
            .block = dim3(kThreads),
            .stream = args.stream};
        launch<race_or_max_kernel>(over_parts, params);
        if (is_one_launch) continue;
        launch<histogram_kernel>(over_parts, params);
        launch<collect_kernel>(over_parts, params);
        launch<resolve_kernel>(
            {.grid = dim3(narrow<unsigned>(num)),
             .block = dim3(kResolveThreads),
             .stream = args.stream},
            params
        );
    }
}

}  // namespace pitstop::kernels
