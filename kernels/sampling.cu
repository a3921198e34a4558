#include "kernels/sampling.h"

#include "kernels/device/gumbel_race.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/radix_select.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/sampled_row.cuh"

#include <algorithm>

// Sampling is four kernels, each over all rows; a row leaves those it does not need at once.
//
//   race or maximum   every row; a row that does not truncate is decided but for the merge
//   histogram         count and mass of the ids, by how far they are below the maximum
//   collect           into a list: the ids of the bins that may survive, if they are few; else the
//                     ids of the bin that top-p's threshold falls into, while those above it race
//   resolve           the exact thresholds and the race over the list; the merge of a race's parts.
//                     Where even the list would be too long, the whole row again
//
// A row of 152k logits is read from memory once and twice more from L2, peaked or flat.
namespace pitstop::kernels {
namespace {

// ---- race or maximum ----

// grid [parts, R], block [kThreads]; a block owns kBlockIds ids of a row. Memory-bound: 4 bytes in
// per logit; 64 rows of 152k: 39 MB, 9 us at 4.3 TB/s. The draws cost 17 instructions per id
// (Philox), the bound 8 more; the logarithms are taken only where the bound says that the id could
// still win: 64 rows then take some 8 us of the SMs' issue slots, beside the loads.
__global__ void __launch_bounds__(kThreads)
    race_or_max_kernel(const __grid_constant__ SampleParams params) {
    const std::int64_t r = blockIdx.y;
    const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * kBlockIds;
    const int num = min(kBlockIds, params.num_ids - begin);
    const float* const from = params.logits + r * params.stride + begin;
    const SampleRow row = params.rows[r];
    const float inverse = inverse_temperature(row);
    const int thread = static_cast<int>(threadIdx.x);
    RacePart* const part = params.parts + r * params.num_parts + blockIdx.x;

    if (is_truncating(row, params.num_ids)) {
        RowSpace& space = params.spaces[r];
        for (int i = static_cast<int>(blockIdx.x) * kThreads + thread; i < kBins;
             i += params.num_parts * kThreads) {
            space.counts[i] = 0;
            space.mass[i] = 0;
        }
        if (blockIdx.x == 0 && thread == 0) space.num_listed = 0;
        float max = negative_infinity();
        float x[kPacks][4];
        load_block(params, from, num, inverse, x);
#pragma unroll
        for (int j = 0; j < kPacks; ++j) {
#pragma unroll
            for (int k = 0; k < 4; ++k) max = fmaxf(max, x[j][k]);
        }
        max = block_max<kThreads>(max);
        if (thread == 0) *part = {.score = max, .id = 0};
        return;
    }

    const bool is_greedy = row.temperature == 0.f;
    RacePart best{.score = negative_infinity(), .id = begin};
    float to_beat = negative_infinity();
    float x[kPacks][4];
    load_block(params, from, num, inverse, x);
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
    if (thread == 0) *part = best;
}

// ---- thresholds ----

__device__ float row_max(const SampleParams& params, std::int64_t r) {
    float max = negative_infinity();
    for (int i = 0; i < params.num_parts; ++i)
        max = fmaxf(max, params.parts[r * params.num_parts + i].score);
    return max;
}
__device__ float min_p_threshold_of(const SampleRow& row, float max) {
    if (row.min_p <= 0.f) return negative_infinity();
    return static_cast<float>(double{max} + log(double{row.min_p}));
}
__device__ std::uint64_t top_p_target_of(const SampleRow& row, std::uint64_t total) {
    const auto target =
        static_cast<std::uint64_t>(ceil(double{row.top_p} * static_cast<double>(total)));
    return min(max(target, std::uint64_t{1}), max(total, std::uint64_t{1}));
}
// Returns how far x is below the maximum; 0 for the maximum, also where both are infinite.
__device__ float below(float max, float x) { return x == max ? 0.f : max - x; }
__device__ int bin_of(float max, float x) {
    return static_cast<int>(fminf(below(max, x) * kBinsPerUnit, static_cast<float>(kBins - 1)));
}
__device__ std::uint64_t mass_of(float max, float x) {
    return __float2ull_rn(expf(-below(max, x)) * kMassOne);
}

// grid [parts, R], block [kThreads]: as above. Reads from L2. A block's masses are summed in its
// own histogram first; the sums are integers, so the order of the atomics decides nothing.
__global__ void __launch_bounds__(kThreads)
    histogram_kernel(const __grid_constant__ SampleParams params) {
    __shared__ unsigned long long mass[kBins];
    __shared__ std::uint32_t counts[kBins];
    const std::int64_t r = blockIdx.y;
    const SampleRow row = params.rows[r];
    if (!is_truncating(row, params.num_ids)) return;
    const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * kBlockIds;
    const int num = min(kBlockIds, params.num_ids - begin);
    const float* const from = params.logits + r * params.stride + begin;
    const float inverse = inverse_temperature(row);
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < kBins; i += kThreads) mass[i] = counts[i] = 0;
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
            if (own != 0) atomicAdd(&mass[bin], own);
        }
    }
    __syncthreads();
    RowSpace& space = params.spaces[r];
    for (int i = thread; i < kBins; i += kThreads) {
        if (counts[i] == 0) continue;
        atomicAdd(&space.counts[i], counts[i]);
        if (mass[i] != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&space.mass[i]), mass[i]);
    }
}

