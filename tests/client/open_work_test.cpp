// The open requests and calls of a client, in the order of their deadlines.
#include "client/open_work.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pitstop {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kNow{};

class OpenWorkTest : public testing::Test {
  protected:
    void add_request(const std::string& rid, RequestNumber number, Duration timeout) {
        OpenWork::Sink sink = [this, rid](const messages::OutputChunk&) { seen_.push_back(rid); };
        open_.add(
            rid, {number, std::make_shared<const OpenWork::Sink>(std::move(sink)), kNow + timeout}
        );
    }
    void add_call(CallId id, messages::Door door, Duration timeout) {
        open_.add(
            id,
            OpenWork::Call{.door = door, .on_reply = [](const auto&) {}, .deadline = kNow + timeout}
        );
    }
    static messages::OutputChunk chunk(const std::string& rid, bool is_last) {
        messages::OutputChunk chunk;
        chunk.rid = rid;
        if (is_last) chunk.finish.emplace();
        return chunk;
    }
    void deliver(const messages::OutputChunk& chunk) {
        if (const auto sink = open_.take_sink(chunk)) (*sink)(chunk);
    }

    OpenWork open_{};
    std::vector<std::string> seen_{};
};

TEST_F(OpenWorkTest, ARequestIsOpenUntilItsLastChunk) {
    add_request("a", RequestNumber{1}, 5s);
    deliver(chunk("a", /*is_last=*/false));
    EXPECT_TRUE(open_.is_open("a"));
    deliver(chunk("a", /*is_last=*/true));
    EXPECT_FALSE(open_.is_open("a"));
    EXPECT_EQ(open_.first_deadline(), TimePoint::max());
    deliver(chunk("a", /*is_last=*/true));
    EXPECT_EQ(seen_, (std::vector<std::string>{"a", "a"}));
}

TEST_F(OpenWorkTest, RequestsAndCallsAreInTheOrderOfTheirDeadlines) {
    add_request("a", RequestNumber{1}, 3s);
    add_call(CallId{7}, messages::Door::kAdmin, 2s);
    EXPECT_EQ(open_.first_deadline(), kNow + 2s);
    EXPECT_FALSE(open_.first_late(kNow + 1999ms));
    EXPECT_EQ(open_.first_late(kNow + 2s), OpenWork::Id(CallId{7}));
    EXPECT_TRUE(open_.take_call(CallId{7}));
    EXPECT_FALSE(open_.take_call(CallId{7}));
    EXPECT_FALSE(open_.first_late(kNow + 2s));
    EXPECT_EQ(open_.first_late(kNow + 3s), OpenWork::Id("a"));
}

TEST_F(OpenWorkTest, OnlyTheRequestOfThatNumberIsSilenced) {
    add_request("a", RequestNumber{2}, 5s);
    EXPECT_FALSE(open_.silence("a", RequestNumber{1}));
    EXPECT_FALSE(open_.silence("b", RequestNumber{2}));
    deliver(chunk("a", /*is_last=*/false));
    EXPECT_TRUE(open_.silence("a", RequestNumber{2}));
    deliver(chunk("a", /*is_last=*/true));
    EXPECT_EQ(seen_, (std::vector<std::string>{"a"}));
    EXPECT_FALSE(open_.is_open("a"));
}

TEST_F(OpenWorkTest, TheCallsAtADoorAreThoseThatWaitForIt) {
    add_call(CallId{1}, messages::Door::kData, 1s);
    add_call(CallId{2}, messages::Door::kAdmin, 1s);
    add_call(CallId{3}, messages::Door::kData, 1s);
    EXPECT_EQ(open_.calls_at(messages::Door::kData), (std::vector{CallId{1}, CallId{3}}));
    EXPECT_EQ(open_.num_calls(), 3U);
}

}  // namespace
}  // namespace pitstop
