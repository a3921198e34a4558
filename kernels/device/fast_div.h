// Division by a number known at launch, as a multiplication. For the host and the device.
// Source: Granlund and Montgomery 1994, "Division by invariant integers using multiplication",
// figure 4.1, for dividends below 2^31.
#pragma once

#include "base/check.h"

#include <cstdint>

namespace pitstop::kernels {

class FastDiv {
  public:
    static constexpr std::int64_t kDividendMax = (std::int64_t{1} << 31) - 1;

    FastDiv() = default;
    // REQUIRES: 1 <= divisor <= kDividendMax.
    explicit constexpr FastDiv(std::int64_t divisor)
        : divisor_(static_cast<std::uint32_t>(divisor)) {
        CHECK(divisor >= 1 && divisor <= kDividendMax);
        while ((std::int64_t{1} << shift_) < divisor) ++shift_;
        // 2^(31 + shift) <= multiplier * divisor < 2^(31 + shift) + 2^shift: exact below 2^31.
        const std::uint64_t numerator = std::uint64_t{1} << (31 + shift_);
        multiplier_ = static_cast<std::uint32_t>((numerator + divisor_ - 1) / divisor_);
    }

    // REQUIRES: 0 <= dividend <= kDividendMax.
    [[nodiscard]] constexpr std::uint32_t quotient(std::uint32_t dividend) const {
        return static_cast<std::uint32_t>((std::uint64_t{dividend} * multiplier_) >> (31 + shift_));
    }
    [[nodiscard]] constexpr std::uint32_t divisor() const { return divisor_; }

  private:
    std::uint32_t divisor_ = 1;
    std::uint32_t multiplier_ = 0x80000000u;
    std::uint32_t shift_ = 0;
};

}  // namespace pitstop::kernels
