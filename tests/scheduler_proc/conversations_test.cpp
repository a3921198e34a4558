// Turns of conversations that do not fit into the pool together (scheduler_proc/conversations.h).
#include "scheduler_proc/conversations.h"

#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <vector>

namespace pitstop::scheduler {
namespace {

using std::chrono::seconds;

constexpr messages::ConversationId kOldest{8};
constexpr messages::ConversationId kOld{7};
constexpr messages::ConversationId kMiddle{3};
constexpr messages::ConversationId kYoung{5};
constexpr messages::ConversationId kYoungest{4};
constexpr std::int64_t kPool = 1000;  // tokens

class ConversationsTest : public testing::Test {
  protected:
    // A whole turn, after which the conversation has this many tokens.
    void run(messages::ConversationId id, std::int64_t num_tokens, std::int64_t num_cached = 0) {
        conversations.begin_round(kPool, now);
        conversations.begin_turn(id);
        conversations.end_turn(id, Conversations::Ran{num_tokens, num_cached});
    }
    [[nodiscard]] bool may_start(messages::ConversationId id) {
        conversations.begin_round(kPool, now);
        conversations.begin_turn(id);
        const bool may = conversations.may_start(id, now);
        deadline = conversations.next_deadline();
        conversations.end_turn(id, std::nullopt);
        return may;
    }

    void SetUp() override { conversations.begin_round(kPool, now); }

