#include "kernels/sampling.h"

#include "kernels/nonfinite.h"
#include "kernels/philox.h"
#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace pitstop::kernels {
namespace {

float without_nan(float x) { return std::isnan(x) ? kNegInf : x; }

// Computes kept_min as it is defined, by sorting.
float kept_min_of(const SampleRow& row, std::vector<float> x) {
    std::sort(x.begin(), x.end(), std::greater<>());
    const float max = x.front();
    float kept_min = min_p_threshold(max, row.min_p);
    if (static_cast<std::size_t>(row.top_k) < x.size()) {
        kept_min = std::max(kept_min, x[static_cast<std::size_t>(row.top_k) - 1]);
    }
    if (row.top_p >= 1.f) return kept_min;
    const auto mass = [&](float value) {
        const double difference =
            value == max ? 0.0 : double{value} - double{max};  // also for +inf
        return static_cast<std::uint64_t>(std::llrint(std::exp(difference) * double{kMassOne}));
    };
    std::uint64_t total = 0;
    for (const float value : x) total += value >= kept_min ? mass(value) : 0;
    const std::uint64_t target = top_p_target(row.top_p, total);
    std::uint64_t above = 0;
    for (const float value : x) {
        above += mass(value);
        if (above >= target) return std::max(kept_min, value);
    }
    return kept_min;
}

}  // namespace

float min_p_threshold(float max, float min_p) {
    if (min_p <= 0.f) return kNegInf;
    return static_cast<float>(double{max} + std::log(double{min_p}));
}

std::uint64_t top_p_target(float top_p, std::uint64_t total_mass) {
    const auto target =
        static_cast<std::uint64_t>(std::ceil(double{top_p} * static_cast<double>(total_mass)));
    return std::clamp<std::uint64_t>(target, 1, std::max<std::uint64_t>(1, total_mass));
}

void check(const SampleArgs& args) {
    CHECK(is_valid(args.logits));
    CHECK(args.vocab_begin >= 0);
    CHECK(args.logits.rows == 0 || (args.rows != nullptr && args.choices != nullptr));
    CHECK(args.workspace.bytes >= sample_workspace_bytes(args.logits.rows, args.logits.cols));
}

void sample_ref(const SampleArgs& args) {
    check(args);
    if (args.num_nonfinite != nullptr)
        count_nonfinite_ref({.logits = args.logits, .counts = args.num_nonfinite});
    for (std::int64_t r = 0; r < args.logits.rows; ++r) {
        const SampleRow& row = args.rows[r];
        const float* const logits = args.logits.data + r * args.logits.stride;
        const bool is_greedy = row.temperature == 0.f;
        const float inverse = is_greedy ? 1.f : 1.f / row.temperature;
        std::vector<float> x(logits, logits + args.logits.cols);
        for (float& value : x) value = without_nan(value * inverse);
        const float kept_min = is_greedy ? kNegInf : kept_min_of(row, x);

        double best = -std::numeric_limits<double>::infinity();
        std::int64_t best_id = args.vocab_begin;
        for (std::int64_t i = 0; i < args.logits.cols; ++i) {
            const std::int64_t id = args.vocab_begin + i;
            double score = x[static_cast<std::size_t>(i)];
            if (score < double{kept_min}) continue;
            if (!is_greedy) {
                const auto words = philox(
                    {static_cast<std::uint32_t>(id / 4), row.position + args.first_position, 0, 0},
                    {static_cast<std::uint32_t>(row.seed),
                     static_cast<std::uint32_t>(row.seed >> 32)}
                );
                const double v = (words[static_cast<std::size_t>(id % 4)] + 0.5) * 0x1p-32;
                score -= std::log(-std::log1p(-v));
            }
            if (score > best) {
                best = score;
                best_id = id;
            }
        }
        args.choices[r] = {
            .id = static_cast<TokenId>(best_id),
            .score = static_cast<float>(best),
            .kept_min = kept_min};
    }
}

std::int64_t sample_workspace_bytes(std::int64_t num_rows, std::int64_t vocab_len) {
    const std::int64_t num_blocks = (vocab_len + kSampleVocabBlock - 1) / kSampleVocabBlock;
    return num_rows * num_blocks * static_cast<std::int64_t>(sizeof(Choice));
}

}  // namespace pitstop::kernels
