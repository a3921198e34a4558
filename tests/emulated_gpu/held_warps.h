// The warps of a block that are behind the others for a while: this happens on a GPU, and must not
// matter.
#pragma once

#include "tests/emulated_gpu/random.h"

#include <cstddef>
#include <cstdint>

namespace pitstop::emulator {

// Warps that stand still for some rounds while the others continue as far as they can.
class HeldWarps {
  public:
    // At random times holds this warp, or its warpgroup.
    void choose(Random& random, std::size_t warp) {
        if (rounds_ > 0 || random.below(kOneIn) != 0) return;
        const std::size_t num = random.below(2) == 0 ? 1 : kWarpgroupWarps;
        begin_ = warp / num * num;
        end_ = begin_ + num;
        rounds_ = 1 + static_cast<int>(random.below(kRoundsMax));
    }
    [[nodiscard]] bool has(std::size_t warp) const {
        return rounds_ > 0 && warp >= begin_ && warp < end_;
    }
    // True: the others wait for the held warps, which continue.
    bool end_round(bool has_progress) {
        const bool was_held = rounds_ > 0;
        rounds_ = was_held && has_progress ? rounds_ - 1 : 0;
        return was_held && !has_progress;
    }

  private:
    static constexpr std::uint64_t kOneIn = 8;  // one round or arrival in 8 holds warps
    static constexpr std::size_t kWarpgroupWarps = 4;
    static constexpr std::uint64_t kRoundsMax = 64;
    std::size_t begin_ = 0, end_ = 0;
    int rounds_ = 0;
};

}  // namespace pitstop::emulator
