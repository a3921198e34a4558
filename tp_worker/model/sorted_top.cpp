#include "tp_worker/model/sorted_top.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace pitstop::tp_worker {
namespace {

// Maps logits to integers in the same order; -0 is 0.
std::uint32_t ordered_image(float logit) {
    const auto bits = std::bit_cast<std::uint32_t>(logit + 0.f);
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace

void sort_top(std::span<const float> logits, std::span<TokenId> ids, std::span<float> values) {
    std::vector<std::uint64_t> keys(logits.size());  // the image, then the id counted from the end
    for (std::size_t i = 0; i < keys.size(); ++i)
        keys[i] = std::uint64_t{ordered_image(logits[i])} << 32 | static_cast<std::uint32_t>(~i);
    const auto end = keys.begin() + static_cast<std::ptrdiff_t>(ids.size());
    if (end != keys.end()) std::ranges::nth_element(keys, end, std::ranges::greater{});
    std::sort(keys.begin(), end, std::ranges::greater{});
    for (std::size_t k = 0; k < ids.size(); ++k) {
        const auto id = static_cast<std::int32_t>(~static_cast<std::uint32_t>(keys[k]));
        ids[k] = TokenId{id};
        values[k] = logits[static_cast<std::size_t>(id)];
    }
}

}  // namespace pitstop::tp_worker
