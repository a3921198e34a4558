// The one state machine of an update: every pair of phase and order, and orders that all replicas
// answer.
#include "messages/update_round.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

namespace pitstop::messages {
namespace {

using Phase = UpdatePhase;
using Order = UpdateOrder;
using Progress = UpdateRound::Progress;
using Answer = UpdateRound::Answer;

constexpr auto kNumPhases = EnumNames<UpdatePhase>::kNames.size();
constexpr auto kNumOrders = EnumNames<UpdateOrder>::kNames.size();

template <class F>
void for_each_pair(F use) {
    for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
        for (std::size_t order = 0; order < kNumOrders; ++order)
            use(static_cast<Phase>(phase), static_cast<Order>(order));
    }
}

TEST(UpdatePhases, EveryPairOfPhaseAndOrderIsAsTheDesignSays) {
    const std::set<std::tuple<Phase, Order, Phase, Phase>> allowed{
        {Phase::kIdle, Order::kOpen, Phase::kOpening, Phase::kOpen},
        {Phase::kIdle, Order::kStage, Phase::kStaging, Phase::kPrepared},
        {Phase::kIdle, Order::kReady, Phase::kStopping, Phase::kStopped},
        {Phase::kOpen, Order::kFill, Phase::kFilling, Phase::kOpen},
        {Phase::kOpen, Order::kStage, Phase::kStaging, Phase::kPrepared},
        {Phase::kPrepared, Order::kReady, Phase::kReadying, Phase::kReady},
        {Phase::kStopped, Order::kStage, Phase::kOverwriting, Phase::kReady},
        {Phase::kReady, Order::kCommit, Phase::kCommitting, Phase::kCommitted},
    };
    const std::set<Phase> is_past_dropping{
        Phase::kCommitting, Phase::kCommitted, Phase::kDropping, Phase::kDropped};
    std::size_t num_allowed = 0;
    for_each_pair([&](Phase phase, Order order) {
        SCOPED_TRACE(testing::Message() << name_of(phase) << ", " << name_of(order));
        const auto row = transition(phase, order);
        if (order == Order::kDrop) {
            EXPECT_EQ(row.has_value(), !is_past_dropping.contains(phase));
            EXPECT_TRUE(!row || row->done == Phase::kDropped);
            return;
        }
        if (!row) return;
        ++num_allowed;
        EXPECT_TRUE(allowed.contains({row->from, row->order, row->asking, row->done}));
        EXPECT_EQ(row->from, phase);
        EXPECT_EQ(row->order, order);
    });
    EXPECT_EQ(num_allowed, allowed.size());
}

TEST(UpdatePhases, NamesAreDistinct) {
    const auto& names = EnumNames<UpdatePhase>::kNames;
    EXPECT_EQ(std::set(names.begin(), names.end()).size(), kNumPhases);
}

// Gives the orders in every sequence; all participants answer each order as done.
void walk(const UpdateRound& round, bool is_staged, bool stands, int num_left) {
    for (std::size_t i = 0; i < kNumOrders && num_left > 0; ++i) {
        const auto order = static_cast<Order>(i);
        if (!round.may(order)) continue;
        EXPECT_TRUE(order != Order::kCommit || (is_staged && stands));
        UpdateRound next = round;
        next.ask(order);
        next.finish();
        if (order == Order::kCommit || order == Order::kDrop) {
            for (std::size_t j = 0; j < kNumOrders; ++j)
                EXPECT_FALSE(next.may(static_cast<Order>(j))) << "it is over";
            continue;
        }
        const bool stands_now = stands || order == Order::kReady;
        EXPECT_EQ(is_asked_to_stand(next.phase()), stands_now) << name_of(next.phase());
        walk(
            next,
            is_staged || order == Order::kStage,
            stands || order == Order::kReady,
            num_left - 1
        );
    }
}

TEST(UpdatePhases, P2_NoSequenceOfOrdersCommitsWithoutStageAndStandstill) {
    walk(UpdateRound(1), /*is_staged=*/false, /*stands=*/false, 8);
}

TEST(UpdateRound, IsDoneWhenAllHaveAnswered) {
    UpdateRound round(3);
    EXPECT_FALSE(round.awaits(Order::kStage, 0)) << "nothing was asked";
    round.ask(Order::kStage);
    EXPECT_EQ(round.record_answer(2, Answer::kDone), Progress::kGoesOn);
    EXPECT_FALSE(round.awaits(Order::kStage, 2)) << "it has answered";
    EXPECT_FALSE(round.awaits(Order::kReady, 0)) << "another order";
    EXPECT_FALSE(round.awaits(Order::kStage, 3));
    EXPECT_FALSE(round.awaits(Order::kStage, -1));
    EXPECT_EQ(round.silent(), (std::vector<std::size_t>{0, 1}));
    EXPECT_EQ(round.record_answer(0, Answer::kDone), Progress::kGoesOn);
    EXPECT_EQ(round.phase(), Phase::kStaging);
    EXPECT_EQ(round.record_answer(1, Answer::kDone), Progress::kDone);
    EXPECT_EQ(round.phase(), Phase::kPrepared);
    EXPECT_FALSE(round.awaits(Order::kStage, 1));
}

TEST(UpdateRound, P2_AfterOneHasFailedOnlyADropFollows) {
    UpdateRound round(2);
    round.ask(Order::kStage);
    EXPECT_EQ(round.record_answer(1, Answer::kFailed), Progress::kFailed);
    for_each_pair([&](Phase, Order order) { EXPECT_EQ(round.may(order), order == Order::kDrop); });
    EXPECT_EQ(round.record_answer(0, Answer::kDone), Progress::kGoesOn) << "for the report only";
    EXPECT_EQ(round.phase(), Phase::kStaging) << "where it failed";
    round.ask(Order::kDrop);
    EXPECT_EQ(round.record_answer(0, Answer::kFailed), Progress::kGoesOn) << "a drop cannot fail";
    EXPECT_EQ(round.record_answer(1, Answer::kDone), Progress::kDone);
    EXPECT_EQ(round.phase(), Phase::kDropped);
}

TEST(UpdateRound, TimeThatIsUpIsAFailure) {
    UpdateRound round(2);
    round.ask(Order::kOpen);
    round.fail();
    EXPECT_FALSE(round.is_asking());
    EXPECT_TRUE(round.awaits(Order::kOpen, 0)) << "it may still say how far it came";
    EXPECT_FALSE(round.may(Order::kFill));
    EXPECT_TRUE(round.may(Order::kDrop));
}

TEST(UpdateRound, ACommitIsDroppedOnlyWhereOneHasRefusedIt) {
    UpdateRound round(2);
    for (const Order order : {Order::kStage, Order::kReady}) round.ask(order), round.finish();
    round.ask(Order::kCommit);
    EXPECT_FALSE(round.may(Order::kDrop));
    round.record_answer(0, Answer::kDone);
    EXPECT_EQ(round.record_answer(1, Answer::kFailed), Progress::kFailed);
    EXPECT_TRUE(round.may(Order::kDrop));
}

}  // namespace
}  // namespace pitstop::messages