// Says what collect does with the ids of a row.
enum class Collect : std::uint8_t {
    kList,  // lists all that may survive
    kRace,  // lists those of the boundary's bin; those above survive and race
    kNone,  // too many in one bin, or by top-k: resolve reads the row
};

// No id below this bin survives.
struct Boundary {
    int bin;                // kBins: all survive that min-p left
    std::uint32_t num_ids;  // in the bin and above
    std::uint32_t num_in_bin;
    std::uint64_t mass_above;  // of the bins above
    std::uint64_t mass;        // of all ids that min-p left

    __device__ Collect collect(const SampleRow& row, std::int32_t num_vocab_ids) const {
        if (num_ids <= kListMax) return Collect::kList;
        const bool is_top_k = row.top_k < num_vocab_ids;  // counts the mass of what top-k left
        return is_top_k || num_in_bin > kListMax ? Collect::kNone : Collect::kRace;
    }
};

// Holds what the bins of a pair have, each with all above it.
struct PairSums {
    std::uint32_t counts[2];
    std::uint64_t mass[2];
};

// Sums the pair from `bin` on with those of lower lanes: bins are numbered from the maximum down.
// REQUIRES: the whole warp calls it.
__device__ PairSums pair_sums(const RowSpace& space, int bin) {
    PairSums sums{};
    sums.counts[0] = space.counts[bin];
    sums.mass[0] = space.mass[bin];
    const std::uint32_t pair_count = sums.counts[0] + space.counts[bin + 1];
    const std::uint64_t pair_mass = sums.mass[0] + space.mass[bin + 1];
    sums.counts[1] = pair_count;
    sums.mass[1] = pair_mass;
#pragma unroll
    for (int offset = 1; offset < kWarp; offset *= 2) {
        const std::uint32_t count = __shfl_up_sync(kAllLanes, sums.counts[1], offset);
        const std::uint64_t other = __shfl_up_sync(kAllLanes, sums.mass[1], offset);
        if (lane_index() >= offset) {
            sums.counts[1] += count;
            sums.mass[1] += other;
        }
    }
    sums.counts[0] += sums.counts[1] - pair_count;
    sums.mass[0] += sums.mass[1] - pair_mass;
    return sums;
}

