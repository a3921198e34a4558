#include "kernels/nonfinite.h"

#include "kernels/reference.h"
#include "kernels/runtime/thread_pool.h"

#include <bit>
#include <cmath>

namespace pitstop::kernels {

void check(const CountNonfiniteArgs& args) {
    CHECK(is_valid(args.logits));
    CHECK(args.logits.cols <= std::numeric_limits<std::int32_t>::max());
    CHECK(args.counts != nullptr || args.logits.rows == 0);
}

void count_nonfinite_ref(const CountNonfiniteArgs& args) {
    check(args);
    for (std::int64_t r = 0; r < args.logits.rows; ++r) {
        args.counts[r] = 0;
        for (const float x : row(args.logits, r)) args.counts[r] += std::isfinite(x) ? 0 : 1;
    }
}

// Infinities and NaNs have all exponent bits set. Counted in blocks, so that the compiler
// uses vectors.
void count_nonfinite_cpu(const CountNonfiniteArgs& args) {
    check(args);
    auto count = [&](std::int64_t begin, std::int64_t end, int) {
        constexpr std::size_t kBlock = 16;
        constexpr std::uint32_t kExponent = 0x7f800000u;
        const auto is_bad = [](float x) -> std::uint32_t {
            return (std::bit_cast<std::uint32_t>(x) & kExponent) == kExponent ? 1u : 0u;
        };
        for (std::int64_t r = begin; r < end; ++r) {
            const std::span<const float> x = row(args.logits, r);
            std::uint32_t num = 0;
            std::size_t i = 0;
            for (; i + kBlock <= x.size(); i += kBlock) {
                for (std::size_t k = 0; k < kBlock; ++k) num += is_bad(x[i + k]);
            }
            for (; i < x.size(); ++i) num += is_bad(x[i]);
            args.counts[r] = static_cast<std::int32_t>(num);
        }
    };
    parallel_for(args.stream, args.logits.rows, /*grain=*/1, count);
}

}  // namespace pitstop::kernels
