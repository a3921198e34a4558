// The resident form of a weight: its element type, the dtypes accepted for it, and the conversion
// into the arena. All code that loads, stages, digests, keeps, reads back or pushes weights uses
// these functions, and none of it knows an element's format.
//
// Thread: any; nothing here has state.
#pragma once

#include "base/result.h"
#include "checkpoint/safetensors_header.h"
#include "kernels/ops.h"
#include "kernels/scatter.h"
#include "kernels/shard_copy.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace pitstop::tp_worker {

// kF32 is for adapters and decay rates: bf16 ones stay exact, and fp32 ones are not rounded. A
// GPU's ops know bf16 alone; there the halves of an fp32 element are two elements.
enum class Encoding : std::uint8_t { kBf16, kF32 };

inline constexpr std::int64_t kDigestWordBytes = 8;

// The name in safetensors and in messages: "BF16".
[[nodiscard]] std::string_view name_of(Encoding encoding);
// The bytes of `num` consecutive elements.
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
// The elements in a word of the digest. Pieces between word boundaries can be digested separately.
[[nodiscard]] constexpr std::int64_t word_len(Encoding encoding) {
    return kDigestWordBytes / bytes_of(encoding, 1);
}

// The dtypes that sources may send for a weight of this encoding; accepted_dtypes() lists them.
[[nodiscard]] bool is_accepted(Encoding encoding, checkpoint::StoredDtype dtype);
[[nodiscard]] std::string_view accepted_dtypes(Encoding encoding);
// The dtype whose bytes equal the resident ones, so that they are copied without rounding.
[[nodiscard]] checkpoint::StoredDtype stored_dtype_of(Encoding encoding);
[[nodiscard]] inline bool is_stored_as(Encoding encoding, checkpoint::StoredDtype dtype) {
    return dtype == stored_dtype_of(encoding);
}

// The functions below need an accepted dtype.

// Converts `num` consecutive elements at any alignment into `to`.
void encode(
    Encoding encoding,
    checkpoint::StoredDtype dtype,
    const std::byte* from,
    std::int64_t num,
    std::byte* to
);

// A rectangle of a stored whole tensor, and its place in a shard.
struct StoredRectangle {
    checkpoint::StoredDtype dtype = checkpoint::StoredDtype::kBf16;
    const std::byte* from = nullptr;  // the first element, at any alignment
    std::int64_t from_stride = 0;     // elements between rows
    std::byte* to = nullptr;          // the first element in the shard
    std::int64_t to_stride = 0;       // elements between rows
    std::int64_t rows = 0;
    std::int64_t cols = 0;
};
// Returns whether the ops convert the dtype to the encoding; they do not convert F16 to kF32.
[[nodiscard]] bool is_converted_by_ops(Encoding encoding, checkpoint::StoredDtype dtype);
// Errors: kUnsupported, naming the tensor, what it is and what is accepted.
[[nodiscard]] Result<> check_converted_by_ops(
    std::string_view name, Encoding encoding, checkpoint::StoredDtype dtype
);
// Adds the op's copies that convert the rectangle. BF16 to kF32 copies the upper halves; the lower
// halves must be zeros beforehand. REQUIRES: is_converted_by_ops().
void add_conversions(
    Encoding encoding, const StoredRectangle& rectangle, std::vector<kernels::ShardCopy>& copies
);
// Converts at once: with the op, or with plain loops if the op lacks the conversion.
void convert(
    Encoding encoding,
    const StoredRectangle& rectangle,
    const kernels::Ops& ops,
    kernels::Stream stream
);

// The number of the ops' bf16 elements that one element of this encoding takes.
[[nodiscard]] constexpr std::int64_t num_halves(Encoding encoding) {
    return bytes_of(encoding, 1) / bytes_of(Encoding::kBf16, 1);
}
// Returns the places of the bf16 halves of the elements at the places `at`.
[[nodiscard]] std::vector<std::int64_t> halves_at(
    Encoding encoding, std::span<const std::int64_t> at
);
// Makes the op's arguments for changing single elements, except for the places of their halves.
// `values` are contiguous; `shard` is the tensor's first byte in the arena.
[[nodiscard]] kernels::ScatterArgs scatter_of(const std::byte* values, std::byte* shard);

// An element that is an infinity or a NaN; find_nonfinite() returns the first one in
// `bytes`, if any.
struct Nonfinite {
    std::int64_t index = 0;
    float value = 0;
};
[[nodiscard]] std::optional<Nonfinite> find_nonfinite(
    Encoding encoding, std::span<const std::byte> bytes
);
// Returns the number of infinities and NaNs in the rows. The digest's own count works
// for bf16 only.
[[nodiscard]] std::uint64_t count_nonfinite_f32(
    const std::byte* first, std::int64_t rows, std::int64_t cols, std::int64_t stride_bytes
);

}  // namespace pitstop::tp_worker
