// Compiled once per level, into the namespace PITSTOP_ISA. No symbol may have the same
// name in two levels: the linker keeps one copy, and an older machine might not be able to run it.
// So this file uses no std templates, and no inline functions of other files that the compiler
// might not inline. A test checks the objects' symbols.
#include "digest/levels.h"

#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if !defined(PITSTOP_ISA)
#error "compiled once per level, by digest/CMakeLists.txt"
#endif

namespace pitstop::digest::PITSTOP_ISA {
namespace {

#define PITSTOP_INLINE [[gnu::always_inline]] inline

constexpr std::uint64_t kFactor0 = 0xbf58476d1ce4e5b9u;  // of mix64
constexpr std::uint64_t kFactor1 = 0x94d049bb133111ebu;

// Equals mix64 of base/digest.h and nonfinite_bits of digest_run.h, at this level.
PITSTOP_INLINE void add_word(DigestSum& sum, std::uint64_t word, std::uint64_t index) {
    // A product adds up four marks of 0 or 1: baseline x86-64 has no instruction that counts bits.
    const std::uint64_t carried = (word & 0x7f807f807f807f80u) + 0x0080008000800080u;
    sum.num_nonfinite += ((carried >> 15 & 0x0001000100010001u) * 0x0001000100010001u) >> 48;
    std::uint64_t z = word + (index + 1) * kDigestStep;
    z = (z ^ (z >> 30)) * kFactor0;
    z = (z ^ (z >> 27)) * kFactor1;
    z ^= z >> 31;
    sum.digest.lane0 += z;
    sum.digest.lane1 += (z >> 32) * (z & 0xffffffffu);
}

// The copy of the words that is stored: none, through the cache, or in whole lines that bypass it.
enum class Copy { kNone, kPlain, kStream };

// Each level's add_words adds words [0, n - n % kWords) of the run and returns that number.

#if defined(__AVX512DQ__)

PITSTOP_INLINE __m512i set1(std::uint64_t word) {
    return _mm512_set1_epi64(static_cast<long long>(word));
}

PITSTOP_INLINE __m512i mix64x8(__m512i z) {
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 30)), set1(kFactor0));
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 27)), set1(kFactor1));
    return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

constexpr std::uintptr_t kStreamBytes = 64;  // alignment of stores that bypass the cache

// The words are unsigned, since the sums must wrap: the header's _mm512_reduce_add_epi64 adds
// signed words.
PITSTOP_INLINE std::uint64_t sum_of(__m512i lanes) {
    alignas(64) std::uint64_t words[8];
    _mm512_store_si512(words, lanes);
    return words[0] + words[1] + words[2] + words[3] + words[4] + words[5] + words[6] + words[7];
}

// Runs four independent chains of eight words.
template <Copy kCopy>
std::int64_t add_words(DigestSum& sum, const DigestRun& run, std::int64_t n) {
    __m512i lane0[4];
    __m512i lane1[4];
    __m512i offset[4];  // (i + 1) * step of the chain's next eight words
    const __m512i lane = _mm512_setr_epi64(1, 2, 3, 4, 5, 6, 7, 8);
    const __m512i lane_offset = _mm512_mullo_epi64(lane, set1(kDigestStep));
    for (int c = 0; c < 4; ++c) {
        const std::uint64_t first = run.first_word + static_cast<std::uint64_t>(c) * 8;
        lane0[c] = lane1[c] = _mm512_setzero_si512();
        offset[c] = _mm512_add_epi64(lane_offset, set1(first * kDigestStep));
    }
    const __m512i advance = set1(32 * kDigestStep);
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    std::uint64_t num_nonfinite = 0;
    std::int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int c = 0; c < 4; ++c) {
            const __m512i words = _mm512_loadu_si512(run.data + (i + std::int64_t{c} * 8) * 8);
            if constexpr (kCopy != Copy::kNone) {
                auto* to = reinterpret_cast<__m512i*>(run.copy_to + (i + std::int64_t{c} * 8) * 8);
                kCopy == Copy::kStream ? _mm512_stream_si512(to, words)
                                       : _mm512_storeu_si512(to, words);
            }
            num_nonfinite += static_cast<std::uint64_t>(__builtin_popcount(
                _mm512_cmpeq_epi16_mask(_mm512_and_si512(words, exponent), exponent)
            ));
            const __m512i h = mix64x8(_mm512_add_epi64(words, offset[c]));
            lane0[c] = _mm512_add_epi64(lane0[c], h);
            lane1[c] = _mm512_add_epi64(lane1[c], _mm512_mul_epu32(h, _mm512_srli_epi64(h, 32)));
            offset[c] = _mm512_add_epi64(offset[c], advance);
        }
    }
    for (int c = 0; c < 4; ++c) {
        sum.digest.lane0 += sum_of(lane0[c]);
        sum.digest.lane1 += sum_of(lane1[c]);
    }
    sum.num_nonfinite += num_nonfinite;
    return i;
}

#elif defined(__AVX2__)

PITSTOP_INLINE __m256i set1(std::uint64_t word) {
    return _mm256_set1_epi64x(static_cast<long long>(word));
}

// Computes z * factor mod 2^64 from 32-bit products: low * low + 2^32 * (high * low + low * high).
PITSTOP_INLINE __m256i mul(__m256i z, std::uint64_t factor) {
    const __m256i low = _mm256_mul_epu32(z, set1(factor));
    const __m256i mixed = _mm256_add_epi64(
        _mm256_mul_epu32(_mm256_srli_epi64(z, 32), set1(factor)),
        _mm256_mul_epu32(z, set1(factor >> 32))
    );
    return _mm256_add_epi64(low, _mm256_slli_epi64(mixed, 32));
}

