// Tests the ticks that handlers wait for.
#include "http_proc/server/ticker.h"

#include <gtest/gtest.h>

#include <poll.h>

namespace pitstop::http {
namespace {

bool is_due(const Ticker& ticker, int timeout_ms) {
    ::pollfd fd{.fd = ticker.fd(), .events = POLLIN, .revents = 0};
    return ::poll(&fd, 1, timeout_ms) == 1;
}

Task<> wait(Ticker& ticker, int num_beats, int& num_heard) {
    for (int i = 0; i < num_beats; ++i) {
        if (co_await ticker.next()) ++num_heard;
    }
}

TEST(Ticker, BeatsForAllWhoWaitAndRestsWhenNobodyDoes) {
    Ticker ticker;
    EXPECT_FALSE(is_due(ticker, 0));
    int num_once = 0;
    int num_twice = 0;
    run_detached(wait(ticker, 1, num_once));
    run_detached(wait(ticker, 2, num_twice));
    EXPECT_EQ(num_once + num_twice, 0);
    ASSERT_TRUE(is_due(ticker, 10'000));
    ticker.beat();
    EXPECT_EQ(num_once, 1);
    EXPECT_EQ(num_twice, 1) << "who waits again hears the beat after this one";
    ASSERT_TRUE(is_due(ticker, 10'000));
    ticker.beat();
    EXPECT_EQ(num_once, 1);
    EXPECT_EQ(num_twice, 2);
    EXPECT_FALSE(is_due(ticker, 2 * static_cast<int>(Ticker::kPeriod.count())));
    run_detached(wait(ticker, 1, num_once));
    ASSERT_TRUE(is_due(ticker, 10'000)) << "it begins anew";
    ticker.beat();
    EXPECT_EQ(num_once, 2);
}

}  // namespace
}  // namespace pitstop::http
