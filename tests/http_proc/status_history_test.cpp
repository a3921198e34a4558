// Tests the history of the tree's status for the status page.
#include "http_proc/server/status_history.h"

#include <gtest/gtest.h>

#include <chrono>

namespace pitstop::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

messages::StatusReply status_of(std::int64_t num_ended, std::int64_t num_errors) {
    messages::StatusReply status;
    messages::ReplicaStatus replica;
    replica.epoch = Epoch{3};
    replica.output_tokens_per_s = 10;
    replica.step_age_s = 1;
    replica.finished = {
        {.reason = messages::FinishReason::kStop, .requests = num_ended - num_errors},
        {.reason = messages::FinishReason::kError, .requests = num_errors}};
    status.replicas.push_back(replica);
    replica.epoch = Epoch{4};
    replica.step_age_s = 7;
    replica.pause_mode = "in_place";
    replica.finished = {{.reason = messages::FinishReason::kAbort, .requests = 2}};
    status.replicas.push_back(replica);
    return status;
}

TEST(StatusHistory, APointIsOfAllReplicas) {
    StatusHistory history;
    RequestMetrics requests;
    requests.queue.add(0.5);
    history.add(status_of(5, 1), requests, TimePoint{});
    ASSERT_EQ(history.points().size(), 1U);
    const StatusHistory::Point& point = history.points().front();
    EXPECT_DOUBLE_EQ(point.tokens_per_s, 20);
    EXPECT_DOUBLE_EQ(point.step_age_s, 7);
    EXPECT_TRUE(point.is_paused);
    EXPECT_EQ(point.epochs, (std::vector{Epoch{3}, Epoch{4}}));
    EXPECT_EQ(point.ended.all, 7);
    EXPECT_EQ(point.ended.errors, 1);
    EXPECT_EQ(point.ended.aborted, 2);
    EXPECT_EQ(point.queue.count_up_to(point.queue.bounds().size()), 1);
}

TEST(StatusHistory, HasTheLastTwoMinutesAlone) {
    StatusHistory history;
    const RequestMetrics requests;
    for (int s = 0; s <= 300; ++s) history.add(status_of(s, 0), requests, TimePoint{} + seconds(s));
    EXPECT_EQ(history.points().size(), StatusHistory::kPointsMax);
    EXPECT_EQ(history.points().front().at, TimePoint{} + seconds(180));
    // More than one point per second does not exceed the bound.
    for (int ms = 0; ms < 1000; ++ms)
        history.add(status_of(300, 0), requests, TimePoint{} + seconds(301) + milliseconds(ms));
    EXPECT_EQ(history.points().size(), StatusHistory::kPointsMax);
    history.add(status_of(300, 0), requests, TimePoint{} + seconds(1000));
    EXPECT_EQ(history.points().size(), 1U) << "what is older is gone, however few there are";
}

TEST(StatusHistory, AnotherTreeHasAHistoryOfItsOwn) {
    StatusHistory history;
    const RequestMetrics requests;
    history.add(status_of(50, 4), requests, TimePoint{});
    history.add(status_of(3, 0), requests, TimePoint{} + seconds(1));
    ASSERT_EQ(history.points().size(), 1U);
    EXPECT_EQ(history.points().front().ended.errors, 0);
}

}  // namespace
}  // namespace pitstop::http
