// The pool alone: which request has which page and slot, and when pages and slots become free.
#include "scheduler_proc/kv_pool.h"

#include <gtest/gtest.h>

#include <vector>

namespace pitstop::scheduler {
namespace {

constexpr EpochRange kOne{Epoch{1}, Epoch{1}};
constexpr StepId kNow{5};  // the step being planned

class KvPoolTest : public testing::Test {
  protected:
    static std::vector<TokenId> tokens(int num, int first = 1) {
        std::vector<TokenId> all;
        for (int i = 0; i < num; ++i) all.push_back(static_cast<TokenId>(first + i));
        return all;
    }

    // A lease of pages for `prompt`, computed by the step before.
    Lease lease_of(const std::vector<TokenId>& prompt, StepId last_step = StepId{}) {
        auto started = pool.start(pool.cache().match(prompt, kOne, kNow), std::ssize(prompt), 0);
        if (!started) {
            ADD_FAILURE() << "no room";
            return {};
        }
        Lease lease = *std::move(started);
        EXPECT_EQ(pool.grow(lease, std::ssize(prompt)), 0);
        pool.stamp(lease, 0, std::ssize(prompt), Epoch{1});
        pool.share(lease, prompt, StepId{4}, KvPool::Duplicates::kReplace);
        lease.last_step = last_step;
        return lease;
    }

    std::string audit(const std::vector<const Lease*>& held) const {
        return pool.audit(held).value_or("");
    }

