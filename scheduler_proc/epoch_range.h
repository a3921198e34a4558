// A range of weight epochs: the epochs that computed a page, a prefix, or all the KV that a token
// attended to.
#pragma once

#include "base/ids.h"

#include <algorithm>

namespace pitstop::scheduler {

// Both ends are included. Epochs count from 1; the default, 0 to 0, means "nothing yet".
struct EpochRange {
    Epoch min{};
    Epoch max{};

    [[nodiscard]] bool is_empty() const { return raw(min) == 0; }
    [[nodiscard]] bool contains(const EpochRange& other) const {
        return min <= other.min && other.max <= max;
    }
    void add(const EpochRange& other) {
        if (other.is_empty()) return;
        min = is_empty() ? other.min : std::min(min, other.min);
        max = std::max(max, other.max);
    }
    void add(Epoch epoch) { add(EpochRange{epoch, epoch}); }

    friend bool operator==(const EpochRange&, const EpochRange&) = default;
};

}  // namespace pitstop::scheduler
