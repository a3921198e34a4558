// When held events are let go.
#include "http_proc/event_pace.h"

#include <gtest/gtest.h>

#include <poll.h>

namespace pitstop {
namespace {

bool is_due(const EventPace& pace, int timeout_ms) {
    ::pollfd fd{.fd = pace.fd(), .events = POLLIN, .revents = 0};
    return ::poll(&fd, 1, timeout_ms) == 1;
}

TEST(EventPace, LetsAllGoAtOnceAndRestsWhenNothingIsHeld) {
    EventPace pace;
    EXPECT_FALSE(is_due(pace, 0));
    int num_released = 0;
    pace.hold([&] { ++num_released; });
    pace.hold([&] {
        ++num_released;
        pace.hold([&] { num_released += 10; });  // a stream that goes on
    });
    pace.beat();  // too early
    ASSERT_TRUE(is_due(pace, 10'000));
    pace.beat();
    EXPECT_EQ(num_released, 2);
    ASSERT_TRUE(is_due(pace, 10'000));
    pace.beat();
    EXPECT_EQ(num_released, 12);
    EXPECT_FALSE(is_due(pace, 10));
}

}  // namespace
}  // namespace pitstop
