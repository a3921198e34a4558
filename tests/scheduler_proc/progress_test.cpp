#include "scheduler_proc/progress.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

TEST(Progress, GoesThroughAPromptInChunksAndSamplesAfterTheLast) {
    Progress progress(/*prompt_len=*/10, /*output_len_max=*/2);
    EXPECT_EQ(progress.plannable(), 10);
    progress.start(/*num_cached=*/4);
    EXPECT_EQ(progress.done(), 4);
    EXPECT_EQ(progress.plannable(), 6);
    progress.plan(3, /*samples=*/false);
    progress.plan(3, /*samples=*/true);
    EXPECT_EQ(progress.problem(), std::nullopt);
    EXPECT_EQ(progress.planned(), 10);
    EXPECT_EQ(progress.done(), 4) << "both steps are in flight";
    progress.finish_step(7);
    progress.finish_step(10);
    EXPECT_EQ(progress.outputs(), 0);
    progress.learn_token();
    EXPECT_EQ(progress.outputs(), 1);
    EXPECT_EQ(progress.known(), 11);
    EXPECT_EQ(progress.plannable(), 1);
    EXPECT_EQ(progress.problem(), std::nullopt);
}

// Overlap: the request's next step is planned before its first token is known.
TEST(Progress, PlansOneTokenBesideTheOneThatIsBeingSampledAndNoneAfterTheLast) {
    Progress progress(5, 2);
    progress.start(0);
    progress.plan(5, /*samples=*/true);
    EXPECT_EQ(progress.plannable(), 1);
    progress.plan(1, /*samples=*/true);
    EXPECT_EQ(progress.pending(), 2);
    EXPECT_EQ(progress.problem(), std::nullopt);
    EXPECT_FALSE(progress.may_sample());
    EXPECT_EQ(progress.plannable(), 0);
    progress.finish_step(5);
    progress.learn_token();
    EXPECT_EQ(progress.plannable(), 0) << "two tokens are known or being sampled";
    EXPECT_EQ(progress.problem(), std::nullopt);
}

TEST(Progress, P4_ARetractionGivesUpPositionsAndNoToken) {
    Progress progress(5, 9);
    progress.start(0);
    progress.plan(5, /*samples=*/true);
    progress.finish_step(5);
    progress.learn_token();
    progress.plan(1, /*samples=*/true);
    progress.retract();
    EXPECT_EQ(progress.lost(), 6);
    EXPECT_EQ(progress.planned(), 0);
    EXPECT_EQ(progress.pending(), 1) << "its step is in flight, and the token will come";
    EXPECT_EQ(progress.problem(), std::nullopt);
    progress.learn_token();
    EXPECT_EQ(progress.known(), 7);
    EXPECT_EQ(progress.plannable(), 7) << "all of it is computed again";
    EXPECT_EQ(progress.problem(), std::nullopt);
}

TEST(Progress, SaysWhichInvariantIsBroken) {
    const auto problem_after = [](auto break_it) {
        Progress progress(5, 1);
        progress.start(0);
        EXPECT_EQ(progress.problem(), std::nullopt);
        break_it(progress);
        return progress.problem();
    };
    EXPECT_EQ(
        problem_after([](Progress& p) { p.plan(6, /*samples=*/false); }),
        "plans tokens that are not known"
    );
    EXPECT_EQ(
        problem_after([](Progress& p) { p.plan(4, /*samples=*/true); }),
        "positions and pending tokens do not add up"
    );
    EXPECT_EQ(problem_after([](Progress& p) { p.finish_step(1); }), "done before planned");
    EXPECT_EQ(problem_after([](Progress& p) { p.finish_step(-1); }), "counts below zero");
    EXPECT_EQ(problem_after([](Progress& p) { p.learn_token(); }), "counts below zero");
    EXPECT_EQ(
        problem_after([](Progress& p) {
            p.plan(5, /*samples=*/true);
            p.plan(1, /*samples=*/true);
            p.learn_token();
            p.learn_token();
        }),
        "has more output than it asked for"
    );
}

}  // namespace
}  // namespace pitstop::scheduler
