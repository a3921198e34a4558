// Descriptors of wgmma's operands in shared memory; for the host and the device.
// Source: PTX ISA 8.x, "Matrix descriptor format"; CUTLASS, include/cute/arch/mma_sm90_desc.hpp.
//
// An operand consists of panels of rows of 128 bytes (64 bf16), 1024-byte aligned, each row's
// 16-byte chunks XORed by the row's number mod 8 (swizzle.h, eight chunks per row): the "128-byte
// swizzle". Eight rows, 1024 bytes, are an atom.
#pragma once

#include <cstdint>

namespace pitstop::kernels {

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
inline constexpr int kAtomBytes = 1024;

// Fields in units of 16 bytes: the address in bits 0-13, the leading offset in 16-29, the stride
// offset in 32-45; the swizzle in bits 62-63, 1 for 128 bytes.
[[nodiscard]] constexpr std::uint64_t wgmma_descriptor(
    std::uint32_t address, std::uint32_t leading_bytes, std::uint32_t stride_bytes
) {
    return std::uint64_t{1} << 62 | std::uint64_t{stride_bytes >> 4} << 32 |
           std::uint64_t{leading_bytes >> 4} << 16 | (address & 0x3ffffu) >> 4;
}

// Rows are M or N, columns are K (queries, keys): 16 columns from `address`, any number of rows.
// The next 16 columns of the panel are 32 bytes later. The leading offset is not used.
[[nodiscard]] constexpr std::uint64_t wgmma_rows_descriptor(std::uint32_t address) {
    return wgmma_descriptor(address, 16, kAtomBytes);
}

// Rows are K, columns are N (values): 16 rows from `address`, 64 columns per panel; the next panel
// is `panel_bytes` later. The next 16 rows are 2048 bytes later.
[[nodiscard]] constexpr std::uint64_t wgmma_columns_descriptor(
    std::uint32_t address, std::uint32_t panel_bytes
) {
    return wgmma_descriptor(address, panel_bytes, kAtomBytes);
}

}  // namespace pitstop::kernels