    KvPool pool{{.num_pages = 6, .page_size = 2, .num_slots = 2}};
};

TEST_F(KvPoolTest, EveryPageAndSlotHasOneOwnerAndTheAuditNamesTheOneThatHasNot) {
    EXPECT_EQ(audit({}), "");
    const Lease one = lease_of(tokens(3));
    const Lease two = lease_of(tokens(4));
    EXPECT_EQ(audit({&one, &two}), "");
    EXPECT_NE(audit({&one}), "") << "a lease is lost";
    EXPECT_NE(audit({&one, &two, &two}), "") << "a lease is there twice";
    Lease other = two;
    other.slot = one.slot;
    EXPECT_EQ(audit({&one, &other}), "slot 0 has 2 owners");
    other = one;
    other.pages.pop_back();
    other.page_epochs.pop_back();
    EXPECT_EQ(audit({&other, &two}), "page 1 has 0 owners");
    EXPECT_EQ(audit({&one, &two}), "");
    other = two;
    other.pages.clear();
    other.page_epochs.clear();
    other.num_shared = 0;
    EXPECT_EQ(audit({&one, &other}), "page 0: the leases refer to it 1 times, its count is 2");
    other = two;
    other.page_epochs.pop_back();
    EXPECT_EQ(audit({&one, &other}), "page epochs of a lease");
    other = two;
    ++other.num_shared;
    EXPECT_EQ(audit({&one, &other}), "a lease shares more pages than it holds");
    pool.give_back(one);
    pool.give_back(two);
    EXPECT_EQ(audit({}), "");
    EXPECT_EQ(pool.num_free() + pool.cache().num_unreferenced(), 6);
}

TEST_F(KvPoolTest, PagesThatAStepInFlightMayUseAreTakenBackWhenItIsDone) {
    pool.give_back(lease_of(tokens(3), kNow));
    EXPECT_EQ(pool.num_free(), 4);
    EXPECT_EQ(pool.num_coming(), 2) << "a private page, and one that the cache alone will hold";
    EXPECT_EQ(audit({}), "") << "what waits is the pool's to count";
    pool.end_step(StepId{4});
    pool.release_ended();
    EXPECT_EQ(pool.num_free(), 4) << "an earlier step is done";
    pool.end_step(kNow);
    EXPECT_EQ(pool.num_free(), 4);
    pool.give_back(lease_of(tokens(1, 50), kNow));
    EXPECT_EQ(pool.num_free(), 4) << "it is over: taken back at once";
    pool.release_ended();
    EXPECT_EQ(pool.num_free(), 5);
    EXPECT_EQ(pool.num_coming(), 0);
    EXPECT_EQ(pool.cache().num_unreferenced(), 1);
    EXPECT_EQ(audit({}), "");
}

TEST_F(KvPoolTest, ASlotThatAStepInFlightUsesIsNotFree) {
    const Lease one = lease_of(tokens(1));
    pool.give_back(lease_of(tokens(1, 50), kNow));
    EXPECT_FALSE(pool.has_slot());
    pool.end_step(kNow);
    pool.release_ended();
    EXPECT_TRUE(pool.has_slot());
}

TEST_F(KvPoolTest, GrowingTakesFreePagesThenCachedOnesAndElseSaysWhatIsMissing) {
    pool.give_back(lease_of(tokens(4)));  // two pages stay in the cache
    Lease lease = lease_of(tokens(2, 50));
    EXPECT_EQ(pool.grow(lease, 2), 0) << "it has them";
    EXPECT_EQ(pool.grow(lease, 5), 0);
    EXPECT_EQ(lease.pages.size(), 3u);
    EXPECT_EQ(lease.page_epochs.size(), 3u);
    EXPECT_EQ(pool.cache().num_nodes(), 3) << "free ones came first";
    EXPECT_EQ(pool.grow(lease, 9), 0);
    EXPECT_EQ(pool.cache().num_nodes(), 2);
    EXPECT_EQ(pool.grow(lease, 16), 2);
    EXPECT_EQ(lease.pages.size(), 5u) << "none or all";
    EXPECT_EQ(audit({&lease}), "");
}

TEST_F(KvPoolTest, NobodyStartsOnPagesThatOthersNeedNext) {
    pool.give_back(lease_of(tokens(4)));
    const auto match = pool.cache().match(tokens(6), kOne, kNow);
    ASSERT_EQ(match.pages.size(), 2u);
    EXPECT_FALSE(pool.start(match, 6, 4)) << "5 pages for 4 free ones: its own are not to be had";
    EXPECT_EQ(pool.cache().num_unreferenced(), 2) << "and they are let go again";
    EXPECT_TRUE(pool.has_slot());
    const auto lease = pool.start(match, 6, 3);
    ASSERT_TRUE(lease);
    EXPECT_EQ(lease->pages, match.pages);
    EXPECT_EQ(lease->num_shared, 2u);
    EXPECT_EQ(lease->kv, kOne);
    EXPECT_EQ(audit({&*lease}), "");
}

// Two requests with equal prompts were planned before either was computed.
TEST_F(KvPoolTest, ADuplicateIsKeptWhileItIsWrittenToAndElseGivenUpForTheFirst) {
    const Lease first = lease_of(tokens(2));
    auto second = pool.start({}, 2, 0);
    ASSERT_TRUE(second);
    ASSERT_EQ(pool.grow(*second, 2), 0);
    pool.stamp(*second, 0, 2, Epoch{1});
    second->last_step = kNow;
    const PageId own = second->pages[0];
    pool.share(*second, tokens(2), StepId{4}, KvPool::Duplicates::kKeep);
    EXPECT_EQ(second->pages[0], own);
    EXPECT_EQ(second->num_shared, 0u);
    pool.share(*second, tokens(2), StepId{4}, KvPool::Duplicates::kReplace);
    EXPECT_EQ(second->pages, first.pages);
    EXPECT_EQ(second->num_shared, 1u);
    EXPECT_EQ(pool.num_free(), 4) << "the step in flight still writes to its own";
    EXPECT_EQ(audit({&first, &*second}), "");
    pool.end_step(kNow);
    pool.release_ended();
    EXPECT_EQ(pool.num_free(), 5);
}

TEST_F(KvPoolTest, P9_AStampSaysOfEachPageWhichEpochsComputedIt) {
    auto lease = pool.start({}, 5, 0);
    ASSERT_TRUE(lease);
    ASSERT_EQ(pool.grow(*lease, 5), 0);
    pool.stamp(*lease, 0, 3, Epoch{1});
    pool.stamp(*lease, 3, 5, Epoch{2});
    const EpochRange both{Epoch{1}, Epoch{2}};
    const EpochRange two{Epoch{2}, Epoch{2}};
    EXPECT_EQ(lease->page_epochs, (std::vector{kOne, both, two}));
}

TEST_F(KvPoolTest, AClearedCacheKeepsWhatIsHeld) {
    const Lease lease = lease_of(tokens(2));
    pool.give_back(lease_of(tokens(4)));
    EXPECT_EQ(pool.clear_cache(), 1);
    EXPECT_EQ(pool.cache().num_nodes(), 1);
    EXPECT_EQ(pool.clear_cache(), 0);
    EXPECT_EQ(audit({&lease}), "");
}

}  // namespace
}  // namespace pitstop::scheduler
