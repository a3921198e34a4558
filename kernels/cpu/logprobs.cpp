#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vmath.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

constexpr float kNegInf = -__builtin_inff();

struct Scaling {
    F32x16 inverse;
    F32x16 kept_min;

    // Loads x of 16 logits, -inf for logits that are not kept or do not exist.
    PITSTOP_INLINE F32x16 load_x(const float* logits, std::int64_t n) const {
        F32x16 x = load_up_to(logits, n) * inverse;
        if (n < kLanes) {
            const F32x16 lane = from_i32(iota());
            x = select(gt(set1(static_cast<float>(n)), lane), x, set1(kNegInf));
        }
        return select(ge(x, kept_min), x, set1(kNegInf));  // a NaN is not kept
    }
};

// Reduces one block of ids, which stays in L1 between the two passes.
SoftmaxStats block_stats(const float* logits, std::int64_t n, const Scaling& scaling) {
    F32x16 max16 = set1(kNegInf);
    for (std::int64_t i = 0; i < n; i += kLanes)
        max16 = max(max16, scaling.load_x(logits + i, n - i));
    SoftmaxStats stats;
    stats.max = max_lane(max16);
    if (stats.max == kNegInf) return stats;
    F32x16 sum16 = zero();
    const F32x16 offset = set1(stats.max);
    for (std::int64_t i = 0; i < n; i += kLanes)
        sum16 += exp(scaling.load_x(logits + i, n - i) - offset);
    stats.sum = static_cast<double>(sum(sum16));
    return stats;
}

// Returns how many of n logits are over `value`, or equal to it if `counts_equal`.
std::int32_t count_over(const float* logits, std::int64_t n, float value, bool counts_equal) {
    const F32x16 value16 = set1(value);
    std::int32_t count = 0;
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const std::int64_t left = n - i;
        const F32x16 x = load_up_to(logits + i, left);
        std::uint32_t found = bits(counts_equal ? ge(x, value16) : gt(x, value16));
        if (left < kLanes) found &= (1u << left) - 1;
        count += __builtin_popcount(found);
    }
    return count;
}

// Finds the n best of one row by insertion: few of V logits are inserted.
void top_of_row(
    const float* logits,
    std::int64_t V,
    std::int64_t vocab_begin,
    std::int64_t n,
    TokenId* ids,
    float* values
) {
    std::int64_t num = 0;
    const auto insert = [&](std::int64_t index, float value) {
        std::int64_t place = num < n ? num++ : n - 1;
        for (; place > 0 && values[place - 1] < value;
             --place) {  // of equal logits the one with the lower id is first
            values[place] = values[place - 1];
            ids[place] = ids[place - 1];
        }
        values[place] = value;
        ids[place] = static_cast<TokenId>(vocab_begin + index);
    };
    for (std::int64_t i = 0; i < V; i += kLanes) {
        const std::int64_t left = V - i;
        const F32x16 x = load_up_to(logits + i, left);
        if (num == n && bits(gt(x, set1(values[n - 1]))) == 0) continue;
        for (std::int64_t lane = 0; lane < (left < kLanes ? left : kLanes); ++lane) {
            float value = logits[i + lane];
            if (value != value) value = kNegInf;
            if (num < n || value > values[n - 1]) insert(i + lane, value);
        }
    }
}

}  // namespace

void softmax_stats(const SoftmaxStatsArgs& args) {
    check(args);
    CHECK(
        args.workspace.bytes >= softmax_stats_workspace_bytes(args.logits.rows, args.logits.cols)
    );
    constexpr std::int64_t kBlock = SoftmaxStatsArgs::kVocabBlock;
    const std::int64_t V = args.logits.cols;
    const std::int64_t num_blocks = (V + kBlock - 1) / kBlock;
    SoftmaxStats* const blocks =
        static_cast<SoftmaxStats*>(args.workspace.data);  // [R, num_blocks]
    auto reduce_blocks = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t r = i / num_blocks;
            const std::int64_t first = i % num_blocks * kBlock;
            const SoftmaxRow& row = args.rows[r];
            const Scaling scaling{set1(1.f / row.temperature), set1(row.kept_min)};
            const std::int64_t n = V - first < kBlock ? V - first : kBlock;
            blocks[i] = block_stats(args.logits.data + r * args.logits.stride + first, n, scaling);
        }
    };
    for_ranges(
        args.stream, args.logits.rows * num_blocks, V < kBlock ? kBlock / V : 1, reduce_blocks
    );
    for (std::int64_t r = 0; r < args.logits.rows; ++r) {
        SoftmaxStats stats = blocks[r * num_blocks];
        for (std::int64_t b = 1; b < num_blocks; ++b)
            stats = merge(stats, blocks[r * num_blocks + b]);
        args.stats[r] = stats;
    }
}

void count_before(const CountBeforeArgs& args) {
    check(args);
    const std::int64_t V = args.logits.cols;
    auto picks = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const LogitPick& pick = args.picks[i];
            const float* const logits = args.logits.data + pick.row * args.logits.stride;
            std::int64_t at = std::int64_t{raw(pick.id)} - args.vocab_begin;
            // Of equal logits, only those with an id below `at` count.
            at = at < 0 ? 0 : at > V ? V : at;
            args.counts[i] =
                count_over(logits, at, args.values[i], /*counts_equal=*/true) +
                count_over(logits + at, V - at, args.values[i], /*counts_equal=*/false);
        }
    };
    for_ranges(args.stream, args.num_picks, grain_of_bytes(V * 4), picks);
}

void top_logits(const TopLogitsArgs& args) {
    check(args);
    if (args.ids.cols == 0) return;
    const std::int64_t V = args.logits.cols;
    auto rows = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
            top_of_row(
                args.logits.data + r * args.logits.stride,
                V,
                args.vocab_begin,
                args.ids.cols,
                args.ids.data + r * args.ids.stride,
                args.values.data + r * args.values.stride
            );
        }
    };
    for_ranges(args.stream, args.logits.rows, grain_of_bytes(V * 4), rows);
}

}  // namespace pitstop::kernels::PITSTOP_ISA
