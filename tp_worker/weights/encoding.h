// How a weight is resident: what its elements are, what may arrive for them, and how that becomes
// what lies in the arena. Whoever loads, stages, digests, keeps, reads back or pushes weights asks
// here; nobody else knows what an element is.
//
// Thread: any; nothing here has state.
#pragma once

#include "checkpoint/safetensors_header.h"
#include "kernels/ops.h"
#include "kernels/scatter.h"
#include "kernels/shard_copy.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace pitstop::tp_worker {

// kF32 is how adapters are resident: a bf16 one is there exactly, and an fp32 one is not rounded.
enum class Encoding : std::uint8_t { kBf16, kF32 };

inline constexpr std::int64_t kDigestWordBytes = 8;

// As safetensors and messages name it: "BF16".
[[nodiscard]] std::string_view name_of(Encoding encoding);
// The bytes of so many elements that follow each other.
[[nodiscard]] constexpr std::int64_t bytes_of(Encoding encoding, std::int64_t num_elements) {
    std::int64_t element_bytes = 0;
    switch (encoding) {
        case Encoding::kBf16:
            element_bytes = 2;
            break;
        case Encoding::kF32:
            element_bytes = 4;
            break;
    }
    return num_elements * element_bytes;
}
// The elements of a word of the digest: a cut between two such words can be digested alone.
[[nodiscard]] constexpr std::int64_t word_len(Encoding encoding) {
    return kDigestWordBytes / bytes_of(encoding, 1);
}

// What a source may offer for a weight that is to have this encoding, and those dtypes in words.
[[nodiscard]] bool is_accepted(Encoding encoding, checkpoint::StoredDtype dtype);
[[nodiscard]] std::string_view accepted_dtypes(Encoding encoding);
// The accepted dtype whose bytes are those that will be resident: they are copied, never rounded.
[[nodiscard]] checkpoint::StoredDtype stored_dtype_of(Encoding encoding);
[[nodiscard]] inline bool is_stored_as(Encoding encoding, checkpoint::StoredDtype dtype) {
    return dtype == stored_dtype_of(encoding);
}

// The rest is for accepted dtypes.

// Converts `num` elements that follow each other, at any alignment, and appends nothing.
void encode(
    Encoding encoding,
    checkpoint::StoredDtype dtype,
    const std::byte* from,
    std::int64_t num,
    std::byte* to
);

// A rectangle on its way from a whole tensor, as it is stored, into a shard.
struct StoredRectangle {
    checkpoint::StoredDtype dtype = checkpoint::StoredDtype::kBf16;
    const std::byte* from = nullptr;  // its first element, at any alignment
    std::int64_t from_stride = 0;     // elements from row to row
    std::byte* to = nullptr;          // its first element in the shard
    std::int64_t to_stride = 0;       // elements from row to row
    std::int64_t rows = 0;
    std::int64_t cols = 0;
};
// REQUIRES: kBf16, to which ops convert.
[[nodiscard]] kernels::ShardCopy conversion_of(Encoding encoding, const StoredRectangle& rectangle);
// Converts it now: by the op, or by plain loops where it has no such conversion.
void convert(
    Encoding encoding,
    const StoredRectangle& rectangle,
    const kernels::Ops& ops,
    kernels::Stream stream
);

// Elements that change: `values` lie back to back; `shard` is the tensor's first byte in the arena.
// What is left to fill in of the arguments is where the elements are. REQUIRES: kBf16.
[[nodiscard]] kernels::ScatterArgs scatter_of(
    Encoding encoding, const std::byte* values, std::byte* shard
);

// An element that is an infinity or a NaN, and the first of them in `bytes`, if there is one.
struct Nonfinite {
    std::int64_t index = 0;
    float value = 0;
};
[[nodiscard]] std::optional<Nonfinite> find_nonfinite(
    Encoding encoding, std::span<const std::byte> bytes
);
// Returns how many elements of the rows are; the digest's own count is of bf16 alone.
[[nodiscard]] std::uint64_t count_nonfinite_f32(
    const std::byte* first, std::int64_t rows, std::int64_t cols, std::int64_t stride_bytes
);

}  // namespace pitstop::tp_worker
