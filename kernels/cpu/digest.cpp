#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"

namespace pitstop::PITSTOP_ISA {
namespace {

struct Lanes {
    std::uint64_t lane0 = 0;
    std::uint64_t lane1 = 0;
    std::uint64_t num_nonfinite = 0;
};

// digest.h's mix64 and nonfinite_bits again, of this level.
PITSTOP_INLINE void add_word(Lanes& sum, std::uint64_t word, std::uint64_t index) {
    const std::uint64_t carried = (word & 0x7f807f807f807f80u) + 0x0080008000800080u;
    sum.num_nonfinite +=
        static_cast<std::uint64_t>(__builtin_popcountll(carried & 0x8000800080008000u));
    std::uint64_t z = word + (index + 1) * kDigestStep;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    sum.lane0 += z;
    sum.lane1 += (z >> 32) * (z & 0xffffffffu);
}

#if defined(__AVX512DQ__)

PITSTOP_INLINE __m512i mix64x8(__m512i z) {
    z = _mm512_mullo_epi64(
        _mm512_xor_si512(z, _mm512_srli_epi64(z, 30)),
        _mm512_set1_epi64(static_cast<long long>(0xbf58476d1ce4e5b9u))
    );
    z = _mm512_mullo_epi64(
        _mm512_xor_si512(z, _mm512_srli_epi64(z, 27)),
        _mm512_set1_epi64(static_cast<long long>(0x94d049bb133111ebu))
    );
    return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

// Words [0, n - n % 32) of `bytes`, in four independent chains; returns how many that is.
std::int64_t add_words(
    Lanes& sum, const std::byte* bytes, std::int64_t n, std::uint64_t first_word
) {
    const auto steps = [](std::uint64_t words) PITSTOP_INLINE_LAMBDA {
        return _mm512_set1_epi64(static_cast<long long>(words * kDigestStep));
    };
    __m512i lane0[4];
    __m512i lane1[4];
    __m512i offset[4];  // (i + 1) * step of the chain's next eight words
    const __m512i lane = _mm512_setr_epi64(1, 2, 3, 4, 5, 6, 7, 8);
    const __m512i lane_offset = _mm512_mullo_epi64(lane, steps(1));
    for (int c = 0; c < 4; ++c) {
        lane0[c] = lane1[c] = _mm512_setzero_si512();
        offset[c] =
            _mm512_add_epi64(lane_offset, steps(first_word + static_cast<std::uint64_t>(c) * 8));
    }
    const __m512i advance = steps(32);
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    std::uint64_t num_nonfinite = 0;
    std::int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int c = 0; c < 4; ++c) {
            const __m512i words = _mm512_loadu_si512(bytes + (i + c * 8) * 8);
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
        sum.lane0 += static_cast<std::uint64_t>(_mm512_reduce_add_epi64(lane0[c]));
        sum.lane1 += static_cast<std::uint64_t>(_mm512_reduce_add_epi64(lane1[c]));
    }
    sum.num_nonfinite += num_nonfinite;
    return i;
}

#else  // a 64-bit product takes AVX2 ten instructions; the integer unit does as well

std::int64_t add_words(
    Lanes& sum, const std::byte* bytes, std::int64_t n, std::uint64_t first_word
) {
    for (std::int64_t i = 0; i < n; ++i) {
        std::uint64_t word;
        std::memcpy(&word, bytes + i * 8, 8);
        add_word(sum, word, first_word + static_cast<std::uint64_t>(i));
    }
    return n;
}

#endif

// `num_bytes` of one row, from a word boundary.
void add_bytes(
    Lanes& sum, const std::byte* bytes, std::int64_t num_bytes, std::uint64_t first_word
) {
    for (std::int64_t i = add_words(sum, bytes, num_bytes / 8, first_word); i * 8 < num_bytes;
         ++i) {
        std::uint64_t word = 0;
        const std::int64_t left = num_bytes - i * 8;
        std::memcpy(&word, bytes + i * 8, static_cast<std::size_t>(left < 8 ? left : 8));
        add_word(sum, word, first_word + static_cast<std::uint64_t>(i));
    }
}

}  // namespace

void digest(const DigestArgs& args) {
    check(args);
    constexpr std::int64_t kBytesPerCut =
        256 << 10;  // a wide row is cut, so that one row uses all threads
    const std::int64_t cuts = (args.row_bytes + kBytesPerCut - 1) / kBytesPerCut;
    if (cuts == 0) return;
    Lanes total;  // added to by all threads; integer sums, so their order does not matter
    auto pieces = [&](std::int64_t begin, std::int64_t end) {
        Lanes sum;
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t r = i / cuts;
            const std::int64_t c = i % cuts * kBytesPerCut;
            const std::int64_t n =
                args.row_bytes - c < kBytesPerCut ? args.row_bytes - c : kBytesPerCut;
            const std::uint64_t first_word = args.first_word +
                                             static_cast<std::uint64_t>(r) * args.words_per_row +
                                             static_cast<std::uint64_t>(c / 8);
            add_bytes(
                sum,
                static_cast<const std::byte*>(args.data) + r * args.row_stride_bytes + c,
                n,
                first_word
            );
        }
        __atomic_fetch_add(
            &total.lane0, sum.lane0, __ATOMIC_RELAXED
        );  // std::atomic is not of this level
        __atomic_fetch_add(&total.lane1, sum.lane1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&total.num_nonfinite, sum.num_nonfinite, __ATOMIC_RELAXED);
    };
    for_ranges(args.stream, args.rows * cuts, grain_of_bytes(args.row_bytes / cuts), pieces);
    args.sum->lane0 += total.lane0;
    args.sum->lane1 += total.lane1;
    if (args.num_nonfinite != nullptr) *args.num_nonfinite += total.num_nonfinite;
}

}  // namespace pitstop::PITSTOP_ISA
