// Defines the digest of weights: 128 bits that do not depend on sharding or on the
// order of arrival.
//
// To digest a tensor, take it whole and row-major. Pad each row (last dimension) with zero bytes to
// whole 8-byte words, read little-endian. Number the words i = 0, 1, ... over the tensor. Then, mod
// 2^64:
//
//   h_i    = mix64(word_i + (i + 1) * 0x9e3779b97f4a7c15)
//   lane0  = sum_i h_i
//   lane1  = sum_i (h_i >> 32) * (h_i & 0xffffffff)
//   mix64(z):  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
//              z = (z ^ (z >> 27)) * 0x94d049bb133111eb
//              return z ^ (z >> 31)
// mix64 is the finalizer of SplitMix64 (Steele, Lea and Flood 2014; Stafford's variant 13), and the
// constant is its increment: h of a tensor of zeros is SplitMix64's own sequence from seed 0.
//
// A version's digest is the same function of a text, taken as one row. For each tensor, in
// ascending byte order of the names, the text has the line "<name> <dtype> <d0>x<d1>... <32 hex
// digits>\n".
//
// The digest detects lost, swapped, stale and damaged bytes; it does not protect against
// deliberate forgery.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pitstop {

struct Digest {
    std::uint64_t lane0 = 0;
    std::uint64_t lane1 = 0;

    Digest& operator+=(const Digest& other) {
        lane0 += other.lane0;
        lane1 += other.lane1;
        return *this;
    }
    friend bool operator==(const Digest&, const Digest&) = default;
};

inline constexpr std::uint64_t kDigestStep = 0x9e3779b97f4a7c15u;

[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

inline constexpr std::int64_t kDigestWordBytes = 8;

// Returns how many words a row of the whole tensor has.
[[nodiscard]] constexpr std::uint64_t digest_words(std::int64_t row_bytes) {
    return static_cast<std::uint64_t>((row_bytes + kDigestWordBytes - 1) / kDigestWordBytes);
}

// Digests a text as one row. For tensors use digest/ and kernels/digest.h instead.
[[nodiscard]] Digest digest_of(std::string_view text);

// Writes 32 lower-case hex digits: lane 0, then lane 1.
[[nodiscard]] std::string to_hex(const Digest& digest);
[[nodiscard]] std::optional<Digest> digest_from_hex(std::string_view hex);

}  // namespace pitstop
