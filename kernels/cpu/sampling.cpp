// Samples in two steps: the threshold of each truncating row, by radix select on the bits of x;
// then the race, which skips draws that cannot win.
#include "kernels/cpu/families.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vmath.h"
#include "kernels/philox.h"

namespace pitstop::kernels::PITSTOP_ISA {
namespace {

constexpr float kNegInf = -__builtin_inff();

struct Row {
    const float* logits;
    std::int64_t V;
    F32x16 inverse;  // 1 / temperature

    // Loads x of ids [i, i + 16), -inf past the end and for NaN.
    PITSTOP_INLINE F32x16 load_x(std::int64_t i) const {
        const std::int64_t n = V - i;
        F32x16 x = load_up_to(logits + i, n) * inverse;
        if (n < kLanes) {
            const F32x16 lane = from_i32(iota());
            x = select(gt(set1(static_cast<float>(n)), lane), x, set1(kNegInf));
        }
        return select(is_nan(x), set1(kNegInf), x);
    }
};

PITSTOP_INLINE float max_of(const Row& row) {
    F32x16 max16 = set1(kNegInf);
    for (std::int64_t i = 0; i < row.V; i += kLanes) max16 = max(max16, row.load_x(i));
    return max_lane(max16);
}

// Maps floats to unsigned integers in the same order.
PITSTOP_INLINE U32x16 ordered(F32x16 x) {
    const U32x16 u = as_u32(x);
    const U32x16 all_if_negative = set1_u32(0) - shr<31>(u);
    return u ^ (all_if_negative | set1_u32(0x80000000u));
}
PITSTOP_INLINE float from_ordered(std::uint32_t image) {
    const std::uint32_t u = (image & 0x80000000u) != 0 ? image ^ 0x80000000u : ~image;
    return __builtin_bit_cast(float, u);
}

// The weight of an x: 1 (top-k), or its mass (top-p).
struct CountWeight {
    PITSTOP_INLINE void operator()(F32x16, std::uint64_t* weights) const {
        for (int i = 0; i < kLanes; ++i) weights[i] = 1;
    }
};
struct MassWeight {
    float max;

