#include "scheduler_proc/prefix_cache.h"

#include <gtest/gtest.h>

#include <vector>

namespace pitstop::scheduler {
namespace {

constexpr std::int64_t kPageSize = 2;
constexpr EpochRange kOne{Epoch{1}, Epoch{1}};
constexpr EpochRange kTwo{Epoch{2}, Epoch{2}};
constexpr EpochRange kBoth{Epoch{1}, Epoch{2}};

class PrefixCacheTest : public testing::Test {
  protected:
    static std::vector<TokenId> tokens(std::initializer_list<int> ids) {
        std::vector<TokenId> all;
        for (const int id : ids) all.push_back(static_cast<TokenId>(id));
        return all;
    }

    // Puts a path of blocks into the cache, each under its epochs, and keeps the references.
    std::vector<PageId> add(
        const std::vector<TokenId>& path,
        const std::vector<EpochRange>& epochs,
        StepId step = StepId{1}
    ) {
        std::vector<PageId> pages;
        for (std::size_t i = 0; i < epochs.size(); ++i) {
            PrefixCache::NewNode node{
                .tokens = std::span(path).subspan(i * kPageSize, kPageSize),
                .epochs = epochs[i],
                .step = step,
            };
            if (i > 0) node.parent = pages.back();
            if (const auto found = cache.find(node)) {
                cache.lock({&*found, 1});
                pages.push_back(*found);
                continue;
            }
            PageId page{};
            EXPECT_TRUE(allocator.allocate({&page, 1}));
            node.page = page;
            cache.insert(node);
            pages.push_back(page);
        }
        return pages;
    }

    std::size_t num_hits(
        const std::vector<TokenId>& path, EpochRange accepted, StepId step = StepId{9}
    ) const {
        return cache.match(path, accepted, step).pages.size();
    }

    void TearDown() override { EXPECT_EQ(cache.audit().value_or(""), ""); }

