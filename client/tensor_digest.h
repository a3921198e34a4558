// The digest of a tensor's rows on the sender's side (base/digest.h defines it). In plain C++: the
// engine's kernels are not linked into front ends.
#pragma once

#include "base/digest.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace pitstop {

// `rows` holds whole rows of `row_bytes` each, back to back; the first is row `row_begin` of its
// tensor. Digests of disjoint rows add up.
[[nodiscard]] Digest digest_rows(
    std::span<const std::byte> rows, std::int64_t row_bytes, std::int64_t row_begin
);

}  // namespace pitstop
