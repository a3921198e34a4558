#include "tp_worker/update/background.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>

namespace pitstop::tp_worker {
namespace {

using std::chrono::seconds;

// Destroying a job's data may take long: a payload of many bytes is unmapped. Here it takes until
// the loop has its answers.
TEST(Background, TheLoopDoesNotWaitForWhatAJobHeldToGo) {
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

}  // namespace
}  // namespace pitstop::tp_worker