    PITSTOP_INLINE void operator()(F32x16 x, std::uint64_t* weights) const {
        F32x16 difference = x - set1(max);
        difference = select(is_nan(difference), zero(), difference);  // both infinite
        const F32x16 mass = exp(difference) * set1(kMassOne);
        // Rounds to the nearest, ties to even, like llrint. Adding 2^23 to a smaller number rounds
        // it to an integer; floats from 2^23 on are integers.
        const F32x16 rounder = set1(0x1p23f);
        const F32x16 rounded = select(gt(rounder, mass), (mass + rounder) - rounder, mass);
        float lanes[kLanes];
        store(lanes, rounded);
        for (int i = 0; i < kLanes; ++i)
            weights[i] = static_cast<std::uint64_t>(static_cast<std::int64_t>(lanes[i]));
    }
};
constexpr float kMassRange = 28.5f;  // exp(-28.5) * 2^40 rounds to zero

// Considers the ids with x >= floor. Returns the largest threshold such that those with x >= the
// threshold together weigh at least the target: target_of(weight of all considered).
//
// The threshold's ordered image is found digit by digit, from the top: 11, 11 and 10 bits. Each
// pass weighs the values that share the digits found so far. REQUIRES: 1 <= target <= the weight of
// all; an x >= floor that weighs something.
template <class Weight, class TargetOf>
float select_threshold(const Row& row, float floor, const Weight& weight, TargetOf target_of) {
    constexpr int kDigitBits = 11;
    std::uint64_t histogram[1 << kDigitBits];
    std::uint32_t prefix = 0;  // the known upper bits of the image
    std::uint64_t above = 0;   // weight of the values greater than all with the prefix
    std::uint64_t target = 0;
    for (int shift = 32; shift > 0;) {
        const int width = shift >= kDigitBits ? kDigitBits : shift;
        const int low = shift - width;
        const std::uint32_t known = shift == 32 ? 0 : 0xffffffffu << shift;
        __builtin_memset(histogram, 0, sizeof histogram);
        for (std::int64_t i = 0; i < row.V; i += kLanes) {
            const F32x16 x = row.load_x(i);
            const U32x16 image = ordered(x);
            std::uint32_t matches =
                bits(ge(x, set1(floor))) & bits(eq(image & set1_u32(known), set1_u32(prefix)));
            if (row.V - i < kLanes) matches &= (1u << (row.V - i)) - 1u;
            if (matches == 0) continue;
            std::uint32_t digits[kLanes];
            store_u32(digits, image & set1_u32(~known));
            std::uint64_t weights[kLanes];
            weight(x, weights);
            for (; matches != 0; matches &= matches - 1) {
                const int lane = __builtin_ctz(matches);
                histogram[digits[lane] >> low] += weights[lane];
            }
        }
        if (shift == 32) {
            std::uint64_t total = 0;
            for (const std::uint64_t w : histogram) total += w;
            target = target_of(total);
        }
        std::uint32_t digit = (1u << width) - 1u;
        for (; digit > 0 && above + histogram[digit] < target; --digit) above += histogram[digit];
        prefix |= digit << low;
        shift = low;
    }
    return from_ordered(prefix);
}

// Returns a value that at least k ids reach, by a cheap method: the k-th largest of the maxima of k
// or more parts. -inf if that needs too many parts.
float top_k_floor(const Row& row, std::int64_t k) {
    constexpr std::int64_t kPart = 4 * kLanes;
    constexpr std::int64_t kPartsMax = 4096;
    float maxima[kPartsMax];
    const std::int64_t vectors_per_part =
        row.V / kPart > kPartsMax ? row.V / kPartsMax / kLanes + 1 : 4;
    const std::int64_t part = vectors_per_part * kLanes;
    const std::int64_t num_parts = row.V / part;  // a remainder only lowers the value
    if (num_parts < 2 * k) return kNegInf;
    for (std::int64_t p = 0; p < num_parts; ++p) {
        F32x16 max16 = row.load_x(p * part);
        for (std::int64_t v = 1; v < vectors_per_part; ++v)
            max16 = max(max16, row.load_x(p * part + v * kLanes));
        maxima[p] = max_lane(max16);
    }
    const Row parts{maxima, num_parts, set1(1.f)};
    const std::uint64_t target = static_cast<std::uint64_t>(k);
    return select_threshold(parts, kNegInf, CountWeight{}, [=](std::uint64_t) { return target; });
}

float kept_min_of(const SampleRow& params, const Row& row) {
    const bool has_top_k = params.top_k < row.V;
    const bool has_top_p = params.top_p < 1.f;
    if (!has_top_k && !has_top_p && params.min_p <= 0.f) return kNegInf;
    const float max = max_of(row);
    float kept_min = min_p_threshold(max, params.min_p);
    if (has_top_k) {
        const std::uint64_t k = static_cast<std::uint64_t>(params.top_k);
        const float floor = top_k_floor(row, params.top_k);
        const float threshold =
            select_threshold(row, floor, CountWeight{}, [=](std::uint64_t) { return k; });
        kept_min = threshold > kept_min ? threshold : kept_min;
    }
    if (has_top_p) {
        const float floor = max - kMassRange > kept_min ? max - kMassRange : kept_min;
        const float threshold =
            select_threshold(row, floor, MassWeight{max}, [&](std::uint64_t total) {
                return top_p_target(params.top_p, total);
            });
        kept_min = threshold > kept_min ? threshold : kept_min;
    }
    return kept_min;
}

// Takes the highest of 16 scores if it beats `best`; on a tie the lower id, as ids ascend.
PITSTOP_INLINE void take_better(F32x16 scores, std::int64_t first_id, Choice& best) {
    std::uint32_t winners = bits(gt(scores, set1(best.score)));
    if (winners == 0) return;
    float lanes[kLanes];
    store(lanes, scores);
    for (; winners != 0; winners &= winners - 1) {
        const int lane = __builtin_ctz(winners);
        if (lanes[lane] > best.score) {
            best.score = lanes[lane];
            best.id = static_cast<TokenId>(first_id + lane);
        }
    }
}

// Computes g = -log(E), E = -log1p(-v), v = (bits + 0.5) * 2^-32. For v < 0.5, log(1 - v) * v / (1
// - (1 - v)), whose rounding errors cancel (Kahan; Goldberg 1991, theorem 4); else 1 - v from the
// complement of the bits.
PITSTOP_INLINE F32x16 gumbel(U32x16 random) {
    const F32x16 one = set1(1.f);
    const F32x16 v = fma(from_u32(random), set1(0x1p-32f), set1(0x1p-33f));
    const F32x16 complement =
        fma(from_u32(random ^ set1_u32(0xffffffffu)), set1(0x1p-32f), set1(0x1p-33f));
    const F32x16 rounded = one - v;
    const Mask16 is_small = gt(set1(0.5f), v);
    const F32x16 log_u = log(select(is_small, rounded, complement));
    const F32x16 lost = one - rounded;  // v, with the rounding error of 1 - v
    const F32x16 corrected = select(gt(lost, zero()), log_u * v / lost, zero() - v);
    return zero() - log(zero() - select(is_small, corrected, log_u));
}

// An upper bound of gumbel(): E >= v, and log2(v) >= its exponent.
PITSTOP_INLINE F32x16 gumbel_bound(U32x16 random) {
    const F32x16 v = fma(from_u32(random), set1(0x1p-32f), set1(0x1p-33f));
    const F32x16 minus_exponent = from_i32(set1_u32(127) - shr<23>(as_u32(v)));
    return fma(minus_exponent, set1(0.6931472f), set1(0.001f));
}
constexpr float kGumbelMax = 23.f;  // at v = 2^-33 it is 22.88

// Makes the bits of the 64 ids from 4 * counter0: vector i has ids 16 i .. 16 i + 15.
PITSTOP_INLINE void random_of_64_ids(const SampleRow& params, std::uint32_t counter0, U32x16* out) {
    alignas(64) static constexpr std::uint32_t kOrder[16] = {
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    U32x16 c0 = load_u32(kOrder) + set1_u32(counter0);  // so that transpose4 puts the ids in order
    U32x16 c1 = set1_u32(params.position);
    U32x16 c2 = set1_u32(0);
    U32x16 c3 = set1_u32(0);
    std::uint32_t key0 = static_cast<std::uint32_t>(params.seed);
    std::uint32_t key1 = static_cast<std::uint32_t>(params.seed >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
        U32x16 high0, low0, high1, low1;
        mul_wide(c0, kPhiloxM0, high0, low0);
        mul_wide(c2, kPhiloxM1, high1, low1);
        c0 = high1 ^ c1 ^ set1_u32(key0);
        c1 = low1;
        c2 = high0 ^ c3 ^ set1_u32(key1);
        c3 = low0;
        key0 += kPhiloxW0;
        key1 += kPhiloxW1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
    transpose4(out);
}

// Runs the race over ids [begin, end) of the row, counted from its first, whose number
// is vocab_begin.
Choice race(
    const SampleRow& params,
    const Row& row,
    float kept_min,
    std::int64_t vocab_begin,
    std::int64_t begin,
    std::int64_t end
) {
    Choice best{
        .id = static_cast<TokenId>(vocab_begin + begin), .score = kNegInf, .kept_min = kept_min};
    const bool is_greedy = params.temperature == 0.f;
    const Row part{row.logits, end, row.inverse};
    if (is_greedy) {
        for (std::int64_t i = begin; i < end; i += kLanes)
            take_better(part.load_x(i), vocab_begin + i, best);
        return best;
    }
    constexpr std::int64_t kChunk =
        4 * kLanes;  // ids per call of Philox, aligned in the whole vocabulary
    const F32x16 minus_inf = set1(kNegInf);
    for (std::int64_t chunk = (vocab_begin + begin) / kChunk * kChunk; chunk < vocab_begin + end;
         chunk += kChunk) {
        F32x16 x[4];
        F32x16 max16 = minus_inf;
        const std::int64_t offset = chunk - vocab_begin;
        if (offset >= begin && offset + kChunk <= end) {
            for (int v = 0; v < 4; ++v) x[v] = part.load_x(offset + v * kLanes);
        } else {  // an end of the row inside the chunk
            float lanes[kChunk];
            for (std::int64_t i = 0; i < kChunk; ++i) {
                lanes[i] = kNegInf;
                if (offset + i >= begin && offset + i < end) lanes[i] = row.logits[offset + i];
            }
            const Row copied{lanes, kChunk, row.inverse};
            for (int v = 0; v < 4; ++v) x[v] = copied.load_x(v * kLanes);
        }
        for (int v = 0; v < 4; ++v) {
            x[v] = select(ge(x[v], set1(kept_min)), x[v], minus_inf);
            max16 = max(max16, x[v]);
        }
        if (bits(gt(max16, set1(best.score - kGumbelMax))) == 0) continue;
        U32x16 random[4];
        random_of_64_ids(params, static_cast<std::uint32_t>(chunk / 4), random);
        for (int v = 0; v < 4; ++v) {
            if (bits(gt(x[v] + gumbel_bound(random[v]), set1(best.score))) == 0) continue;
            take_better(x[v] + gumbel(random[v]), chunk + v * kLanes, best);
        }
    }
    return best;
}

}  // namespace

void sample(const SampleArgs& args) {
    check(args);
    if (args.num_nonfinite != nullptr) {
        count_nonfinite_cpu(
            {.logits = args.logits, .counts = args.num_nonfinite, .stream = args.stream}
        );
    }
    const std::int64_t V = args.logits.cols;
    const std::int64_t num_blocks = (V + kSampleVocabBlock - 1) / kSampleVocabBlock;
    Choice* const winners = static_cast<Choice*>(args.workspace.data);  // [R, num_blocks]
    const auto row_of = [&](std::int64_t r) PITSTOP_INLINE_LAMBDA {
        const float temperature = args.rows[r].temperature;
        return Row{
            args.logits.data + r * args.logits.stride,
            V,
            set1(temperature == 0.f ? 1.f : 1.f / temperature)};
    };

    auto find_thresholds = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
            const SampleRow& params = args.rows[r];
            args.choices[r].kept_min =
                params.temperature == 0.f ? kNegInf : kept_min_of(params, row_of(r));
        }
    };
    for_ranges(args.stream, args.logits.rows, grain_of_bytes(V * 16), find_thresholds);

    auto race_blocks = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t r = i / num_blocks;
            const std::int64_t first = i % num_blocks * kSampleVocabBlock;
            const std::int64_t last = first + kSampleVocabBlock < V ? first + kSampleVocabBlock : V;
            SampleRow params = args.rows[r];
            params.position += args.first_position;
            winners[i] =
                race(params, row_of(r), args.choices[r].kept_min, args.vocab_begin, first, last);
        }
    };
    for_ranges(
        args.stream,
        args.logits.rows * num_blocks,
        grain_of_bytes((V < kSampleVocabBlock ? V : kSampleVocabBlock) * 8),
        race_blocks
    );

    for (std::int64_t r = 0; r < args.logits.rows; ++r) {
        Choice best = winners[r * num_blocks];
        for (std::int64_t b = 1; b < num_blocks;
             ++b) {  // a later block wins only with a higher score
            if (winners[r * num_blocks + b].score > best.score) best = winners[r * num_blocks + b];
        }
        args.choices[r] = best;
    }
}

}  // namespace pitstop::kernels::PITSTOP_ISA
