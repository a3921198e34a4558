// The place of a 16-byte chunk of a tile's row in shared memory. Rows are a power of two of chunks,
// at least 8. A chunk's place in its row is XORed with the row's number mod 8. One 8x8 matrix of
// ldmatrix reads the same chunk of eight rows; these chunks are in eight different groups of banks.
// For the host and the device.
#pragma once

#include <cstdint>

namespace pitstop::kernels {

inline constexpr int kChunkBytes = 16;
inline constexpr int kChunkElements = 8;  // bf16 elements

// Returns bytes from the tile's start.
template <int kChunksPerRow>
[[nodiscard]] constexpr int swizzled(int row, int chunk) {
    static_assert(kChunksPerRow >= 8 && (kChunksPerRow & (kChunksPerRow - 1)) == 0);
    return (row * kChunksPerRow + (chunk ^ (row & 7))) * kChunkBytes;
}

}  // namespace pitstop::kernels