PITSTOP_INLINE __m256i mix64x4(__m256i z) {
    z = mul(_mm256_xor_si256(z, _mm256_srli_epi64(z, 30)), kFactor0);
    z = mul(_mm256_xor_si256(z, _mm256_srli_epi64(z, 27)), kFactor1);
    return _mm256_xor_si256(z, _mm256_srli_epi64(z, 31));
}

PITSTOP_INLINE std::uint64_t sum_of(__m256i lanes) {
    alignas(32) std::uint64_t words[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(words), lanes);
    return words[0] + words[1] + words[2] + words[3];
}

constexpr std::uintptr_t kStreamBytes = 32;  // alignment of stores that bypass the cache

// Runs two independent chains of four words: more would not fit into sixteen registers.
template <Copy kCopy>
std::int64_t add_words(DigestSum& sum, const DigestRun& run, std::int64_t n) {
    __m256i lane0 = _mm256_setzero_si256();
    __m256i lane1 = _mm256_setzero_si256();
    __m256i offset[2];  // (i + 1) * step of the chain's next four words
    for (int c = 0; c < 2; ++c) {
        const std::uint64_t first = run.first_word + static_cast<std::uint64_t>(c) * 4 + 1;
        offset[c] = _mm256_setr_epi64x(
            static_cast<long long>(first * kDigestStep),
            static_cast<long long>((first + 1) * kDigestStep),
            static_cast<long long>((first + 2) * kDigestStep),
            static_cast<long long>((first + 3) * kDigestStep)
        );
    }
    const __m256i advance = set1(8 * kDigestStep);
    const __m256i exponent = _mm256_set1_epi16(0x7f80);
    std::uint64_t num_nonfinite_x2 = 0;  // a comparison's mask has two bits per number
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int c = 0; c < 2; ++c) {
            const __m256i words = _mm256_loadu_si256(
                reinterpret_cast<const __m256i*>(run.data + (i + std::int64_t{c} * 4) * 8)
            );
            if constexpr (kCopy != Copy::kNone) {
                auto* to = reinterpret_cast<__m256i*>(run.copy_to + (i + std::int64_t{c} * 4) * 8);
                kCopy == Copy::kStream ? _mm256_stream_si256(to, words)
                                       : _mm256_storeu_si256(to, words);
            }
            const __m256i is_nonfinite =
                _mm256_cmpeq_epi16(_mm256_and_si256(words, exponent), exponent);
            num_nonfinite_x2 += static_cast<std::uint64_t>(
                __builtin_popcount(static_cast<std::uint32_t>(_mm256_movemask_epi8(is_nonfinite)))
            );
            const __m256i h = mix64x4(_mm256_add_epi64(words, offset[c]));
            lane0 = _mm256_add_epi64(lane0, h);
            lane1 = _mm256_add_epi64(lane1, _mm256_mul_epu32(h, _mm256_srli_epi64(h, 32)));
            offset[c] = _mm256_add_epi64(offset[c], advance);
        }
    }
    sum.digest.lane0 += sum_of(lane0);
    sum.digest.lane1 += sum_of(lane1);
    sum.num_nonfinite += num_nonfinite_x2 / 2;
    return i;
}

#else

template <Copy kCopy>
std::int64_t add_words(DigestSum& sum, const DigestRun& run, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        std::uint64_t word;
        std::memcpy(&word, run.data + i * 8, 8);
        if constexpr (kCopy != Copy::kNone) std::memcpy(run.copy_to + i * 8, &word, 8);
        add_word(sum, word, run.first_word + static_cast<std::uint64_t>(i));
    }
    return n;
}

#endif

std::int64_t add_most(DigestSum& sum, const DigestRun& run) {
    const std::int64_t n = run.num_bytes / 8;
    if (run.copy_to == nullptr) return add_words<Copy::kNone>(sum, run, n);
#if defined(__AVX2__)
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(run.copy_to) % kStreamBytes == 0;
    if (run.copy_path == CopyPath::kPastCache && is_aligned) {
        const std::int64_t num = add_words<Copy::kStream>(sum, run, n);
        _mm_sfence();  // orders such stores before the store that announces them to other threads
        return num;
    }
#endif
    return add_words<Copy::kPlain>(sum, run, n);
}

}  // namespace

void add_run(const DigestRun& run, DigestSum& to) {
    DigestSum sum;  // in registers: `to` might overlap the bytes
    for (std::int64_t i = add_most(sum, run); i * 8 < run.num_bytes; ++i) {
        std::uint64_t word = 0;
        const std::int64_t left = run.num_bytes - i * 8;
        const auto size = static_cast<std::size_t>(left < 8 ? left : 8);
        std::memcpy(&word, run.data + i * 8, size);
        if (run.copy_to != nullptr) std::memcpy(run.copy_to + i * 8, &word, size);
        add_word(sum, word, run.first_word + static_cast<std::uint64_t>(i));
    }
    to.digest.lane0 += sum.digest.lane0;
    to.digest.lane1 += sum.digest.lane1;
    to.num_nonfinite += sum.num_nonfinite;
}

}  // namespace pitstop::digest::PITSTOP_ISA