    Conversations conversations{};
    TimePoint now = TimePoint{} + seconds(1000);
    std::optional<TimePoint> deadline{};
};

TEST_F(ConversationsTest, TurnsThatFitWhenTheyGrowAllStart) {
    run(kOld, 200);
    run(kYoung, 300);
    conversations.begin_round(kPool, now);
    EXPECT_TRUE(conversations.may_start(kOld, now));
    EXPECT_TRUE(conversations.may_start(kYoung, now));
    EXPECT_FALSE(conversations.next_deadline());
}

TEST_F(ConversationsTest, AYoungerOneWaitsAndOnlyAShortOneOvertakesIt) {
    run(kOldest, 100);
    run(kOld, 240);
    run(kMiddle, 200);
    run(kYoung, 150);
    run(kYoungest, 15);
    conversations.begin_round(kPool, now);
    EXPECT_TRUE(conversations.may_start(kOld, now));
    EXPECT_FALSE(conversations.may_start(kMiddle, now));
    EXPECT_FALSE(conversations.may_start(kYoung, now));
    EXPECT_TRUE(conversations.may_start(kYoungest, now));
}

TEST_F(ConversationsTest, TheOldestStartsWhateverItsLength) {
    run(kOld, 900);
    run(kYoung, 60);
    conversations.begin_round(kPool, now);
    EXPECT_TRUE(conversations.may_start(kOld, now));
    EXPECT_FALSE(conversations.may_start(kYoung, now));
}

TEST_F(ConversationsTest, ALongOneLeavesRoomForOthers) {
    run(kOld, 700);
    run(kYoung, 140);
    conversations.begin_round(kPool, now);
    EXPECT_TRUE(conversations.may_start(kYoung, now));
}

TEST_F(ConversationsTest, WhatItsFirstTurnFoundCachedDoesNotCount) {
    run(kOld, 460);
    run(kYoung, 460, 440);
    conversations.begin_round(kPool, now);
    EXPECT_TRUE(conversations.may_start(kYoung, now));
}

// A turn that never ran does not show whether its tokens are cached.
TEST_F(ConversationsTest, ATurnThatNeverRanTellsNothing) {
    run(kOld, 500);
    conversations.begin_turn(kYoung);
    conversations.end_turn(kYoung, std::nullopt);
    EXPECT_TRUE(may_start(kYoung));
}

// Of several samples, those that start later find the prompt that the first has computed.
TEST_F(ConversationsTest, APromptThatItsOwnFirstTurnComputedCounts) {
    run(kOld, 600);
    conversations.begin_turn(kYoung);
    conversations.begin_turn(kYoung);
    conversations.end_turn(kYoung, Conversations::Ran{400, 390});
    conversations.end_turn(kYoung, Conversations::Ran{400, 0});
    EXPECT_FALSE(may_start(kYoung));
}

TEST_F(ConversationsTest, AFirstTurnStarts) {
    run(kOld, 1000);
    EXPECT_TRUE(may_start(kYoung));
}

TEST_F(ConversationsTest, AnIdleOneCountsAsLongAsItsClientIsExpected) {
    run(kOld, 600);
    run(kYoung, 400);
    EXPECT_FALSE(may_start(kYoung));
    ASSERT_TRUE(deadline);
    EXPECT_EQ(*deadline, now + Conversations::kPatience);
    now += Conversations::kPatience;
    EXPECT_TRUE(may_start(kYoung));
}

TEST_F(ConversationsTest, AClientIsExpectedWithinTwiceItsLongestPause) {
    run(kOld, 600);
    now += seconds(4);
    run(kOld, 600);
    run(kYoung, 400);
    now += seconds(7);
    EXPECT_FALSE(may_start(kYoung));
    now += seconds(1);
    EXPECT_TRUE(may_start(kYoung));
}

TEST_F(ConversationsTest, OverdueOnesAreNamedOnceWhileOthersNeedThePool) {
    run(kOld, 600);
    now += Conversations::kPatience;
    run(kYoung, 150);
    EXPECT_TRUE(may_start(kYoung));
    EXPECT_TRUE(conversations.take_overdue().empty());  // all fit
    run(kYoung, 300);
    EXPECT_TRUE(may_start(kYoung));
    EXPECT_EQ(conversations.take_overdue(), std::vector{kOld});
    EXPECT_TRUE(may_start(kYoung));
    EXPECT_TRUE(conversations.take_overdue().empty());
    run(kOld, 600);
    now += Conversations::kPatienceMax;
    EXPECT_TRUE(may_start(kYoung));
    EXPECT_EQ(conversations.take_overdue(), std::vector{kOld});
}

TEST_F(ConversationsTest, NoTurnWaitsForLongerThanAMinute) {
    conversations.begin_turn(kOld);
    conversations.begin_turn(kOld);  // runs for a long time
    conversations.end_turn(kOld, Conversations::Ran{800, 0});
    run(kYoung, 400);
    conversations.begin_turn(kYoung);
    conversations.begin_round(kPool, now);
    EXPECT_FALSE(conversations.may_start(kYoung, now));
    ASSERT_EQ(conversations.next_deadline(), now + Conversations::kWaitMax);
    conversations.begin_round(kPool, now + Conversations::kWaitMax);
    EXPECT_TRUE(conversations.may_start(kYoung, now));
}

TEST_F(ConversationsTest, AnEndedOneDoesNotCount) {
    run(kOld, 600);
    run(kYoung, 400);
    conversations.end(kOld);
    conversations.begin_round(kPool, now);
    EXPECT_TRUE(conversations.may_start(kYoung, now));
    EXPECT_EQ(conversations.size(), 1u);
}

TEST_F(ConversationsTest, TheIdlestIsForgottenWhenThereAreTooMany) {
    for (std::uint64_t i = 0; i < Conversations::kConversationsMax + 10; ++i) {
        now += seconds(1);
        run(messages::ConversationId{i + 1}, 10);
    }
    EXPECT_EQ(conversations.size(), Conversations::kConversationsMax);
}

// ---- agents on a scheduler ----

constexpr std::size_t kNumAgents = 16;
constexpr int kNumTurns = 20;
constexpr std::int64_t kToolTokens = 100;
constexpr std::int64_t kOutputTokens = 4;
constexpr std::int64_t kFinalTokens = kNumTurns * (kToolTokens + kOutputTokens);

FakeModel agents_model() {
    FakeModel model;
    model.num_pages = std::int64_t{kNumAgents} * kFinalTokens / 2 / model.page_size;
    model.num_slots = kNumAgents;
    model.context_len = 2 * kFinalTokens;
    model.eos_ids = {};
    return model;
}

struct Agent {
    Ask ask{};
    RequestKey key{};
    int num_turns = 0;
    bool is_open = false;
};

// Sends the agent's next turn: its last prompt, the output, and the result of a tool.
void send_next(Rig& rig, Agent& agent, std::size_t at) {
    if (agent.num_turns > 0) {
        const std::vector<TokenId>& got = rig.of(agent.key).tokens;
        agent.ask.prompt.insert(agent.ask.prompt.end(), got.begin(), got.end());
    }
    const auto first = static_cast<std::int64_t>(100 + at * kNumTurns) + agent.num_turns;
    const std::vector<TokenId> result = prompt_of(kToolTokens, first);
    agent.ask.prompt.insert(agent.ask.prompt.end(), result.begin(), result.end());
    agent.ask.max_new_tokens = kOutputTokens;
    agent.key = rig.send(agent.ask);
    agent.is_open = true;
}

// Returns the tokens that the workers computed for each token that had to be computed.
double computed_by_agents(bool have_conversations) {
    SchedulerConfig config;
    config.session_memory = 1;
    Rig rig(agents_model(), config);
    rig.tick = std::chrono::milliseconds(300);
    std::array<Agent, kNumAgents> agents{};
    std::size_t num_done = 0;
    for (std::size_t at = 0; at < kNumAgents; ++at) {
        if (have_conversations) agents[at].ask.conversation = messages::ConversationId{at + 1};
    }
    for (int i = 0; i < 1000000 && num_done < kNumAgents; ++i) {
        num_done = 0;
        for (std::size_t at = 0; at < kNumAgents; ++at) {
            Agent& agent = agents[at];
            if (agent.is_open && rig.of(agent.key).finish) {
                agent.is_open = false;
                ++agent.num_turns;
            }
            if (agent.num_turns == kNumTurns) {
                ++num_done;
            } else if (!agent.is_open) {
                send_next(rig, agent, at);
            }
        }
        rig.step();
    }
    EXPECT_EQ(num_done, kNumAgents);
    const auto num_new = static_cast<double>(kNumAgents * kFinalTokens);
    return static_cast<double>(rig.workers.num_tokens_run()) / num_new;
}

TEST(Agents, InAPoolForHalfOfThemLittleIsComputedTwice) {
    EXPECT_GT(computed_by_agents(false), 2);
    EXPECT_LE(computed_by_agents(true), 1.2);
}

}  // namespace
}  // namespace pitstop::scheduler
