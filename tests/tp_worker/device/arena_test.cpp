#include "tp_worker/device/arena.h"

#include <gtest/gtest.h>

#include <cstring>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kBytes = std::int64_t{8} << 20;

TEST(Arena, TakesMemoryWhenTouchedAndGivesItBackAtTheSameAddress) {
    Result<Arena> arena = Arena::reserve("weights", kBytes);
    ASSERT_TRUE(arena.has_value());
    EXPECT_EQ(arena->resident_bytes(), 0);
    ASSERT_TRUE(arena->commit().has_value());
    std::byte* const address = arena->data();
    std::memset(address, 7, kBytes);
    EXPECT_EQ(arena->resident_bytes(), kBytes);

    const Result<std::int64_t> released = arena->release();
    ASSERT_TRUE(released.has_value());
    EXPECT_EQ(*released, kBytes);  // P8: measured
    EXPECT_EQ(arena->resident_bytes(), 0);

    ASSERT_TRUE(arena->commit().has_value());
    EXPECT_EQ(arena->data(), address);
    EXPECT_EQ(address[kBytes - 1], std::byte{0});
}

TEST(Arena, ReleaseCountsOnlyWhatWasResident) {
    Result<Arena> arena = Arena::reserve("kv_cache", 100 * 4096);
    ASSERT_TRUE(arena->commit().has_value());
    arena->data()[0] = std::byte{1};
    arena->data()[50 * 4096] = std::byte{1};
    EXPECT_EQ(*arena->release(), 2 * 4096);
}

TEST(Arena, TheWrongStateIsATypedErrorAndChangesNothing) {
    Result<Arena> arena = Arena::reserve("weights", kBytes);
    EXPECT_EQ(arena->release().error().code, ErrorCode::kFailedPrecondition);
    ASSERT_TRUE(arena->commit().has_value());
    arena->data()[5] = std::byte{5};
    const Result<> again = arena->commit();
    ASSERT_FALSE(again.has_value());
    EXPECT_EQ(again.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(again.error().message.find("weights"), std::string::npos);
    EXPECT_EQ(arena->data()[5], std::byte{5});
}

TEST(ArenaDeathTest, AReleasedArenaFaults) {
    Result<Arena> arena = Arena::reserve("weights", kBytes);
    ASSERT_TRUE(arena->commit().has_value());
    ASSERT_TRUE(arena->release().has_value());
    EXPECT_DEATH(arena->data()[0] = std::byte{1}, "");
}

TEST(Arena, AnAddressSpaceThatCannotBeHadIsAnError) {
    const Result<Arena> arena = Arena::reserve("weights", std::int64_t{1} << 60);
    ASSERT_FALSE(arena.has_value());
    EXPECT_EQ(arena.error().code, ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace pitstop::tp_worker