// Finds the boundary. With top-k the top_k-th largest is in the first bin whose ids and those above
// are top_k; all of it is needed, as top-p counts the mass of what top-k left. Without it top-p's
// boundary is the first bin whose mass and that above reach the target. Every thread gets the same.
// REQUIRES: the whole block calls it; the first kThreads threads do the work.
__device__ Boundary boundary_of(const RowSpace& space, const SampleRow& row, std::int32_t num_ids) {
    __shared__ std::uint32_t warp_counts[kThreads / kWarp];
    __shared__ std::uint64_t warp_mass[kThreads / kWarp];
    __shared__ Boundary boundary;
    const int thread = static_cast<int>(threadIdx.x);
    const bool works = thread < kThreads;
    const int bin = 2 * thread;
    PairSums sums{};
    if (works) {
        sums = pair_sums(space, bin);
        if (lane_index() == kWarp - 1) {
            warp_counts[warp_index()] = sums.counts[1];
            warp_mass[warp_index()] = sums.mass[1];
        }
    }
    __syncthreads();
    std::uint32_t count_all = 0;
    std::uint64_t mass_all = 0;
    std::uint32_t count_before = 0;
    std::uint64_t mass_before = 0;
    for (int warp = 0; warp < kThreads / kWarp; ++warp) {
        if (warp == warp_index()) {
            count_before = count_all;
            mass_before = mass_all;
        }
        count_all += warp_counts[warp];
        mass_all += warp_mass[warp];
    }
    if (thread == 0) {
        boundary = {
            .bin = kBins,
            .num_ids = count_all,
            .num_in_bin = 0,
            .mass_above = mass_all,
            .mass = mass_all};
    }
    __syncthreads();
    if (works) {
        sums.counts[0] += count_before, sums.counts[1] += count_before;
        sums.mass[0] += mass_before, sums.mass[1] += mass_before;
        const bool is_top_k = row.top_k < num_ids;
        const auto top_k = static_cast<std::uint32_t>(row.top_k);
        const std::uint64_t target = top_p_target_of(row, mass_all);
        std::uint32_t count_above = sums.counts[0] - space.counts[bin];
        std::uint64_t mass_above = sums.mass[0] - space.mass[bin];
#pragma unroll
        for (int b = 0; b < 2; ++b) {
            const bool is_first =
                is_top_k ? sums.counts[b] >= top_k && count_above < top_k
                         : row.top_p < 1.f && sums.mass[b] >= target && mass_above < target;
            if (is_first) {
                boundary.bin = bin + b;  // one thread at most: no other bin is the first
                boundary.num_ids = sums.counts[b];
                boundary.num_in_bin = sums.counts[b] - count_above;
                boundary.mass_above = mass_above;
            }
            count_above = sums.counts[b];
            mass_above = sums.mass[b];
        }
    }
    __syncthreads();
    return boundary;
}

// grid [parts, R], block [kThreads]: as above. Reads from L2, and writes the list and the race's
// parts (Collect).
__global__ void __launch_bounds__(kThreads)
    collect_kernel(const __grid_constant__ SampleParams params) {
    const std::int64_t r = blockIdx.y;
    const SampleRow row = params.rows[r];
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
                    atomicAdd(&space.num_listed, 1u);  // no order: see resolve
                space.list[slot] = {.x = x[k], .id = begin + p * 4 + k};
            }
            x[k] = negative_infinity();  // does not race here
        }
        if (!races) continue;
        race(row, params.vocab_begin, begin + p * 4, x, to_beat, best);
        to_beat = score_to_beat(best);
    }
    if (!races) return;
    best = block_best<kThreads>(best);
    if (threadIdx.x == 0) params.race_parts[r * params.num_parts + blockIdx.x] = best;
}

// Gives the ids that the exact thresholds are taken over: the list, or the whole row.
struct Source {
    const Listed* list;   // null: the row
    const float* logits;  // the row
    float inverse;
    std::int32_t num;

    __device__ Listed operator[](std::int32_t i) const {
        return list != nullptr ? list[i] : Listed{scaled(logits[i], inverse), i};
    }
};

// Decides a row that does not truncate: all of its ids have raced. REQUIRES: one whole warp calls
// it.
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

