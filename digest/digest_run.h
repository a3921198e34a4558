// The loop behind all digesting, over bytes that follow each other in memory and in their tensor
// (base/digest.h has the definition).
//
// The same pass also counts infinities and NaNs, since the words are in registers. A second pass
// would cost as much as the digest.
//
// The pass can also copy the bytes. From a mapped file that is nearly as fast as copying
// alone, because digesting alone would wait for memory.
//
// A thread digests 23 GB/s with AVX-512, 12 with AVX2 and 3 with neither (AMD EPYC with AVX-512,
// bench/kernels_bench --threads 1 --filter digest).
#pragma once

#include "base/digest.h"

#include <cstddef>
#include <cstdint>

namespace pitstop {
enum class IsaLevel : std::uint8_t;  // base/isa.h, whose fmt CUDA's compiler cannot read
}  // namespace pitstop

namespace pitstop::digest {

// kPastCache suits copies that are read much later, kCached copies that are read at once.
enum class CopyPath : std::uint8_t { kPastCache, kCached };

struct DigestRun {
    const std::byte* data = nullptr;  // any alignment
    std::int64_t num_bytes = 0;       // if the last word is not whole, zeros pad it
    std::uint64_t first_word = 0;     // number of the first word in the whole tensor
    // If not null, the bytes are stored here as well. Any alignment (64 is fastest); must not
    // overlap anything else.
    std::byte* copy_to = nullptr;
    CopyPath copy_path = CopyPath::kPastCache;
};

struct DigestSum {
    Digest digest{};
    std::uint64_t num_nonfinite = 0;  // infinities and NaNs, with the bytes read as bf16
};

// Marks, among the four bf16 numbers in a word, those whose exponent bits are all set. A carry out
// of a number's exponent stops at its sign bit.
[[nodiscard]] constexpr std::uint64_t nonfinite_bits(std::uint64_t word) {
    return ((word & 0x7f807f807f807f80u) + 0x0080008000800080u) & 0x8000800080008000u;
}

// Adds the run's sums to `sum`. Any thread that learns of the copy afterwards may read it.
using AddRun = void (*)(const DigestRun& run, DigestSum& sum);

// Returns the function for the instructions of this level. REQUIRES: level <= best_isa().
[[nodiscard]] AddRun add_run_on(IsaLevel level);

}  // namespace pitstop::digest
