// Digests a weight tensor, shard by shard: base/digest.h defines the digest.
//
// Test vectors (tests/digest/digest_vectors.json has more, and the numpy reference beside it):
//   1 row of 8 zero bytes        lane0 e220a8397b1dcdaf  lane1 = e220a839 * 7b1dcdaf
//
// A shard is a rectangle of the tensor; the digests of shards that cover it add up to its digest. A
// row must be cut at a word: first_word counts words. A row that ends the tensor's row may have any
// number of bytes. On the CPU the loops are those of digest/; this op spreads them over the
// stream's threads.
#pragma once

#include "digest/digest_rows.h"
#include "kernels/tensor.h"

namespace pitstop::kernels {

struct DigestArgs {
    const void* data = nullptr;         // the shard, any alignment
    std::int64_t rows = 0;              // of the shard
    std::int64_t row_bytes = 0;         // of the shard
    std::int64_t row_stride_bytes = 0;  // between rows of the shard
    std::uint64_t first_word = 0;       // number of the shard's first word in the whole tensor
    std::uint64_t words_per_row = 0;    // of the whole tensor, >= digest_words(row_bytes)
    Digest* sum = nullptr;              // the shard's digest is ADDED here
    // The number of infinities and NaNs in the shard, with its rows read as bf16, is ADDED here.
    // Null: not counted.
    std::uint64_t* num_nonfinite = nullptr;
    // The most blocks of a launch on a GPU at a time, to leave room for other work. 0: no limit.
    int blocks_max = 0;
    Stream stream{};
};

void check(const DigestArgs& args);
void digest_ref(const DigestArgs& args);
void digest_cuda(const DigestArgs& args);

}  // namespace pitstop::kernels
