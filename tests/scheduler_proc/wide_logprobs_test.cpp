// Requests for very many logprobs of each token, and the reported times of requests.
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <variant>

namespace pitstop::scheduler {
namespace {

// A step has room for two positions with this many logprobs, and not for three.
constexpr std::int64_t kTop = 700'000;

Ask wide(std::int64_t first, std::int64_t prompt_len) {
    Ask ask{.prompt = prompt_of(prompt_len, first), .max_new_tokens = 2};
    ask.logprobs = {.enabled = true, .top = kTop};
    return ask;
}

std::int64_t num_wide_positions(const messages::StepPlan& plan) {
    std::int64_t num = 0;
    for (const messages::PlanRow& row : plan.rows) {
        const bool is_wide = std::ranges::any_of(plan.setups, [&](const auto& setup) {
            return setup.slot == row.slot && setup.logprobs.top == kTop;
        });
        if (is_wide) num += row.num_scored + (row.output_index ? 1 : 0);
    }
    return num;
}

std::optional<messages::StepPlan> plan_of(const TurnOutput& out) {
    for (const ToWorkers& message : out.workers) {
        if (const auto* plan = std::get_if<messages::StepPlan>(&message)) return *plan;
    }
    return std::nullopt;
}

TEST(WideLogprobs, TakeTurnsAndHoldUpNobodyElse) {
    Rig rig;
    std::vector<RequestKey> keys;
    for (int i = 0; i < 3; ++i) keys.push_back(rig.send(wide(100 + i, 8)));
    const RequestKey other = rig.send({.prompt = prompt_of(8, 7), .max_new_tokens = 2});
    const std::optional<messages::StepPlan> plan = plan_of(rig.turn());
    ASSERT_TRUE(plan);
    EXPECT_EQ(num_wide_positions(*plan), 2);
    EXPECT_EQ(plan->rows.size(), 3u);  // two wide requests, and the last one, which is not wide
    rig.run();
    for (const RequestKey key : keys) {
        EXPECT_EQ(rig.of(key).tokens.size(), 2u);
        EXPECT_EQ(rig.of(key).top_ids.size(), 2u * kTop);
    }
    EXPECT_EQ(rig.of(other).tokens.size(), 2u);
    EXPECT_TRUE(rig.workers.problems().empty());
}

TEST(WideLogprobs, AScoredPromptIsCutToWhatAStepReports) {
    Rig rig;
    Ask ask = wide(5, 6);
    ask.logprobs.prompt_start = 0;
    ask.max_new_tokens = 0;
    const RequestKey key = rig.send(ask);
    const std::optional<messages::StepPlan> plan = plan_of(rig.turn());
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->tokens.values.size(), 2u);
    rig.run();
    ASSERT_TRUE(rig.of(key).prompt);
    EXPECT_EQ(rig.of(key).prompt->logprobs.size(), 5u);
    EXPECT_EQ(
        rig.of(key).prompt->ranks,
        rig.expected({.prompt = ask.prompt,
                      .max_new_tokens = 0,
                      .logprobs = {.enabled = true, .prompt_start = 0}}
        ).prompt->ranks
    );
    EXPECT_EQ(rig.of(key).prompt->top_ids.size(), 5u * kTop);
}

TEST(RequestTimes, AreOfTheQueueTheFirstTokenAndTheRest) {
    Rig rig({.num_slots = 1});
    const RequestKey first = rig.send({.prompt = prompt_of(8, 1), .max_new_tokens = 5});
    const RequestKey second = rig.send({.prompt = prompt_of(8, 2), .max_new_tokens = 1});
    rig.turn();
    const TimePoint since = rig.now;
    while (!rig.of(first).finish) ASSERT_TRUE(rig.step());
    const auto us = [&](TimePoint until) {
        return std::chrono::duration_cast<std::chrono::microseconds>(until - since).count();
    };
    const messages::RequestCounts counts = *rig.of(first).counts;
    EXPECT_EQ(counts.queue_us, 0);
    EXPECT_GT(counts.prefill_us, 0);
    EXPECT_EQ(counts.prefill_us + counts.decode_us, us(rig.now));
    const std::int64_t until_then = us(rig.now);
    while (!rig.of(second).finish) ASSERT_TRUE(rig.step());
    const messages::RequestCounts later = *rig.of(second).counts;
    EXPECT_GE(later.queue_us, until_then);
    EXPECT_EQ(later.queue_us + later.prefill_us, us(rig.now));
    EXPECT_EQ(later.decode_us, 0);
}

}  // namespace
}  // namespace pitstop::scheduler
