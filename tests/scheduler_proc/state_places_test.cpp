// The places for checkpoints alone: which node has which, and which is evicted.
#include "scheduler_proc/state_places.h"

#include <gtest/gtest.h>

#include <vector>

namespace pitstop::scheduler {
namespace {

using Purpose = StatePlaces::Purpose;

class StatePlacesTest : public testing::Test {
  protected:
    // Saves a checkpoint for a page's node in a step of its own. Returns its place; -1: none was
    // free.
    int save(int page, Purpose purpose = Purpose::kPrompt) {
        const auto place = places.reserve(purpose, step);
        if (!place) return -1;
        places.keep(*place, PageId{page});
        finish_step();
        return raw(*place);
    }
    void finish_step() {
        places.end_step(step);
        step = next(step);
    }
    int place_of(int page) const {
        const auto place = places.of(PageId{page});
        return place ? raw(*place) : -1;
    }
    std::string audit(
        const std::vector<CheckpointId>& reserved = {}, const std::vector<PageId>& trails = {}
    ) const {
        return places.audit(reserved, trails).value_or("");
    }

    StatePlaces places{4, 10};
    StepId step{1};
};

TEST_F(StatePlacesTest, APlaceIsReservedThenANodesThenFreeAgain) {
    EXPECT_EQ(places.num_free(), 4);
    const auto place = places.reserve(Purpose::kPrompt, step);
    ASSERT_TRUE(place);
    EXPECT_EQ(places.num_free(), 3);
    EXPECT_NE(audit(), "") << "nobody saves to it";
    EXPECT_EQ(audit({*place}), "");
    places.keep(*place, PageId{7});
    EXPECT_EQ(place_of(7), raw(*place));
    EXPECT_EQ(audit(), "");
    places.drop(PageId{7});
    EXPECT_EQ(place_of(7), -1);
    EXPECT_EQ(places.num_free(), 4);
    places.drop(PageId{7});  // once more does no harm
    const auto other = places.reserve(Purpose::kPrompt, step);
    ASSERT_TRUE(other);
    EXPECT_NE(*other, *place) << "the step in flight writes to it";
    places.release(*other);
    EXPECT_EQ(audit(), "");
    EXPECT_EQ(places.num_free(), 4);
}

TEST_F(StatePlacesTest, TheLeastRecentlyUsedIsEvicted) {
    for (int page = 0; page < 4; ++page) EXPECT_EQ(save(page), page);
    places.restore(PageId{0}, step);
    finish_step();
    EXPECT_EQ(save(5), 1) << "page 0's was used since";
    EXPECT_EQ(place_of(1), -1);
    EXPECT_EQ(place_of(0), 0);
    EXPECT_EQ(places.counts().num_evicted, 1);
    EXPECT_EQ(places.counts().num_restored, 1);
    EXPECT_EQ(places.counts().num_saved, 5);
    EXPECT_EQ(audit(), "");
}

TEST_F(StatePlacesTest, APlaceThatAStepInFlightUsesIsNotTaken) {
    for (int page = 0; page < 4; ++page) save(page);
    const StepId reading = step;
    for (int page = 0; page < 4; ++page) places.restore(PageId{page}, reading);
    step = next(step);
    EXPECT_FALSE(places.reserve(Purpose::kPrompt, step)) << "each is read";
    places.drop(PageId{2});
    EXPECT_FALSE(places.reserve(Purpose::kPrompt, step)) << "it is free, and still read";
    places.end_step(reading);
    const auto place = places.reserve(Purpose::kPrompt, step);
    ASSERT_TRUE(place);
    EXPECT_EQ(raw(*place), 2);
    EXPECT_TRUE(places.reserve(Purpose::kPrompt, step)) << "of page 0";
    EXPECT_EQ(place_of(0), -1);
}

TEST_F(StatePlacesTest, TrailsTakeHalfOfThePlacesAndStayUntilTheyEnd) {
    EXPECT_EQ(save(0, Purpose::kTrail), 0);
    EXPECT_EQ(save(1, Purpose::kTrail), 1);
    EXPECT_EQ(save(2, Purpose::kTrail), -1) << "half of them are trails";
    EXPECT_EQ(audit({}, {PageId{0}, PageId{1}}), "");
    EXPECT_NE(audit({}, {PageId{0}}), "") << "a trail of no request";
    EXPECT_EQ(save(2), 2);
    EXPECT_EQ(save(3), 3);
    EXPECT_EQ(save(4), 2) << "the oldest that is no trail";
    places.end_trail(PageId{0});
    EXPECT_EQ(save(5), 0) << "it is one like the others now, and the oldest";
    EXPECT_EQ(save(6, Purpose::kTrail), 3);
    EXPECT_EQ(audit({}, {PageId{1}, PageId{6}}), "");
}

TEST_F(StatePlacesTest, ATrailIsRenewedInItsOwnPlaceUnlessAStepUsesIt) {
    save(0, Purpose::kTrail);
    save(1, Purpose::kTrail);
    EXPECT_FALSE(places.reserve(Purpose::kTrail, step));
    EXPECT_FALSE(places.renew(PageId{7}, step)) << "it has none";
    const auto place = places.renew(PageId{0}, step);
    ASSERT_TRUE(place);
    EXPECT_EQ(raw(*place), 0);
    EXPECT_EQ(place_of(0), -1);
    places.keep(*place, PageId{5});
    EXPECT_FALSE(places.renew(PageId{5}, next(step))) << "the step in flight writes it";
    EXPECT_EQ(audit({}, {PageId{1}, PageId{5}}), "");
}

TEST_F(StatePlacesTest, ATrailThatIsRestoredIsOneNoMore) {
    save(0, Purpose::kTrail);
    places.restore(PageId{0}, step);
    EXPECT_FALSE(places.is_trail(PageId{0})) << "others branch off there";
    EXPECT_EQ(audit(), "");
    finish_step();
    EXPECT_EQ(save(1, Purpose::kTrail), 1);
    EXPECT_EQ(save(2, Purpose::kTrail), 2) << "room for two again";
}

TEST_F(StatePlacesTest, ASpareCheckpointTakesAFreePlaceOnlyAndGoesFirst) {
    save(0);
    save(1);
    save(2);
    EXPECT_EQ(save(3, Purpose::kSpare), 3);
    EXPECT_EQ(save(4, Purpose::kSpare), -1);
    EXPECT_EQ(save(5), 3) << "though it is the newest";
    EXPECT_EQ(place_of(3), -1);
    EXPECT_EQ(audit(), "");
}

TEST_F(StatePlacesTest, AnAnnouncementEndsWithItsNode) {
    const auto first = places.announce(PageId{3});
    ASSERT_TRUE(first);
    EXPECT_TRUE(places.is_announced(PageId{3}));
    EXPECT_FALSE(places.announce(PageId{3})) << "another request has";
    places.drop(PageId{3});  // evicted; the page becomes another node
    EXPECT_FALSE(places.is_announced(PageId{3}));
    const auto second = places.announce(PageId{3});
    ASSERT_TRUE(second);
    places.withdraw(PageId{3}, *first);
    EXPECT_TRUE(places.is_announced(PageId{3})) << "the first one is over";
    save(3);
    EXPECT_FALSE(places.is_announced(PageId{3})) << "it is there";
}

TEST(StatePlaces, WithoutPlacesThereIsNothing) {
    StatePlaces none(0, 5);
    EXPECT_FALSE(none.reserve(Purpose::kPrompt, StepId{1}));
    EXPECT_FALSE(none.of(PageId{4}));
    none.drop(PageId{4});
    EXPECT_EQ(none.audit({}, {}), std::nullopt);
}

}  // namespace
}  // namespace pitstop::scheduler
