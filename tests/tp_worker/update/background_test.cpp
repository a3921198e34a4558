#include "tp_worker/update/background.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using std::chrono::seconds;

// Destroying a job's data may take long: a payload of many bytes is unmapped. Here it takes until
// the loop has its answers.
TEST(Background, TheLoopDoesNotWaitUntilAJobsDataIsDestroyed) {
    std::promise<void> is_going;
    std::promise<void> has_answers;
    std::promise<bool> went_in_time;
    Background background;
    std::shared_ptr<int> held(new int(0), [&](const int* number) {
        delete number;
        is_going.set_value();
        went_in_time.set_value(
            has_answers.get_future().wait_for(seconds(5)) == std::future_status::ready
        );
    });
    background.give([held = std::move(held)] { return std::vector<messages::Frames>{}; });
    is_going.get_future().wait();
    static_cast<void>(background.take_answers());
    has_answers.set_value();
    EXPECT_TRUE(went_in_time.get_future().get());
}

// The owner stops the background work before it destroys what jobs use; other threads may answer
// until the end. The current job here ends when the waiting job is given up.
TEST(Background, AStopEndsWithTheCurrentJobAndAnswersMayStillCome) {
    std::promise<void> is_running;
    std::promise<void> is_given_up;
    bool has_run = false;
    Background background;
    background.give([&] {
        is_running.set_value();
        const bool was_told =
            is_given_up.get_future().wait_for(seconds(5)) == std::future_status::ready;
        EXPECT_TRUE(was_told);
        return std::vector<messages::Frames>{{.type = "first"}};
    });
    is_running.get_future().wait();
    const auto give_up = [&](const int* number) {
        delete number;
        is_given_up.set_value();
    };
    background.give([&has_run, held = std::shared_ptr<int>(new int(0), give_up)] {
        has_run = true;
        return std::vector<messages::Frames>{};
    });
    background.stop();
    background.answer({.type = "second"});
    const std::vector<messages::Frames> answers = background.take_answers();
    ASSERT_EQ(answers.size(), 2u);
    EXPECT_EQ(answers[0].type, "first");
    EXPECT_EQ(answers[1].type, "second");
    EXPECT_FALSE(has_run);
}

}  // namespace
}  // namespace pitstop::tp_worker
