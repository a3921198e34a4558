// The checkpoints of recurrent state that a plan and a hello may name.
#include "messages/steps.h"

#include <gtest/gtest.h>

#include <vector>

namespace pitstop::messages {
namespace {

// If a plan saved and restored a checkpoint, or saved it twice, its state would depend on the
// worker's order of rows.
TEST(Checkpoints, PlansWhoseCheckpointsAreAmbiguous) {
    StepPlan good;
    good.rows = {
        {.slot = SlotId{1},
         .begin = 4,
         .num_new = 2,
         .num_pages = 1,
         .state_from = CheckpointId{7},
         .save_to = CheckpointId{8},
         .save_at = 6},
        {.slot = SlotId{2},
         .begin = 4,
         .num_new = 2,
         .num_pages = 1,
         .state_from = CheckpointId{7},
         .save_to = CheckpointId{9},
         .save_at = 5},
        {.slot = SlotId{3}, .begin = 4, .num_new = 2, .num_pages = 1}};
    good.tokens.values.resize(6);
    good.pages.values.resize(3);
    const auto problem = [&](auto&& change) {
        StepPlan plan = good;
        change(plan.rows);
        return invalid(plan).value_or("");
    };
    using Rows = std::vector<PlanRow>;
    EXPECT_EQ(problem([](Rows&) {}), "");
    EXPECT_EQ(
        problem([](Rows& rows) { rows[1].save_to = CheckpointId{8}; }),
        "two rows save to checkpoint 8"
    );
    EXPECT_EQ(
        problem([](Rows& rows) { rows[1].state_from = CheckpointId{8}; }),
        "rows restore from checkpoint 8 and save to it"
    );
    EXPECT_EQ(
        problem([](Rows& rows) { rows[0].save_to = CheckpointId{7}; }),
        "rows restore from checkpoint 7 and save to it"
    );
    EXPECT_EQ(
        problem([](Rows& rows) { rows[0].state_from = CheckpointId{-1}; }),
        "row 0: checkpoint -1; checkpoints count from 0"
    );
    EXPECT_EQ(
        problem([](Rows& rows) { rows[1].save_to = CheckpointId{-3}; }),
        "row 1: checkpoint -3; checkpoints count from 0"
    );
    EXPECT_EQ(
        problem([](Rows& rows) { rows[0].begin = 0; }),
        "row 0: a checkpoint for the state before the first token"
    );
    EXPECT_EQ(
        problem([](Rows& rows) { rows[2].save_at = 5; }), "row 2: save_at is 5 without save_to"
    );
    EXPECT_EQ(
        problem([](Rows& rows) { rows[0].save_at = 4; }), "row 0: save_at is 4, not in (4, 6]"
    );
    EXPECT_EQ(
        problem([](Rows& rows) { rows[0].save_at = 7; }), "row 0: save_at is 7, not in (4, 6]"
    );
}

TEST(Checkpoints, HellosWhoseCheckpointsAreOfNoState) {
    WorkerHello hello{.context_len = 1, .vocab_size = 1, .num_pages = 1, .page_size = 1};
    hello.num_slots = 1;
    EXPECT_EQ(invalid(hello), std::nullopt);
    hello.state_bytes = 64;
    hello.num_checkpoints = 3;
    EXPECT_EQ(invalid(hello), std::nullopt);
    hello.state_bytes = 0;
    EXPECT_EQ(invalid(hello), "3 checkpoints of a state of 0 bytes");
    hello.num_checkpoints = -1;
    EXPECT_EQ(invalid(hello), "state_bytes and num_checkpoints must not be negative");
}

}  // namespace
}  // namespace pitstop::messages
