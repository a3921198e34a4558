// The digest of a weight tensor: the same for any sharding and any order of transfer.
//
// Take the whole tensor row-major, pad each row (last dimension) with zero bytes to whole 8-byte
// words, read words little-endian and number them i = 0, 1, ... over the whole tensor. Then, mod
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
// Test vectors (tests/kernels/digest_vectors.json has more, and the numpy reference beside it):
//   1 row of 8 zero bytes        lane0 e220a8397b1dcdaf  lane1 = e220a839 * 7b1dcdaf
//
// A shard is a rectangle of the tensor; the digests of shards that cover it add up to its digest.
// The cut of a row must fall on a word: first_word counts words. A row that ends the tensor's row
// may have any number of bytes.
#pragma once

#include "kernels/tensor.h"

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

// Words of a row of the whole tensor.
[[nodiscard]] constexpr std::uint64_t digest_words(std::int64_t row_bytes) {
    return (static_cast<std::uint64_t>(row_bytes) + 7) / 8;
}

struct DigestArgs {
    const void* data = nullptr;         // the shard, any alignment
    std::int64_t rows = 0;              // of the shard
    std::int64_t row_bytes = 0;         // of the shard
    std::int64_t row_stride_bytes = 0;  // from row to row of the shard
    std::uint64_t first_word = 0;       // number of the shard's first word in the whole tensor
    std::uint64_t words_per_row = 0;    // of the whole tensor, >= digest_words(row_bytes)
    Digest* sum = nullptr;              // the shard's digest is ADDED here
    Stream stream{};
};

void check(const DigestArgs& args);
void digest_ref(const DigestArgs& args);
void digest_cuda(const DigestArgs& args);

}  // namespace pitstop
