#include "tp_worker/model/update_room.h"

#include <gtest/gtest.h>

namespace pitstop::tp_worker {
namespace {

// A budget of 1000 bytes: 300 are used, a copy needs 200, a page 10.
RoomFacts facts_of(std::int64_t pages_wanted) {
    return {
        .device = "a GPU",
        .free = 1100,
        .budget = 1000,
        .others = 300,
        .copy = 200,
        .page = 10,
        .pages_wanted = pages_wanted,
        .host_free = 500,
        .host_copy = 251,
    };
}

TEST(UpdateRoom, AutoStagesWhereTheKvThatIsWantedFitsBesideASecondCopy) {
    const Result<ChosenRoom> fits = choose_room(UpdateRoom::kAuto, facts_of(50));
    ASSERT_TRUE(fits);
    EXPECT_EQ(fits->room, UpdateRoom::kStaged);
    EXPECT_EQ(fits->num_pages, 50);
    EXPECT_EQ(
        fits->why,
        "auto: a second copy of the weights fits beside KV; 1100 bytes were free, of which 1000 "
        "may be used; weights and activations take 300, a second copy 200, 50 pages of KV 500; in "
        "host memory 500 are free, and a version takes 251"
    );
    const Result<ChosenRoom> full = choose_room(UpdateRoom::kAuto, facts_of(51));
    ASSERT_TRUE(full);
    EXPECT_EQ(full->room, UpdateRoom::kLend);
    EXPECT_EQ(full->num_pages, 70) << "KV has the copy's room";
    EXPECT_NE(full->why.find("one fits where KV lies"), std::string::npos);
    RoomFacts large = facts_of(51);
    large.copy = 701;
    const Result<ChosenRoom> nowhere = choose_room(UpdateRoom::kAuto, large);
    ASSERT_TRUE(nowhere);
    EXPECT_EQ(nowhere->room, UpdateRoom::kDirect);
    EXPECT_NE(nowhere->why.find("nor twice into host memory, nor where KV"), std::string::npos);
    RoomFacts more = facts_of(51);
    more.host_free = 502;
    const Result<ChosenRoom> host = choose_room(UpdateRoom::kAuto, more);
    ASSERT_TRUE(host);
    EXPECT_EQ(host->room, UpdateRoom::kHost);
    EXPECT_EQ(host->num_pages, 70);
}

TEST(UpdateRoom, AModeThatIsAskedForIsUsedOrRefusedWithTheNumbers) {
    const Result<ChosenRoom> staged = choose_room(UpdateRoom::kStaged, facts_of(50));
    ASSERT_TRUE(staged);
    EXPECT_EQ(staged->num_pages, 50);
    EXPECT_EQ(staged->why.substr(0, 10), "asked for;");
    const Result<ChosenRoom> direct = choose_room(UpdateRoom::kDirect, facts_of(50));
    ASSERT_TRUE(direct);
    EXPECT_EQ(direct->room, UpdateRoom::kDirect);
    EXPECT_EQ(direct->num_pages, 70);
    const Result<ChosenRoom> host = choose_room(UpdateRoom::kHost, facts_of(50));
    ASSERT_TRUE(host);
    EXPECT_EQ(host->num_pages, 70);
    RoomFacts less = facts_of(50);
    less.host_free = 250;
    const Result<ChosenRoom> no_host = choose_room(UpdateRoom::kHost, less);
    ASSERT_FALSE(no_host);
    EXPECT_EQ(no_host.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(no_host.error().message.find("250 bytes are free, it takes 251"), std::string::npos);
    RoomFacts large = facts_of(50);
    large.copy = 700;
    const Result<ChosenRoom> lent = choose_room(UpdateRoom::kLend, large);
    ASSERT_TRUE(lent);
    EXPECT_EQ(lent->num_pages, 70);
    large.copy = 701;
    const Result<ChosenRoom> no_loan = choose_room(UpdateRoom::kLend, large);
    ASSERT_FALSE(no_loan);
    EXPECT_EQ(no_loan.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(no_loan.error().message.find("a second copy 701"), std::string::npos);
    const Result<ChosenRoom> refused = choose_room(UpdateRoom::kStaged, facts_of(51));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(refused.error().message.find("a second copy 200"), std::string::npos);
    EXPECT_NE(refused.error().message.find("51 pages of KV 510"), std::string::npos);
}

TEST(UpdateRoom, IsNamed) {
    for (const std::string_view name : {"auto", "staged", "host", "lend", "direct"}) {
        const Result<UpdateRoom> room = parse_update_room(name);
        ASSERT_TRUE(room);
        EXPECT_EQ(name_of(*room), name);
    }
    const Result<UpdateRoom> other = parse_update_room("borrow");
    ASSERT_FALSE(other);
    EXPECT_NE(other.error().message.find("not 'borrow'"), std::string::npos);
}

TEST(UpdateRoom, TheNumbersNameWhatAdaptersMayTake) {
    RoomFacts facts = facts_of(50);
    facts.others += 300;
    facts.adapters = 300;
    const Result<ChosenRoom> lent = choose_room(UpdateRoom::kStaged, facts);
    ASSERT_FALSE(lent) << "their memory is not KV's";
    EXPECT_NE(
        lent.error().message.find(
            "; weights, activations and adapters take 600, of which 300 are for --adapter-memory "
            "and a load, a second copy 200"
        ),
        std::string::npos
    ) << lent.error().message;
    facts.others = 995;
    EXPECT_EQ(
        no_room_for_kv(0.9, facts).message,
        "no room for KV on a GPU: 1100 bytes were free, of which --mem-fraction 0.9 allows 1000; "
        "weights, activations and adapters take 995, of which 300 are for --adapter-memory and a "
        "load, a page 10"
    );
}

}  // namespace
}  // namespace pitstop::tp_worker
