#include "bench/random_tensor.h"

#include "base/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace pitstop::bench {
namespace {

std::vector<float> values_of(const RandomTensor::Args& args, std::int64_t count) {
    const RandomTensor tensor(args);
    std::vector<float> out(static_cast<std::size_t>(count), -7.f);
    if (args.dtype == WeightDtype::kF32) {
        tensor.fill(0, std::as_writable_bytes(std::span(out)));
        return out;
    }
    std::vector<std::uint16_t> stored(out.size(), 0x1234);
    tensor.fill(0, std::as_writable_bytes(std::span(stored)));
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] =
            args.dtype == WeightDtype::kBf16 ? to_float(bf16{stored[i]}) : to_float(f16{stored[i]});
    }
    return out;
}

TEST(RandomTensor, HasTheMeanAndSpreadAskedFor) {
    constexpr std::int64_t kCount = 1 << 20;
    const auto x =
        values_of({.name = "w", .seed = 3, .std = 0.5, .dtype = WeightDtype::kF32}, kCount);
    double sum = 0, sum_sq = 0, sum_fourth = 0;
    for (const float v : x) {
        const double d = static_cast<double>(v);
        sum += d, sum_sq += d * d, sum_fourth += d * d * d * d;
    }
    const double n = static_cast<double>(kCount);
    // The bounds are five standard errors: of the mean 0.5/sqrt(n), of the variance 0.25 sqrt(2/n).
    EXPECT_NEAR(sum / n, 0.0, 5 * 0.5 / std::sqrt(n));
    EXPECT_NEAR(sum_sq / n, 0.25, 5 * 0.25 * std::sqrt(2 / n) + 0.25 * 2e-3);
    EXPECT_NEAR(sum_fourth / n / (sum_sq / n * sum_sq / n), 3.0, 0.05);  // a normal's kurtosis
}

TEST(RandomTensor, AnyPartHasTheBytesOfTheWhole) {
    for (const WeightDtype dtype : {WeightDtype::kBf16, WeightDtype::kF16, WeightDtype::kF32}) {
        const RandomTensor tensor({.name = "w", .seed = 1, .std = 0.02, .dtype = dtype});
        const auto size = static_cast<std::size_t>(bytes_of(dtype));
        std::vector<float> whole(1003), part(1003, 9.f);
        const auto whole_bytes = std::as_writable_bytes(std::span(whole)).first(1003 * size);
        const auto part_bytes = std::as_writable_bytes(std::span(part)).first(1003 * size);
        tensor.fill(0, whole_bytes);
        tensor.fill(500, part_bytes.subspan(500 * size));
        tensor.fill(0, part_bytes.first(500 * size));
        EXPECT_TRUE(std::equal(whole_bytes.begin(), whole_bytes.end(), part_bytes.begin()));
    }
}

TEST(RandomTensor, NamesAndSeedsGiveOtherValues) {
    const RandomTensor::Args base{.name = "a", .seed = 1, .std = 1, .dtype = WeightDtype::kF32};
    RandomTensor::Args other_name = base, other_seed = base;
    other_name.name = "b";
    other_seed.seed = 2;
    EXPECT_NE(values_of(base, 64), values_of(other_name, 64));
    EXPECT_NE(values_of(base, 64), values_of(other_seed, 64));
    EXPECT_EQ(values_of(base, 64), values_of(base, 64));
}

TEST(RandomTensor, DtypesRoundTheSameValues) {
    const auto exact = values_of({.name = "w", .std = 0.1, .dtype = WeightDtype::kF32}, 4096);
    const auto as_bf16 = values_of({.name = "w", .std = 0.1, .dtype = WeightDtype::kBf16}, 4096);
    const auto as_f16 = values_of({.name = "w", .std = 0.1, .dtype = WeightDtype::kF16}, 4096);
    for (std::size_t i = 0; i < exact.size(); ++i) {
        // Half a unit in the last place: 2^-9 and 2^-12 of the value, or half of f16's 2^-24.
        ASSERT_NEAR(as_bf16[i], exact[i], std::fabs(exact[i]) * 0x1p-8f) << i;
        ASSERT_NEAR(as_f16[i], exact[i], std::max(std::fabs(exact[i]) * 0x1p-11f, 0x1p-25f)) << i;
    }
}

TEST(RandomTensor, APerturbationMovesByItsScale) {
    constexpr std::int64_t kCount = 1 << 18;
    const RandomTensor::Args base{.name = "w", .std = 0.5, .dtype = WeightDtype::kF32};
    RandomTensor::Args moved = base;
    moved.perturbation = Perturbation{.seed = 5, .scale = 0.01};
    const auto x = values_of(base, kCount), y = values_of(moved, kCount);
    double sum_sq = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double d = static_cast<double>(y[i]) - static_cast<double>(x[i]);
        sum_sq += d * d;
    }
    EXPECT_NEAR(std::sqrt(sum_sq / static_cast<double>(kCount)), 0.005, 0.005 * 0.01);

    const auto norm = values_of(
        {.name = "n",
         .mean = 1,
         .dtype = WeightDtype::kF32,
         .perturbation = Perturbation{.seed = 5, .scale = 0.01}},
        1024
    );
    EXPECT_NE(norm[0], norm[1]);
    for (const float v : norm) ASSERT_NEAR(v, 1.f, 0.05f);
}

}  // namespace
}  // namespace pitstop::bench
