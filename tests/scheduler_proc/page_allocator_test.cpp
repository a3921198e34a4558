#include "scheduler_proc/page_allocator.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace pitstop::scheduler {
namespace {

TEST(PageAllocator, HandsOutEachPageOnce) {
    PageAllocator pages(5);
    std::vector<PageId> all(5);
    ASSERT_TRUE(pages.allocate(all));
    EXPECT_EQ(std::set(all.begin(), all.end()).size(), 5u);
    EXPECT_EQ(all.front(), PageId{0});
    EXPECT_EQ(pages.num_free(), 0);
}

TEST(PageAllocator, ARequestForTooManyChangesNothing) {
    PageAllocator pages(3);
    std::vector<PageId> four(4, PageId{-7});
    EXPECT_FALSE(pages.allocate(four));
    EXPECT_EQ(pages.num_free(), 3);
    EXPECT_EQ(four, std::vector<PageId>(4, PageId{-7}));
    std::vector<PageId> three(3);
    EXPECT_TRUE(pages.allocate(three));
    EXPECT_FALSE(pages.allocate(std::span(three).first(1)));
    EXPECT_TRUE(pages.allocate({}));
}

TEST(PageAllocator, ThePageFreedLastGoesOutFirst) {
    PageAllocator pages(4);
    std::vector<PageId> all(4);
    ASSERT_TRUE(pages.allocate(all));
    pages.release(std::vector{PageId{2}, PageId{1}});
    EXPECT_TRUE(pages.is_free(PageId{1}));
    EXPECT_FALSE(pages.is_free(PageId{0}));
    PageId page{};
    ASSERT_TRUE(pages.allocate({&page, 1}));
    EXPECT_EQ(page, PageId{1});
}

TEST(PageAllocator, APoolWithoutPagesHasNone) {
    PageAllocator pages;
    PageId page{};
    EXPECT_FALSE(pages.allocate({&page, 1}));
    EXPECT_EQ(pages.num_pages(), 0);
}

TEST(PageAllocatorDeathTest, APageReleasedTwiceIsABug) {
    PageAllocator pages(2);
    EXPECT_DEATH(pages.release(std::vector{PageId{1}}), "is_free_");
}

}  // namespace
}  // namespace pitstop::scheduler
