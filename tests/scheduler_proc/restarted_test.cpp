// A scheduler of a tree that was started again, at a later epoch than the first.
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

TEST(Restarted, TheFirstPlanRunsUnderTheVersionThatWasLoaded) {
    Rig rig(FakeModel{.epoch = Epoch{7}});
    const Ask ask{.prompt = prompt_of(5, 100), .max_new_tokens = 4};
    const RequestKey key = rig.send(ask);
    const TurnOutput out = rig.turn();
    ASSERT_FALSE(out.workers.empty());
    EXPECT_EQ(std::get<messages::StepPlan>(out.workers.front()).epoch, Epoch{7});
    rig.run();
    EXPECT_EQ(rig.of(key).tokens, rig.expected(ask).tokens);
    for (const messages::Span& span : rig.of(key).spans) EXPECT_EQ(span.epoch, Epoch{7});
    EXPECT_EQ(rig.scheduler.audit(), std::nullopt);
}

}  // namespace
}  // namespace pitstop::scheduler
