// The times at which held events are sent.
#include "http_proc/server/event_pace.h"

#include <gtest/gtest.h>

#include <poll.h>

namespace pitstop::http {
namespace {

bool is_due(const EventPace& pace, int timeout_ms) {
    ::pollfd fd{.fd = pace.fd(), .events = POLLIN, .revents = 0};
    return ::poll(&fd, 1, timeout_ms) == 1;
}

TEST(EventPace, LetsAllGoAtOnceAndRestsWhenNothingIsHeld) {
    EventPace pace;
    EXPECT_FALSE(is_due(pace, 0));
    int num_released = 0;
    pace.hold([&] { ++num_released; }, EventPace::kPeriodMin);
    const auto again = [&] { num_released += 10; };  // a stream with further events
    const auto first = [&] {
        ++num_released;
        pace.hold(again, EventPace::kPeriodMin);
    };
    pace.hold(first, EventPace::kPeriodMin);
    pace.beat();  // too early
    ASSERT_TRUE(is_due(pace, 10'000));
    pace.beat();
    EXPECT_EQ(num_released, 2);
    ASSERT_TRUE(is_due(pace, 10'000));
    pace.beat();
    EXPECT_EQ(num_released, 12);
    EXPECT_FALSE(is_due(pace, 10));
}

TEST(EventPace, ManyAreLetGoSomeAtATimeAndTheLoopRunsInBetween) {
    EventPace pace;
    std::size_t num_released = 0;
    constexpr std::size_t kNumHeld = 3 * EventPace::kPerBeat;
    for (std::size_t i = 0; i < kNumHeld; ++i)
        pace.hold([&] { ++num_released; }, EventPace::Wait{0});
    for (std::size_t beat = 1; beat <= 3; ++beat) {
        ASSERT_TRUE(is_due(pace, 10'000));
        pace.beat();
        EXPECT_EQ(num_released, beat * EventPace::kPerBeat);
    }
    EXPECT_FALSE(is_due(pace, 10));
}

TEST(EventPace, EventsThatAreDueDoNotWaitForThoseHeldLonger) {
    EventPace pace;
    int num_released = 0;
    pace.hold([&] { ++num_released; }, std::chrono::minutes(1));
    EXPECT_FALSE(is_due(pace, 0));
    pace.hold([&] { ++num_released; }, EventPace::Wait{0});
    ASSERT_TRUE(is_due(pace, 10'000));
    pace.beat();
    EXPECT_EQ(num_released, 2);
}

TEST(EventPace, ManyStreamsWaitLongerThanFewUpToALimit) {
    EXPECT_EQ(EventPace::period_of(1), EventPace::kPeriodMin);
    EXPECT_GT(EventPace::period_of(64), EventPace::period_of(32));
    EXPECT_EQ(EventPace::period_of(1'000'000), EventPace::kPeriodMax);
}

}  // namespace
}  // namespace pitstop::http
