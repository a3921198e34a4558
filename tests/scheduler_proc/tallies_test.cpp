#include "scheduler_proc/tallies.h"

#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

using namespace std::chrono_literals;

TEST(Rate, IsWhatCameInTheLastSecondOrSo) {
    Rate rate;
    TimePoint now = TimePoint{} + 1h;
    for (int i = 0; i < 400; ++i) rate.add(now += 10ms, 5);  // 500 a second
    EXPECT_NEAR(rate.at(now), 500, 15);
    EXPECT_NEAR(rate.at(now + 3s), 0, 1e-9) << "nothing came for long";
    for (int i = 0; i < 200; ++i) rate.add(now += 10ms, 1);
    EXPECT_NEAR(rate.at(now), 100, 10);
    rate.stop(now);
    EXPECT_EQ(rate.at(now), 0);
}

TEST(StepTimes, AStepIsTimedFromWhereTheOneBeforeItEnded) {
    StepTimes times;
    const TimePoint begin = TimePoint{} + 1h;
    times.add(begin, begin + 10ms);
    times.add(begin + 5ms, begin + 20ms);   // sent while the first ran: 10 ms
    times.add(begin + 50ms, begin + 54ms);  // nothing ran before it: 4 ms
    times.watch();
    EXPECT_EQ(times.watched().num, 0);
    EXPECT_EQ(times.watched().mean_before, 8ms);
    times.add(begin + 54ms, begin + 60ms);
    times.add(begin + 55ms, begin + 75ms);  // 15 ms
    EXPECT_EQ(times.watched().num, 2);
    EXPECT_EQ(times.watched().sum, 21ms);
    EXPECT_EQ(times.watched().longest, 15ms);
    for (int i = 0; i < 64; ++i) times.add(begin + 1s + i * 1ms, begin + 1s + (i + 1) * 1ms);
    times.watch();
    EXPECT_EQ(times.watched().mean_before, 1ms) << "of the latest 64";
}

TEST(Tallies, CacheHitsAreCountedByHowOldTheKvIs) {
    Rig rig{FakeModel{.page_size = 4}};
    const Ask ask{
        .prompt = prompt_of(12), .max_new_tokens = 2, .kv_tolerance = messages::KvTolerance::kKeep};
    rig.send(ask);
    rig.run();
    rig.send(ask);
    rig.run();
    // The two whole pages are cached; the prompt's last token is computed, because sampling needs
    // its pass.
    EXPECT_EQ(rig.status().cache_hits, (std::vector<messages::CacheHits>{{.lag = 0, .tokens = 8}}));
    const messages::UpdateId update{1};
    messages::UpdateStage stage{.update = update, .new_epoch = Epoch{4}};
    stage.spec.source.path = "/models/next";
    rig.control(stage);
    rig.run();
    rig.control(messages::UpdateReady{.update = update});
    rig.run();
    rig.control(messages::UpdateCommit{.update = update});
    rig.run();
    rig.send(ask);
    rig.run();
    EXPECT_EQ(
        rig.status().cache_hits,
        (std::vector<messages::CacheHits>{{.lag = 0, .tokens = 8}, {.lag = 3, .tokens = 8}})
    );
}

TEST(Tallies, PausesRecomputedTokensAndEndsAreCounted) {
    Rig rig;
    const RequestKey key = rig.send({.prompt = prompt_of(10), .max_new_tokens = 20});
    rig.turn();
    for (int i = 0; i < 5; ++i) rig.step();
    rig.control(messages::PauseGeneration{.call = CallId{1}, .mode = messages::PauseMode::kRetract}
    );
    rig.turn();
    rig.run();
    EXPECT_EQ(rig.status().pause_mode, "retract");
    EXPECT_EQ(rig.status().num_retracted, 1);
    EXPECT_EQ(rig.status().output_tokens_per_s, 0) << "at once";
    rig.control(messages::FlushCache{.call = CallId{2}});
    rig.turn();
    const auto num_known = static_cast<std::int64_t>(10 + rig.of(key).tokens.size());
    rig.now += 2s;
    EXPECT_GE(rig.status().paused_s, 2);
    rig.control(messages::ContinueGeneration{.call = CallId{3}});
    rig.run();
    const messages::ReplicaStatus status = rig.status();
    EXPECT_EQ(status.pauses_total, 1);
    EXPECT_EQ(status.pause_mode, "");
    EXPECT_EQ(status.paused_s, 0);
    EXPECT_GE(status.paused_s_total, 2);
    EXPECT_EQ(status.num_retracted, 0);
    // All but the last token had KV.
    EXPECT_EQ(status.recomputed_tokens_total, num_known - 1);
    EXPECT_EQ(status.finished.at(1), (messages::FinishCount{messages::FinishReason::kLength, 1}));
}

}  // namespace
}  // namespace pitstop::scheduler
