// The layouts of fragments, of operands in shared memory and of their descriptors, written from the
// text of the PTX ISA alone: an error that kernels/ and the emulator share would pass their own
// tests.
//
// Source: PTX ISA 8.x, "Matrix fragments for mma.m16n8k16 with floating point type", "ldmatrix",
// "Register fragments for wgmma.mma_async.m64nNk16", "Canonical layouts", "Swizzling modes",
// "Matrix descriptor format".
#include "kernels/device/ptx.cuh"
#include "kernels/device/shared_memory.cuh"
#include "kernels/device/wgmma.cuh"
#include "tests/emulated_gpu/blocks.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace pitstop::kernels::test {
namespace {

// Small whole numbers, which bf16 represents exactly; no two neighbours are equal.
int entry(int row, int column, int seed) { return (row * 7 + column * 5 + seed) % 13 - 6; }
std::uint16_t bits_of(int value) {
    return static_cast<std::uint16_t>(
        std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16
    );
}
std::uint32_t pair_of(int low, int high) {
    return bits_of(low) | static_cast<std::uint32_t>(bits_of(high)) << 16;
}

void run(unsigned threads, std::size_t shared_bytes, const std::function<void(int)>& body) {
    emulator::run_grid({1}, {threads}, shared_bytes, [&] { body(static_cast<int>(threadIdx.x)); });
}

// "groupID = %laneid >> 2", "threadID_in_group = %laneid % 4".
struct Place {
    int row;
    int column;
};
// A of m16n8k16: "row = groupID for ai where 0 <= i < 2 || 4 <= i < 6, groupID + 8 otherwise; col =
// (threadID_in_group * 2) + (i & 0x1) for ai where i < 4, + 8 where i >= 4".
Place place_of_a(int lane, int i) {
    const bool is_upper = (0 <= i && i < 2) || (4 <= i && i < 6);
    return {(lane >> 2) + (is_upper ? 0 : 8), lane % 4 * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
// B: "row = (threadID_in_group * 2) + (i & 0x1) for bi where i < 2, + 8 where i >= 2; col =
// groupID".
Place place_of_b(int lane, int i) { return {lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8), lane >> 2}; }
// C and D: "row = groupID for ci where i < 2, groupID + 8 for ci where i >= 2; col =
// (threadID_in_group * 2) + (i & 0x1)".
Place place_of_c(int lane, int i) {
    return {(lane >> 2) + (i < 2 ? 0 : 8), lane % 4 * 2 + (i & 1)};
}

TEST(Layouts, FragmentsOfMmaAreTheSpecifications) {
    float sums[32][4] = {};
    run(32, 0, [&](int lane) {
        std::uint32_t a[4], b[2];
        for (int i = 0; i < 8; i += 2) {
            const Place low = place_of_a(lane, i), high = place_of_a(lane, i + 1);
            a[i / 2] = pair_of(entry(low.row, low.column, 1), entry(high.row, high.column, 1));
        }
        for (int i = 0; i < 4; i += 2) {
            const Place low = place_of_b(lane, i), high = place_of_b(lane, i + 1);
            b[i / 2] = pair_of(entry(low.row, low.column, 2), entry(high.row, high.column, 2));
        }
        kernels::mma_16x8x16(sums[lane], a, b[0], b[1]);
    });
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const Place at = place_of_c(lane, i);
            int expected = 0;
            for (int k = 0; k < 16; ++k) expected += entry(at.row, k, 1) * entry(k, at.column, 2);
            EXPECT_EQ(sums[lane][i], static_cast<float>(expected)) << lane << " " << i;
        }
    }
}

// "Threads 0-7 have the addresses of the rows of the first matrix", 8-15 of the second, and so on;
// "each thread receives" two neighbours of row lane / 4, from column 2 * (lane % 4) on; ".trans":
// the matrix is loaded in column-major form.
TEST(Layouts, LdmatrixGivesEachLaneItsNeighbours) {
    std::uint32_t plain[32][4], turned[32][4];
    run(32, 4 * 128, [&](int lane) {
        auto* const shared = reinterpret_cast<std::uint16_t*>(kernels::dynamic_shared_memory());
        for (int i = lane; i < 256; i += 32)
            shared[i] = bits_of(entry(i / 64 * 8 + i % 64 / 8, i % 8, 3));
        __syncwarp();
        const void* const row = shared + lane / 8 * 64 + lane % 8 * 8;
        kernels::load_matrices(plain[lane], row);
        kernels::load_matrices_transposed(turned[lane], row);
    });
    for (int lane = 0; lane < 32; ++lane) {
        for (int m = 0; m < 4; ++m) {
            const int first = lane / 4, second = lane % 4 * 2;
            const auto at = [&](int row, int column) { return entry(m * 8 + row, column, 3); };
            EXPECT_EQ(plain[lane][m], pair_of(at(first, second), at(first, second + 1)));
            EXPECT_EQ(turned[lane][m], pair_of(at(second, first), at(second + 1, first)));
        }
    }
}

