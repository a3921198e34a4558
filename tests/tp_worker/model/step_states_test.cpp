// Tests which states a step's rows read and write, and that a row is refused if it would continue
// from a wrong state.
#include "tp_worker/model/step_states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tp_worker {
namespace {

using messages::CheckpointId;
using messages::PlanRow;

PlanRow row(int slot, std::int64_t begin, std::int64_t num_new) {
    return {.slot = static_cast<SlotId>(slot), .begin = begin, .num_new = num_new, .num_pages = 1};
}

Result<> prepare(StepStates& states, std::vector<PlanRow> rows) {
    messages::StepPlan plan;
    plan.rows = std::move(rows);
    return states.prepare(plan);
}

std::string refusal(StepStates& states, std::vector<PlanRow> rows) {
    const Result<> result = prepare(states, std::move(rows));
    return result ? "" : result.error().message;
}

std::vector<std::int32_t> list(std::span<const std::int32_t> numbers) {
    return {numbers.begin(), numbers.end()};
}

TEST(StepStates, RowsContinueTheirSlotsOrCheckpoints) {
    StepStates states(4, 3);
    PlanRow saving = row(2, 0, 10);
    saving.save_to = CheckpointId{1};
    saving.save_at = 8;
    ASSERT_TRUE(prepare(states, {row(0, 0, 5), saving}));
    StatePlaces places = states.places();
    EXPECT_EQ(list(places.places), (std::vector{0, 2}));
    EXPECT_EQ(list(places.from_places), (std::vector{0, 2}));
    EXPECT_EQ(places.saved_places[1], 5) << "checkpoints lie behind the slots";
    EXPECT_EQ(list(places.saved_ends), (std::vector{0, 13})) << "the first saves nothing";

    PlanRow restoring = row(3, 8, 2);
    restoring.state_from = CheckpointId{1};
    ASSERT_TRUE(prepare(states, {row(0, 5, 1), row(2, 10, 1), restoring}));
    places = states.places();
    EXPECT_EQ(list(places.from_places), (std::vector{0, 2, 5}));
    EXPECT_EQ(list(places.places), (std::vector{0, 2, 3}));
    EXPECT_TRUE(prepare(states, {row(3, 10, 1)}));
    EXPECT_TRUE(prepare(states, {row(3, 0, 1)})) << "any slot may start again";
}

TEST(StepStates, RowsOfPaddingHaveNoPlace) {
    StepStates states(4, 3);
    ASSERT_TRUE(prepare(states, {row(2, 0, 5)}));
    states.pad(3);
    const StatePlaces places = states.places();
    EXPECT_EQ(list(places.places), (std::vector{2, -1, -1}));
    EXPECT_EQ(list(places.from_places), (std::vector{2, -1, -1}));
    EXPECT_EQ(list(places.saved_places), (std::vector{2, -1, -1}));
    EXPECT_EQ(list(places.saved_ends), (std::vector{0, 0, 0}));
    EXPECT_TRUE(prepare(states, {row(2, 5, 1)})) << "padding changes no state";
    EXPECT_EQ(list(states.places().places), (std::vector{2}));
}

PlanRow drafted(int slot, std::int64_t begin, std::int64_t num_drafted) {
    PlanRow one = row(slot, begin, 1 + num_drafted);
    one.output_index = 0;
    one.num_drafted = num_drafted;
    return one;
}

TEST(StepStates, TheStateBeforeDraftsIsStoredAndThenChangedByThoseThatAreRight) {
    StepStates states(4, 3);
    ASSERT_TRUE(prepare(states, {row(0, 0, 5), row(1, 0, 7), row(2, 0, 3)}));
    EXPECT_TRUE(states.places().stored_ends.empty()) << "no drafts: the rows' ends";
    PlanRow saving = drafted(2, 3, 4);
    saving.save_to = CheckpointId{1};
    saving.save_at = 6;
    ASSERT_TRUE(prepare(states, {drafted(0, 5, 2), row(1, 7, 2), saving}));
    EXPECT_EQ(list(states.places().stored_ends), (std::vector{1, 5, 6}));
    EXPECT_EQ(list(states.drafted_rows()), (std::vector{1, 2, 6, 7, 8, 9}));
    EXPECT_EQ(list(states.places().saved_ends), (std::vector{0, 3, 5})) << "saved by the replay";

    const StepBatch replay = states.accept(std::vector<std::int64_t>{1, 3});
    EXPECT_EQ(replay.tokens.size(), 4u);
    EXPECT_EQ(list(replay.drafted_rows), (std::vector{0, 2, 3, 4}));
    EXPECT_EQ(list(replay.positions), (std::vector{6, 4, 5, 6}));
    EXPECT_EQ(list(replay.q_starts), (std::vector{0, 1, 4}));
    EXPECT_EQ(list(replay.states.places), (std::vector{0, 2}));
    EXPECT_EQ(list(replay.states.from_places), (std::vector{0, 2}));
    EXPECT_EQ(replay.states.saved_places[1], 5);
    EXPECT_EQ(list(replay.states.saved_ends), (std::vector{0, 3}));
    EXPECT_TRUE(replay.states.stored_ends.empty());

    EXPECT_NE(refusal(states, {row(0, 8, 1)}).find("is that of 7 tokens"), std::string::npos);
    PlanRow restoring = row(3, 6, 1);
    restoring.state_from = CheckpointId{1};
    EXPECT_TRUE(prepare(states, {row(0, 7, 1), row(1, 9, 1), row(2, 7, 1), restoring}));
}

TEST(StepStates, WithoutARightDraftNothingIsReplayedOrSaved) {
    StepStates states(4, 3);
    ASSERT_TRUE(prepare(states, {row(1, 0, 3)}));
    PlanRow saving = drafted(1, 3, 4);
    saving.save_to = CheckpointId{2};
    saving.save_at = 6;
    ASSERT_TRUE(prepare(states, {saving}));
    EXPECT_EQ(states.accept(std::vector<std::int64_t>{0}).num_tokens(), 0);
    EXPECT_TRUE(prepare(states, {row(1, 4, 1)}));
    PlanRow restoring = row(3, 6, 1);
    restoring.state_from = CheckpointId{2};
    EXPECT_NE(refusal(states, {restoring}).find("is that of 0 tokens"), std::string::npos);
    // The state before the drafts is saved by the step itself.
    saving = drafted(1, 5, 2);
    saving.save_to = CheckpointId{2};
    saving.save_at = 6;
    ASSERT_TRUE(prepare(states, {saving}));
    EXPECT_EQ(list(states.places().saved_ends), (std::vector{1}));
    EXPECT_EQ(states.accept(std::vector<std::int64_t>{1}).states.saved_ends[0], 0);
    EXPECT_TRUE(prepare(states, {restoring}));
}

TEST(StepStates, MoreDraftsThanTheBlocksKeepAreRefused) {
    StepStates states(300, 0);
    std::vector<PlanRow> rows;
    for (int slot = 0; slot < 256; ++slot) rows.push_back(drafted(slot, 0, 1));
    ASSERT_TRUE(prepare(states, rows));
    rows.push_back(drafted(256, 0, 1));
    EXPECT_NE(
        refusal(states, rows).find("257 drafts over recurrent states; accepted are 256"),
        std::string::npos
    );
}

TEST(StepStates, ARowThatWouldContinueAnotherStateIsRefused) {
    StepStates states(2, 1);
    ASSERT_TRUE(prepare(states, {row(0, 0, 5)}));
    EXPECT_NE(refusal(states, {row(0, 4, 1)}).find("is that of 5 tokens"), std::string::npos);
    EXPECT_NE(
        refusal(states, {row(1, 5, 1)}).find("slot 1 is that of 0 tokens"), std::string::npos
    );
    PlanRow restoring = row(1, 5, 1);
    restoring.state_from = CheckpointId{0};
    EXPECT_NE(refusal(states, {restoring}).find("checkpoint 0 is that of 0"), std::string::npos);
    EXPECT_NE(refusal(states, {row(0, 5, 1), row(0, 6, 1)}).find("takes one"), std::string::npos);
    EXPECT_TRUE(prepare(states, {row(0, 5, 1)})) << "what is refused changes nothing";
}

}  // namespace
}  // namespace pitstop::tp_worker
