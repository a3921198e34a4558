#include "tp_worker/model/kv_ahead.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <sys/mman.h>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kLayers = 3;
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

// Pages of 16 tokens of 4 KiB: 64 KiB of one layer.
KvPool pool_of(std::int32_t num_pages) {
    KvPlan plan;
    for (std::int64_t i = 0; i < kLayers; ++i) plan.add({.num = 8, .dim = 128});
    return {plan, {.num_pages = num_pages, .page_size = 16}, Compute::kBf16};
}

class KvAheadTest : public testing::Test {
  protected:
    void SetUp() override {
        std::vector<std::byte> bytes(2 * 4096);
        const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
        void* const page = bytes.data() + (4096 - at % 4096) % 4096;
        if (::madvise(page, 4096, MADV_POPULATE_WRITE) != 0)
            GTEST_SKIP() << "this system does not populate memory";
    }
    void make(std::int32_t num_pages) {
        const KvPool pool = pool_of(num_pages);
        memory_.emplace(*Arena::reserve("kv_cache", pool.bytes()));
        ASSERT_TRUE(memory_->commit().has_value());
        ahead_.emplace(*memory_, pool);
        page_bytes_ = pool.page_bytes() / kLayers;
    }
    // Touches pages until none are left; returns the number of touches.
    int touch_all() {
        int num = 0;
        for (; ahead_->is_behind() && num < 10'000; ++num) ahead_->touch_some();
        return num;
    }
    // Expects at least `num` pages of every layer in memory, and no more than huge pages add.
    void expect_pages(std::int64_t num) const {
        const std::int64_t bytes = kLayers * num * page_bytes_;
        EXPECT_GE(memory_->resident_bytes(), bytes);
        EXPECT_LE(memory_->resident_bytes(), bytes + 3 * kLayers * kHugePage);
    }

    std::optional<Arena> memory_{};
    std::optional<KvAhead> ahead_{};
    std::int64_t page_bytes_ = 0;
};

TEST_F(KvAheadTest, TouchesWhatTheNextTokensNeedPieceByPiece) {
    ASSERT_NO_FATAL_FAILURE(make(1000));
    ASSERT_TRUE(ahead_->is_behind());
    const int num_touched = touch_all();
    EXPECT_GE(num_touched, 4 * kLayers);  // 8 MiB of each layer
    expect_pages(KvAhead::kTokensAhead / 16);

    const std::vector<PageId> used = {PageId{3}, PageId{200}, PageId{7}};
    ahead_->note_used(used);
    EXPECT_TRUE(ahead_->is_behind());
    touch_all();
    expect_pages(201 + KvAhead::kTokensAhead / 16);

    ahead_->note_used(used);
    EXPECT_FALSE(ahead_->is_behind());
}

TEST_F(KvAheadTest, NothingBehindTheLastPageIsTouched) {
    ASSERT_NO_FATAL_FAILURE(make(50));
    touch_all();
    EXPECT_EQ(memory_->resident_bytes(), memory_->bytes());
    ahead_->note_used(std::vector<PageId>{PageId{49}});
    EXPECT_FALSE(ahead_->is_behind());
}

TEST_F(KvAheadTest, ReleasedMemoryIsLeftAloneAndWhatIsTakenBackIsNew) {
    ASSERT_NO_FATAL_FAILURE(make(1000));
    ahead_->note_used(std::vector<PageId>{PageId{500}});
    touch_all();
    ASSERT_TRUE(memory_->release().has_value());
    EXPECT_FALSE(ahead_->is_behind());
    ahead_->touch_some();
    EXPECT_EQ(memory_->resident_bytes(), 0);

    ASSERT_TRUE(memory_->commit().has_value());
    EXPECT_TRUE(ahead_->is_behind());
    touch_all();
    expect_pages(KvAhead::kTokensAhead / 16);
}

TEST_F(KvAheadTest, TouchedPagesKeepTheirBytes) {
    ASSERT_NO_FATAL_FAILURE(make(100));
    memory_->data()[5 * page_bytes_] = std::byte{9};
    touch_all();
    EXPECT_EQ(memory_->data()[5 * page_bytes_], std::byte{9});
}

}  // namespace
}  // namespace pitstop::tp_worker
