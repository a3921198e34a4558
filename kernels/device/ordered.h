// Maps floats to unsigned images in the order of the floats (-0 below +0), so that integer
// instructions can compute a maximum and a threshold can be found digit by digit. For the host and
// the device.
#pragma once

#include <bit>
#include <cstdint>

namespace pitstop::kernels {

[[nodiscard]] constexpr std::uint32_t ordered_image(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

[[nodiscard]] constexpr float from_ordered_image(std::uint32_t image) {
    const std::uint32_t u = (image & 0x80000000u) != 0 ? image & 0x7fffffffu : ~image;
    return std::bit_cast<float>(u);
}

}  // namespace pitstop::kernels