// grid [R], block [kResolveThreads]; a block owns a row. With a list it is latency: some ten passes
// over at most 32 KiB in L2. Without one (Collect::kNone: a top-k in the thousands, or as many
// equal logits) each pass reads the row from L2, some 5 us for 152k ids at one block's 115 GB/s.
__global__ void __launch_bounds__(kResolveThreads)
    resolve_kernel(const __grid_constant__ SampleParams params) {
    __shared__ Select shared;
    const std::int64_t r = blockIdx.x;
    const SampleRow row = params.rows[r];
    const int thread = static_cast<int>(threadIdx.x);
    const auto vocab_begin = static_cast<std::int32_t>(params.vocab_begin);
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
    // A list of fewer than top_k ids is all that min-p left: the top_k-th is below its threshold.
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
        // Without top-k the source may lack ids that count towards the total: those below the
        // boundary, and in a race those above, whose mass the target then is without.
        const std::uint64_t total =
            is_top_k ? total_weight<kResolveThreads>(source, mass) : boundary.mass;
        const std::uint64_t target =
            top_p_target_of(row, total) - (collect == Collect::kRace ? boundary.mass_above : 0);
        kept_min = fmaxf(kept_min, select_threshold<kResolveThreads>(shared, source, target, mass));
    }

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
            const RacePart part = params.race_parts[r * params.num_parts + i];
            if (is_better(part.score, part.id, best)) best = part;
        }
    }
    best = block_best<kResolveThreads>(best);
    if (thread == 0) {
        params.choices[r] = {
            .id = static_cast<TokenId>(vocab_begin + best.id),
            .score = best.score,
            .kept_min = kept_min};
    }
}

std::int64_t group_bytes(std::int64_t num_rows, std::int64_t vocab_len) {
    const std::int64_t num_parts = ceil_div(vocab_len, kBlockIds);
    return std::min(num_rows, kRowsPerGroup) *
           static_cast<std::int64_t>(
               sizeof(RowSpace) + 2 * sizeof(RacePart) * static_cast<std::size_t>(num_parts)
           );
}

}  // namespace

std::int64_t sample_cuda_workspace_bytes(std::int64_t num_rows, std::int64_t vocab_len) {
    return std::max(sample_workspace_bytes(num_rows, vocab_len), group_bytes(num_rows, vocab_len));
}

void sample_cuda(const SampleArgs& args) {
    check(args);
    const auto& [logits, vocab_begin, rows_of, choices, workspace, stream] = args;
    if (logits.rows == 0) return;
    CHECK(workspace.bytes >= sample_cuda_workspace_bytes(logits.rows, logits.cols));
    CHECK(is_aligned(workspace.data, 8));
    const std::int64_t num_parts = ceil_div(logits.cols, kBlockIds);
    const std::int64_t rows_at_once = std::min(logits.rows, kRowsPerGroup);
    auto* const spaces = static_cast<RowSpace*>(workspace.data);
    auto* const parts = reinterpret_cast<RacePart*>(spaces + rows_at_once);
    for (std::int64_t begin = 0; begin < logits.rows; begin += kRowsPerGroup) {
        const std::int64_t num = std::min(kRowsPerGroup, logits.rows - begin);
        const SampleParams params{
            .logits = logits.data + begin * logits.stride,
            .stride = logits.stride,
            .num_ids = narrow<std::int32_t>(logits.cols),
            .vocab_begin = vocab_begin,
            .rows = rows_of + begin,
            .choices = choices + begin,
            .spaces = spaces,
            .parts = parts,
            .race_parts = parts + rows_at_once * num_parts,
            .num_parts = narrow<int>(num_parts),
            .is_aligned_16 = is_aligned(logits.data, 16) && logits.stride % 4 == 0};
        const Launch over_parts{
            .grid = dim3(narrow<unsigned>(num_parts), narrow<unsigned>(num)),
            .block = dim3(kThreads),
            .stream = stream};
        launch<race_or_max_kernel>(over_parts, params);
        launch<histogram_kernel>(over_parts, params);
        launch<collect_kernel>(over_parts, params);
        launch<resolve_kernel>(
            {.grid = dim3(narrow<unsigned>(num)), .block = dim3(kResolveThreads), .stream = stream},
            params
        );
    }
}

}  // namespace pitstop::kernels
