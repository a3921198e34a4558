#include "tp_worker/weights/exact_bf16.h"

#include "base/check.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace pitstop::tp_worker {
namespace {

constexpr std::size_t kWide = sizeof(std::uint32_t);
constexpr std::size_t kNarrow = sizeof(std::uint16_t);
// A block is copied out before it is written, so that the two forms may overlap. Its length is
// constant for the compiler, which makes vector code of the loops.
constexpr std::size_t kBlock = 1024;
using Wide = std::array<std::uint32_t, kBlock>;
using Narrow = std::array<std::uint16_t, kBlock>;

std::size_t num_in(std::span<const std::byte> numbers) {
    CHECK(numbers.size() % kWide == 0);
    return numbers.size() / kWide;
}

}  // namespace

bool are_bf16(std::span<const std::byte> numbers) {
    const std::size_t total = num_in(numbers);
    Wide wide{};  // after a last block that is not full, numbers that were compared before
    for (std::size_t at = 0; at < total; at += kBlock) {
        const std::size_t num = std::min(kBlock, total - at);
        std::memcpy(wide.data(), numbers.data() + at * kWide, num * kWide);
        std::uint32_t bits = 0;
        for (std::size_t i = 0; i < kBlock; ++i) bits |= wide[i];
        if ((bits & 0xffffU) != 0) return false;
    }
    return true;
}

void narrow(std::span<std::byte> numbers) {
    const std::size_t total = num_in(numbers);
    Wide wide{};
    Narrow narrow{};
    for (std::size_t at = 0; at < total; at += kBlock) {
        const std::size_t num = std::min(kBlock, total - at);
        std::memcpy(wide.data(), numbers.data() + at * kWide, num * kWide);
        for (std::size_t i = 0; i < kBlock; ++i)
            narrow[i] = static_cast<std::uint16_t>(wide[i] >> 16);
        std::memcpy(numbers.data() + at * kNarrow, narrow.data(), num * kNarrow);
    }
}

// The last block first: no block is written over numbers that are yet to be read.
void widen(std::span<std::byte> numbers) {
    Wide wide{};
    Narrow narrow{};
    for (std::size_t end = num_in(numbers); end > 0;) {
        const std::size_t num = std::min(kBlock, end);
        const std::size_t at = end - num;
        std::memcpy(narrow.data(), numbers.data() + at * kNarrow, num * kNarrow);
        for (std::size_t i = 0; i < kBlock; ++i)
            wide[i] = static_cast<std::uint32_t>(narrow[i]) << 16;
        std::memcpy(numbers.data() + at * kWide, wide.data(), num * kWide);
        end = at;
    }
}

}  // namespace pitstop::tp_worker
