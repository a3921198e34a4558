// Tests which events of a stream are sent together, and when.
#include "http_proc/generation/event_stream.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pitstop::http {
namespace {

class KeptWire final : public Wire {
  public:
    void begin(Response head) override { heads.push_back(head.content_type); }
    Sent send(std::string_view bytes) override {
        sent.emplace_back(bytes);
        return Sent::kDone;
    }
    void resume_when_sent(std::coroutine_handle<>) override {}
    [[nodiscard]] bool is_gone() const override { return false; }

    std::vector<std::string> heads{};
    std::vector<std::string> sent{};
};

class EventStreamTest : public ::testing::Test {
  protected:
    void add(int number) {
        stream_.begin_event().integer(number);
        stream_.end_event();
    }
    bool send(bool more_is_ready) { return stream_.send(more_is_ready).await_resume(); }

    ServerContext context_{ServerOptions{}};
    KeptWire wire_{};
    Exchange exchange_{Request{}, Grant::kData, context_, wire_};
    EventStream stream_{exchange_};
};

TEST_F(EventStreamTest, EventsThatAreReadyTogetherLeaveTogether) {
    add(1);
    EXPECT_TRUE(send(/*more_is_ready=*/true));
    EXPECT_FALSE(stream_.has_begun());
    add(2);
    EXPECT_TRUE(send(/*more_is_ready=*/false));
    EXPECT_TRUE(stream_.has_begun());
    EXPECT_EQ(wire_.sent, std::vector<std::string>{"data: 1\n\ndata: 2\n\n"});
}

TEST_F(EventStreamTest, AnEventLeavesAlsoWhenTheStepAfterItAddsNone) {
    add(1);
    EXPECT_TRUE(send(/*more_is_ready=*/true));
    EXPECT_TRUE(send(/*more_is_ready=*/false));  // with an interval, most tokens have no event
    EXPECT_EQ(wire_.sent, std::vector<std::string>{"data: 1\n\n"});
}

TEST_F(EventStreamTest, ANameComesBeforeTheData) {
    stream_.begin_event("ping").begin_object().key("a").integer(1).end_object();
    stream_.end_event();
    add(2);
    EXPECT_TRUE(send(/*more_is_ready=*/false));
    EXPECT_EQ(wire_.sent, std::vector<std::string>{"event: ping\ndata: {\"a\":1}\n\ndata: 2\n\n"});
}

TEST_F(EventStreamTest, NothingIsSentWhereNothingWaits) {
    EXPECT_TRUE(send(/*more_is_ready=*/false));
    EXPECT_TRUE(wire_.heads.empty());
    EXPECT_TRUE(wire_.sent.empty());
}

TEST_F(EventStreamTest, WaitingEventsAreBoundedHoweverManyMoreAreReady) {
    stream_.begin_event().string(std::string(EventStream::kJoinBytesMax, 'x'));
    stream_.end_event();
    EXPECT_TRUE(send(/*more_is_ready=*/true));
    EXPECT_EQ(wire_.sent.size(), 1U);
}

TEST_F(EventStreamTest, TheEndComesAfterWhatWaitsAndAlsoWithoutAnyEvent) {
    add(1);
    EXPECT_TRUE(send(/*more_is_ready=*/true));
    EXPECT_TRUE(stream_.end().await_resume());
    EventStream silent(exchange_);
    EXPECT_TRUE(silent.end().await_resume());
    EXPECT_EQ(
        wire_.sent, (std::vector<std::string>{"data: 1\n\ndata: [DONE]\n\n", "data: [DONE]\n\n"})
    );
}

}  // namespace
}  // namespace pitstop::http