    PageAllocator allocator{8};
    PrefixCache cache{8, kPageSize};
};

TEST_F(PrefixCacheTest, FindsTheLongestPrefixInWholePages) {
    const auto pages = add(tokens({1, 2, 3, 4}), {kOne, kOne});
    EXPECT_EQ(cache.match(tokens({1, 2, 3, 4, 5}), kOne, StepId{2}).pages, pages);
    EXPECT_EQ(num_hits(tokens({1, 2, 3, 9}), kOne), 1u);
    EXPECT_EQ(num_hits(tokens({1, 2, 3}), kOne), 1u);
    EXPECT_EQ(num_hits(tokens({1}), kOne), 0u);
    EXPECT_EQ(num_hits({}, kOne), 0u);
    EXPECT_EQ(num_hits(tokens({3, 4}), kOne), 0u) << "a block is found below its own prefix only";
}

TEST_F(PrefixCacheTest, AForgottenBlockIsNotFoundAndNoneThatFollowsIt) {
    const auto pages = add(tokens({1, 2, 3, 4, 5, 6}), {kOne, kOne, kOne});
    cache.forget(pages[1]);
    cache.forget(pages[1]);  // once more does no harm
    EXPECT_EQ(num_hits(tokens({1, 2, 3, 4, 5, 6}), kOne), 1u);
    // The same tokens computed again become a new node.
    const auto anew = add(tokens({1, 2, 3, 4}), {kOne, kOne});
    EXPECT_EQ(anew[0], pages[0]);
    EXPECT_NE(anew[1], pages[1]);
    EXPECT_EQ(num_hits(tokens({1, 2, 3, 4, 5, 6}), kOne), 2u);
    cache.unlock(pages);
    cache.unlock(anew);
    EXPECT_EQ(cache.evict(8, allocator), 4);
    EXPECT_EQ(allocator.num_free(), 8);
}

TEST_F(PrefixCacheTest, AnEmptyCacheHasNothing) {
    PrefixCache none;
    EXPECT_TRUE(none.match(tokens({1, 2}), kOne, StepId{1}).pages.empty());
    EXPECT_EQ(none.audit().value_or(""), "");
}

TEST_F(PrefixCacheTest, P9_AnEpochThatIsNotAcceptedIsNoHit) {
    add(tokens({1, 2, 3, 4}), {kOne, kOne});
    EXPECT_EQ(num_hits(tokens({1, 2, 3, 4}), kTwo), 0u);
    EXPECT_EQ(num_hits(tokens({1, 2, 3, 4}), kBoth), 2u);
}

TEST_F(PrefixCacheTest, P9_ANewerBlockOnAnOlderPrefixIsHitOnlyTogetherWithIt) {
    add(tokens({1, 2, 3, 4}), {kOne, kTwo});
    EXPECT_EQ(num_hits(tokens({1, 2, 3, 4}), kTwo), 0u);
    EXPECT_EQ(num_hits(tokens({1, 2, 3, 4}), kOne), 1u);
    const auto match = cache.match(tokens({1, 2, 3, 4}), kBoth, StepId{2});
    EXPECT_EQ(match.pages.size(), 2u);
    EXPECT_EQ(match.epochs, kBoth);

    // The first block computed again is a new node; the second block stays below the old node.
    add(tokens({1, 2}), {kTwo});
    EXPECT_EQ(num_hits(tokens({1, 2, 3, 4}), kTwo), 1u);
}

TEST_F(PrefixCacheTest, P9_APageOfTwoEpochsNeedsBothAccepted) {
    add(tokens({1, 2}), {kBoth});
    EXPECT_EQ(num_hits(tokens({1, 2}), kOne), 0u);
    EXPECT_EQ(num_hits(tokens({1, 2}), kTwo), 0u);
    EXPECT_EQ(num_hits(tokens({1, 2}), kBoth), 1u);
}

TEST_F(PrefixCacheTest, OfSeveralVersionsTheLongestThenTheNewest) {
    const auto old = add(tokens({1, 2, 3, 4}), {kOne, kOne});
    const auto fresh = add(tokens({1, 2}), {kTwo});
    EXPECT_EQ(cache.match(tokens({1, 2, 3, 4}), kBoth, StepId{2}).pages, old);
    EXPECT_EQ(cache.match(tokens({1, 2}), kBoth, StepId{2}).pages, fresh);
    EXPECT_EQ(cache.match(tokens({1, 2, 3, 4}), kTwo, StepId{2}).pages, fresh);
}

TEST_F(PrefixCacheTest, BlocksOfTheStepBeingPlannedArePending) {
    add(tokens({1, 2}), {kOne}, StepId{4});
    add(tokens({1, 2, 3, 4}), {kOne, kOne}, StepId{5});
    const auto match = cache.match(tokens({1, 2, 3, 4}), kOne, StepId{5});
    EXPECT_EQ(match.pages.size(), 1u);
    EXPECT_TRUE(match.is_pending);
    const auto next_step = cache.match(tokens({1, 2, 3, 4}), kOne, StepId{6});
    EXPECT_EQ(next_step.pages.size(), 2u);
    EXPECT_FALSE(next_step.is_pending);
    EXPECT_FALSE(cache.match(tokens({1, 2, 9, 9}), kOne, StepId{5}).is_pending);
}

TEST_F(PrefixCacheTest, EvictsLeavesFirstAndTheLeastRecentlyUsed) {
    const auto first = add(tokens({1, 2, 3, 4}), {kOne, kOne});
    const auto second = add(tokens({5, 6}), {kOne});
    cache.unlock(first);
    cache.unlock(second);
    EXPECT_EQ(cache.num_unreferenced(), 3);
    EXPECT_EQ(cache.evict(1, allocator), 1);
    EXPECT_EQ(num_hits(tokens({1, 2, 3, 4}), kOne), 1u) << "the leaf goes, its parent stays";
    EXPECT_EQ(num_hits(tokens({5, 6}), kOne), 1u);
    EXPECT_EQ(cache.evict(1, allocator), 1);
    EXPECT_EQ(num_hits(tokens({1, 2}), kOne), 0u) << "used before the other";
    EXPECT_EQ(cache.evict(5, allocator), 1);
    EXPECT_EQ(cache.num_nodes(), 0);
    EXPECT_EQ(allocator.num_free(), 8);
}

TEST_F(PrefixCacheTest, UsingAPrefixAgainMakesItRecent) {
    const auto first = add(tokens({1, 2}), {kOne});
    const auto second = add(tokens({5, 6}), {kOne});
    cache.unlock(first);
    cache.unlock(second);
    cache.lock(first);
    cache.unlock(first);
    cache.evict(1, allocator);
    EXPECT_EQ(num_hits(tokens({1, 2}), kOne), 1u);
    EXPECT_EQ(num_hits(tokens({5, 6}), kOne), 0u);
}

TEST_F(PrefixCacheTest, NeverEvictsWhatIsReferencedOrHasChildren) {
    const auto path = add(tokens({1, 2, 3, 4}), {kOne, kOne});
    EXPECT_EQ(cache.evict(8, allocator), 0);
    cache.unlock(path);
    cache.lock(std::span(path).first(1));
    EXPECT_EQ(cache.evict(8, allocator), 1);
    EXPECT_TRUE(cache.holds(path[0]));
    EXPECT_EQ(cache.num_refs(path[0]), 1);
}

TEST_F(PrefixCacheTest, ReferencesAreCounted) {
    const auto path = add(tokens({1, 2}), {kOne});
    const auto again = add(tokens({1, 2}), {kOne});
    EXPECT_EQ(path, again) << "the same node, not a second one";
    cache.unlock(path);
    EXPECT_EQ(cache.num_unreferenced(), 0);
    cache.unlock(path);
    EXPECT_EQ(cache.num_unreferenced(), 1);
}

// Many versions of one prefix must not make a lookup explode: it stops at its bound, with a valid
// path.
TEST_F(PrefixCacheTest, ALookupIsBounded) {
    PageAllocator many(4096);
    PrefixCache tree(4096, 1);
    const std::vector<TokenId> same(11, TokenId{7});
    // Each version of a block has two versions of the next block below it: 2^11 paths.
    std::vector<std::optional<PageId>> level{std::nullopt};
    for (int depth = 0; depth < 11; ++depth) {
        std::vector<std::optional<PageId>> deeper;
        for (const auto& parent : level) {
            for (const EpochRange& epochs : {kOne, kTwo}) {
                PageId page{};
                ASSERT_TRUE(many.allocate({&page, 1}));
                tree.insert({parent, page, std::span(same).first(1), epochs, StepId{1}});
                deeper.push_back(page);
            }
        }
        level = std::move(deeper);
    }
    EXPECT_EQ(tree.match(same, kBoth, StepId{2}).pages.size(), 11u);
    EXPECT_EQ(tree.match(same, kBoth, StepId{2}).epochs, kTwo);
}

// A cache whose nodes may have checkpoints.
class PrefixCacheWithState : public PrefixCacheTest {
  protected:
    PrefixCacheWithState() { cache = PrefixCache(8, kPageSize, 4); }