// D of m64nNk16: each warp of the group has 16 rows; within a warp, d is C's fragment for one group
// of 8 columns after the other.
Place place_of_d(int thread, int i) {
    const Place in_tile = place_of_c(thread % 32, i % 4);
    return {thread / 32 * 16 + in_tile.row, i / 4 * 8 + in_tile.column};
}

constexpr int kT = 8;  // elements of 128 bits: "T = 128 / sizeof-elements-in-bits"
constexpr int kStride = 1024;
constexpr int kLeading = 64 * 128;  // bytes from one panel of 64 to the next

// "Swizzle<3, 4, 3>": bits 4 to 6 of a byte's address are XORed with bits 7 to 9.
int swizzled_128(int byte) { return byte ^ (byte >> 7 & 7) << 4; }
// K-major, 128-byte swizzle: ((8, m), (T, 2k)) : ((8T, SBO), (1, T)).
int k_major(int row, int k) {
    return swizzled_128((row % 8 * 8 * kT + k % kT + k / kT * kT) * 2 + row / 8 * kStride);
}
// MN-major, 128-byte swizzle: ((T, 8, m), (8, k)) : ((1, T, LBO), (8T, SBO)).
int mn_major(int n, int k) {
    return swizzled_128(
        (n % kT + n / kT % 8 * kT + k % 8 * 8 * kT) * 2 + n / (8 * kT) * kLeading + k / 8 * kStride
    );
}

// Bits 13-0: address, 29-16: leading dimension, 45-32: stride dimension byte offset, each
// "matrix-descriptor-encode(x) = (x & 0x3FFFF) >> 4"; 63-62: 1 is 128-byte swizzling.
std::uint64_t descriptor(std::uint64_t address, std::uint64_t leading, std::uint64_t stride) {
    const auto encode = [](std::uint64_t x) { return (x & 0x3ffff) >> 4; };
    return encode(address) | encode(leading) << 16 | encode(stride) << 32 | std::uint64_t{1} << 62;
}

TEST(Layouts, DescriptorsHaveTheSpecificationsFields) {
    for (const std::uint32_t address : {0u, 0x400u, 0x1c000u, 0x2fc20u}) {
        EXPECT_EQ(kernels::wgmma_rows_descriptor(address), descriptor(address, 16, kStride));
        EXPECT_EQ(
            kernels::wgmma_columns_descriptor(address, kLeading),
            descriptor(address, kLeading, kStride)
        );
    }
}

TEST(Layouts, OperandsAndSumsOfWgmmaAreTheSpecifications) {
    constexpr int kABytes = 64 * 128, kBBytes = 128 * 128, kVBytes = 2 * kLeading;
    std::vector<float> scores(128 * 64), sums(128 * 64);
    run(128, kABytes + kBBytes + kVBytes, [&](int thread) {
        std::byte* const a = kernels::dynamic_shared_memory();
        std::byte* const b = a + kABytes;
        std::byte* const v = b + kBBytes;
        const auto put = [](std::byte* tile, int byte, int value) {
            const std::uint16_t bits = bits_of(value);
            std::memcpy(tile + byte, &bits, sizeof bits);
        };
        for (int i = thread; i < 128 * 16; i += 128) {
            const int row = i / 16, k = i % 16;
            if (row < 64) put(a, k_major(row, k), entry(row, k, 4));
            put(b, k_major(row, k), entry(row, k, 5));
            put(v, mn_major(row, k), entry(row, k, 6));
        }
        kernels::fence_async_proxy();
        __syncthreads();
        std::uint32_t fragment[4];
        for (int i = 0; i < 8; i += 2) {
            const int first_row = thread / 32 * 16;
            const Place low = place_of_a(thread % 32, i), high = place_of_a(thread % 32, i + 1);
            fragment[i / 2] = pair_of(
                entry(first_row + low.row, low.column, 7),
                entry(first_row + high.row, high.column, 7)
            );
        }
        float d[64] = {}, e[64] = {};
        kernels::wgmma_fence();
        const auto at = [](const std::byte* tile) { return kernels::shared_address(tile); };
        kernels::wgmma_ss(d, descriptor(at(a), 16, kStride), descriptor(at(b), 16, kStride), 0);
        kernels::wgmma_rs(e, fragment, descriptor(at(v), kLeading, kStride));
        kernels::wgmma_commit();
        kernels::wgmma_wait<0>(d);
        for (int i = 0; i < 64; ++i) {
            scores[static_cast<std::size_t>(thread * 64 + i)] = d[i];
            sums[static_cast<std::size_t>(thread * 64 + i)] = e[i];
        }
    });
    for (int thread = 0; thread < 128; ++thread) {
        for (int i = 0; i < 64; ++i) {
            const Place to = place_of_d(thread, i);
            int score = 0, sum = 0;
            for (int k = 0; k < 16; ++k) {
                score += entry(to.row, k, 4) * entry(to.column, k, 5);
                sum += entry(to.row, k, 7) * entry(to.column, k, 6);
            }
            const auto at = static_cast<std::size_t>(thread * 64 + i);
            ASSERT_EQ(scores[at], static_cast<float>(score)) << thread << " " << i;
            ASSERT_EQ(sums[at], static_cast<float>(sum)) << thread << " " << i;
        }
    }
}

}  // namespace
}  // namespace pitstop::kernels::test
