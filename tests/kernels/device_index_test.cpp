// Tests the index arithmetic of the CUDA kernels on the host, against brute force.
#include "kernels/device/attention_index.h"
#include "kernels/device/fast_div.h"
#include "kernels/device/ordered.h"
#include "kernels/device/swizzle.h"
#include "kernels/linear_tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace pitstop::kernels::test {
namespace {

TEST(FastDiv, IsDivisionOverTheWholeRange) {
    std::mt19937_64 engine(1);
    std::vector<std::int64_t> divisors = {
        1, 2, 3, 5, 7, 16, 17, 641, 6700417, FastDiv::kDividendMax};
    for (int i = 0; i < 31; ++i) {
        const std::int64_t power = std::int64_t{1} << i;
        for (const std::int64_t d : {power - 1, power, power + 1})
            if (d >= 1 && d <= FastDiv::kDividendMax) divisors.push_back(d);
    }
    for (int i = 0; i < 200; ++i) divisors.push_back(1 + static_cast<std::int64_t>(engine() >> 34));
    for (const std::int64_t d : divisors) {
        const FastDiv by(d);
        const auto expect = [&](std::int64_t n) {
            if (n < 0 || n > FastDiv::kDividendMax) return;
            ASSERT_EQ(by.quotient(static_cast<std::uint32_t>(n)), n / d) << n << " / " << d;
        };
        for (std::int64_t n = 0; n < 100; ++n) expect(n);
        for (int i = 0; i < 200; ++i) {  // next to multiples, where errors show
            const std::int64_t multiple =
                static_cast<std::int64_t>(engine() >> 33) % (FastDiv::kDividendMax / d + 1) * d;
            for (std::int64_t n = multiple - 1; n <= multiple + 1; ++n) expect(n);
        }
        expect(FastDiv::kDividendMax);
        expect(FastDiv::kDividendMax - 1);
    }
}

TEST(OrderedImage, KeepsTheOrderAndComesBack) {
    std::vector<float> values = {
        -std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::max(),
        -1.f,
        -std::numeric_limits<float>::denorm_min(),
        -0.f,
        0.f,
        std::numeric_limits<float>::denorm_min(),
        1.f,
        std::numeric_limits<float>::max(),
        std::numeric_limits<float>::infinity()};
    for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(
            std::bit_cast<std::uint32_t>(from_ordered_image(ordered_image(values[i]))),
            std::bit_cast<std::uint32_t>(values[i])
        );
        if (i > 0) {
            EXPECT_LT(ordered_image(values[i - 1]), ordered_image(values[i]));
        }
    }
}

// ldmatrix reads the same chunk of eight rows at once; these chunks, and a row's store, are in
// different groups of four banks. No two chunks share a place.
template <int kChunks>
void expect_no_conflicts() {
    std::set<int> places;
    for (int row = 0; row < 64; ++row) {
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            const int place = swizzled<kChunks>(row, chunk);
            EXPECT_EQ(place / (kChunks * kChunkBytes), row);
            EXPECT_TRUE(places.insert(place).second);
        }
    }
    for (int first = 0; first < 64; first += 8) {
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            std::set<int> groups;
            for (int row = first; row < first + 8; ++row)
                groups.insert(swizzled<kChunks>(row, chunk) / kChunkBytes % 8);
            EXPECT_EQ(groups.size(), 8u);
        }
    }
}
TEST(Swizzle, EightRowsOfAChunkMeetAllBanks) {
    expect_no_conflicts<8>();
    expect_no_conflicts<16>();
}

TEST(PrefillBlocks, EveryTileOfEveryRowHasOneBlock) {
    std::mt19937 engine(3);
    for (int round = 0; round < 300; ++round) {
        const auto tile_len = static_cast<std::int32_t>(1 + engine() % 40);
        const auto num_rows = static_cast<std::int32_t>(1 + engine() % 50);
        std::vector<std::int32_t> q_starts = {0};
        for (std::int32_t r = 0; r < num_rows; ++r)
            q_starts.push_back(
                q_starts.back() + static_cast<std::int32_t>(engine() % 3 * (engine() % 90))
            );
        const std::int64_t num_blocks = num_prefill_blocks(q_starts.back(), num_rows, tile_len);
        EXPECT_EQ(num_blocks, first_block(q_starts.back(), num_rows, tile_len));
        std::vector<int> tiles(static_cast<std::size_t>(num_rows));
        for (std::int32_t block = 0; block < num_blocks; ++block) {
            std::int32_t r = 0;  // the last row that starts at or before the block
            while (r + 1 < num_rows &&
                   first_block(q_starts[static_cast<std::size_t>(r) + 1], r + 1, tile_len) <= block)
                ++r;
            const auto row = static_cast<std::size_t>(r);
            const std::int32_t tile = block - first_block(q_starts[row], r, tile_len);
            ASSERT_GE(tile, 0);
            if (tile * tile_len < q_starts[row + 1] - q_starts[row]) {
                EXPECT_EQ(tiles[row], tile);
                ++tiles[row];
            }
        }
        for (std::size_t r = 0; r < tiles.size(); ++r)
            EXPECT_EQ(tiles[r], (q_starts[r + 1] - q_starts[r] + tile_len - 1) / tile_len);
    }
}