    void save(PageId page, StepId step = StepId{1}) {
        const auto place = cache.places()->reserve(StatePlaces::Purpose::kPrompt, step);
        ASSERT_TRUE(place);
        cache.places()->keep(*place, page);
    }
    PrefixCache::Match match(
        const std::vector<TokenId>& path, EpochRange accepted = kOne, StepId step = StepId{9}
    ) const {
        return cache.match(path, accepted, step);
    }
};

TEST_F(PrefixCacheWithState, APrefixIsUsableUpToItsLastCheckpoint) {
    const auto pages = add(tokens({1, 2, 3, 4, 5, 6}), {kOne, kOne, kOne});
    const auto path = tokens({1, 2, 3, 4, 5, 6});
    EXPECT_EQ(match(path).pages.size(), 0u);
    EXPECT_EQ(match(path).found, pages);
    EXPECT_TRUE(match(path).epochs.is_empty());
    save(pages[1]);
    EXPECT_EQ(match(path).pages.size(), 2u);
    EXPECT_EQ(match(path).found, pages);
    EXPECT_EQ(match(tokens({1, 2, 9, 9})).pages.size(), 0u) << "it is behind the branch";
    cache.places()->drop(pages[1]);
    EXPECT_EQ(match(path).pages.size(), 0u);
}

TEST_F(PrefixCacheWithState, ThePathWithTheLastCheckpointIsTakenNotTheLongest) {
    const auto path = tokens({1, 2, 3, 4, 5, 6});
    const auto longer = add(path, {kOne, kOne, kOne});
    const auto newer = add(tokens({1, 2, 3, 4}), {kTwo, kTwo});
    save(longer[0]);
    save(newer[1]);
    const auto found = match(path, kBoth);
    EXPECT_EQ(found.pages, newer);
    EXPECT_EQ(found.epochs, kTwo);
    EXPECT_EQ(match(path, kOne).pages.size(), 1u);
}

TEST_F(PrefixCacheWithState, ACheckpointSavedNowOrAnnouncedIsWaitedFor) {
    const auto path = tokens({1, 2, 3, 4, 5, 6});
    const auto pages = add(path, {kOne, kOne, kOne});
    save(pages[0]);
    EXPECT_FALSE(match(path).is_pending);
    const auto announcement = cache.places()->announce(pages[2]);
    ASSERT_TRUE(announcement);
    EXPECT_TRUE(match(path).is_pending);
    EXPECT_FALSE(match(tokens({1, 2, 3, 4})).is_pending) << "it is of no use here";
    cache.places()->withdraw(pages[2], *announcement);
    EXPECT_FALSE(match(path).is_pending);
    save(pages[1], StepId{9});
    EXPECT_TRUE(match(path, kOne, StepId{9}).is_pending);
    EXPECT_EQ(match(path, kOne, StepId{9}).pages.size(), 1u);
    EXPECT_FALSE(match(path, kOne, StepId{10}).is_pending);
    EXPECT_EQ(match(path, kOne, StepId{10}).pages.size(), 2u);
}

TEST_F(PrefixCacheWithState, ACheckpointGoesWithItsNode) {
    const auto path = tokens({1, 2, 3, 4});
    const auto pages = add(path, {kOne, kOne});
    save(pages[0]);
    save(pages[1]);
    cache.forget(pages[1]);
    EXPECT_EQ(cache.places()->num_free(), 3);
    EXPECT_EQ(match(path).pages.size(), 1u);
    cache.unlock(pages);
    EXPECT_EQ(cache.evict(8, allocator), 2);
    EXPECT_EQ(cache.places()->num_free(), 4);
}

}  // namespace
}  // namespace pitstop::scheduler