// Each unit is computed once, by blocks with equal shares. A pair's blocks write the records that
// its last block reads, and no two pairs share a record.
TEST(DecodeShares, CoverTheUnitsAndAgreeOnTheRecords) {
    std::mt19937 engine(3);
    const auto pick = [&](unsigned max) { return static_cast<std::int32_t>(1 + engine() % max); };
    for (int round = 0; round < 300; ++round) {
        const std::int32_t num_blocks = pick(40);
        std::vector<std::int64_t> pair_ends;
        std::int64_t num_units = 0;
        for (std::int32_t num_pairs = pick(60); num_pairs > 0; --num_pairs)
            pair_ends.push_back(num_units += pick(engine() % 5 == 0 ? 200 : 5));
        const std::int64_t per_block = units_per_block(num_units, num_blocks);
        EXPECT_GE(per_block * num_blocks, num_units);
        EXPECT_LT((per_block - 1) * num_blocks, num_units);
        for (const std::int64_t carried : {std::int64_t{1}, per_block}) {
            std::map<std::int64_t, std::int64_t> pair_of_record;
            std::set<std::int32_t> counted;  // first blocks of divided pairs
            std::int64_t begin = 0;
            for (const std::int64_t end : pair_ends) {
                const PairPlace place = pair_place(begin, end, per_block, carried, num_blocks);
                std::vector<std::int64_t> written;
                for (std::int32_t block = 0; block < num_blocks; ++block) {
                    const std::int64_t own_begin = std::max(begin, block * per_block);
                    const std::int64_t own_end = std::min(end, (block + 1) * per_block);
                    EXPECT_EQ(
                        own_begin < own_end, place.first_block <= block && block <= place.last_block
                    );
                    if (own_begin >= own_end) continue;
                    if (own_begin == begin) {
                        written.push_back(block);
                    } else {
                        const std::int64_t first = first_carried_record(block, carried, num_blocks);
                        const std::int64_t num = carried == 1 ? 1 : own_end - own_begin;
                        for (std::int64_t i = 0; i < num; ++i) written.push_back(first + i);
                    }
                }
                std::vector<std::int64_t> read;
                for (std::int64_t i = 0; i < place.num_records; ++i)
                    read.push_back(record_of(place, i));
                EXPECT_EQ(read, written);
                if (place.first_block != place.last_block) {
                    EXPECT_TRUE(counted.insert(place.first_block).second);
                    for (const std::int64_t record : read) {
                        EXPECT_LT(record, num_blocks * (1 + carried));
                        EXPECT_TRUE(pair_of_record.emplace(record, end).second);
                    }
                }
                begin = end;
            }
        }
    }
}

TEST(DecodeShares, UnitsSeenAreThoseOfTheWindow) {
    const auto seen = [](std::int32_t kv_len, std::int32_t window, std::int32_t unit_keys) {
        const UnitRange range = units_seen(kv_len, window, unit_keys);
        return std::pair{range.begin, range.end};
    };
    constexpr std::int32_t kAll = std::numeric_limits<std::int32_t>::max();
    EXPECT_EQ(seen(1, kAll, 64), (std::pair{0, 1}));
    EXPECT_EQ(seen(64, kAll, 64), (std::pair{0, 1}));
    EXPECT_EQ(seen(65, kAll, 64), (std::pair{0, 2}));
    EXPECT_EQ(seen(65, 1, 64), (std::pair{1, 2}));
    EXPECT_EQ(seen(129, 65, 64), (std::pair{1, 3}));
    EXPECT_EQ(seen(129, 66, 64), (std::pair{0, 3}));
    EXPECT_EQ(seen(1 << 20, kAll, kAll), (std::pair{0, 1}));
}

TEST(Window, FirstKeyIsThePositionLessTheWindow) {
    EXPECT_EQ(first_key(0, 1), 0);
    EXPECT_EQ(first_key(5, 1), 5);
    EXPECT_EQ(first_key(5, 5), 1);
    EXPECT_EQ(first_key(5, 6), 0);
    EXPECT_EQ(first_key(5, std::numeric_limits<std::int32_t>::max()), 0);
}

TEST(GemmBucket, GrowsWithMAndHoldsIt) {
    std::int64_t last = 0;
    std::set<std::int64_t> buckets;
    for (std::int64_t M = 1; M <= 8192; ++M) {
        const std::int64_t bucket = gemm_bucket(M);
        EXPECT_GE(bucket, M);
        EXPECT_GE(bucket, last);
        EXPECT_EQ(gemm_bucket(bucket), bucket);
        last = bucket;
        buckets.insert(bucket);
    }
    EXPECT_LT(buckets.size(), 50u);
}

}  // namespace
}  // namespace pitstop::kernels::test
