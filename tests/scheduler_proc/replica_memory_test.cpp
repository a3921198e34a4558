// Release and resume alone: the reason of a refusal, the time of an order, the form of a loan.
#include "scheduler_proc/replica_memory.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

using messages::MemoryState;
using messages::MemoryTag;
using std::chrono::seconds;

constexpr TimePoint kStart{seconds(100)};
const Error kReason{ErrorCode::kResourceExhausted, "requests are open"};
constexpr bool kIsStill = true;

class ReplicaMemoryTest : public testing::Test {
  protected:
    // Every rank answers the last order.
    void answer_all(std::optional<Error> failure_of_last = std::nullopt) {
        const auto order = std::get<messages::WorkerMemory>(out.workers.back());
        for (const Rank rank : {Rank{0}, Rank{1}}) {
            messages::WorkerMemoryDone done{.call = order.call, .rank = rank};
            if (failure_of_last && rank == Rank{1}) done.verdict = *failure_of_last;
            EXPECT_TRUE(memory.handle_done(done));
            EXPECT_FALSE(memory.handle_done(done)) << "it has answered";
        }
    }

    ReplicaMemory memory{ReplicaId{0}, /*tp=*/2};
    TurnOutput out{};
};

// A second release is reported as done already, even where a new release would be refused.
TEST_F(ReplicaMemoryTest, ASecondReleaseIsDoneAlreadyWhereANewOneWouldBeRefused) {
    ASSERT_FALSE(memory.release({.tags = {MemoryTag::kKvCache}}, kStart, std::nullopt));
    memory.advance(kIsStill, out);
    answer_all();
    ASSERT_TRUE(memory.advance(kIsStill, out).answer);
    const auto again = memory.release({.tags = {MemoryTag::kKvCache}}, kStart, kReason);
    ASSERT_TRUE(again);
    EXPECT_TRUE(again->was_done);
    EXPECT_EQ(again->verdict.code, ErrorCode::kFailedPrecondition);
    const auto resumed = memory.resume({.tags = {MemoryTag::kKvCache}}, kStart, kReason);
    ASSERT_TRUE(resumed);
    EXPECT_EQ(resumed->verdict.code, kReason.code) << "a resume is told what stops it";
}

TEST_F(ReplicaMemoryTest, AnOrderThatIsLateBeforeItWentOutIsTakenBack) {
    ASSERT_FALSE(memory.release({.call = CallId{7}, .timeout_ms = 1000}, kStart, std::nullopt));
    EXPECT_FALSE(memory.is_all_resident());
    EXPECT_FALSE(memory.advance(!kIsStill, out).releases_kv);
    EXPECT_TRUE(out.workers.empty()) << "a step is in flight";
    ASSERT_EQ(memory.next_deadline(), kStart + seconds(1));
    const auto late = memory.end_late_call(kStart + seconds(1), "step 9");
    ASSERT_TRUE(late);
    EXPECT_EQ(late->call, CallId{7});
    EXPECT_EQ(late->verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_TRUE(memory.is_all_resident());
    memory.advance(kIsStill, out);
    EXPECT_TRUE(out.workers.empty()) << "it never goes out";
}

TEST_F(ReplicaMemoryTest, LentMemoryIsResidentToCallersAndHasNoDeadline) {
    memory.lend();
    EXPECT_TRUE(memory.is_on_loan());
    EXPECT_FALSE(memory.is_lent()) << "no rank has given it yet";
    EXPECT_EQ(memory.next_deadline(), std::nullopt) << "nobody called";
    EXPECT_TRUE(memory.advance(kIsStill, out).releases_kv);
    answer_all();
    EXPECT_FALSE(memory.advance(kIsStill, out).answer);
    ASSERT_TRUE(memory.is_lent());
    EXPECT_TRUE(memory.lacks_nothing_but_loan());
    const auto refused = memory.release({.tags = {MemoryTag::kWeights}}, kStart, kReason);
    ASSERT_TRUE(refused);
    for (const messages::TagMemory& tag : refused->tags)
        EXPECT_EQ(tag.state, MemoryState::kResident);
    memory.reclaim();
    EXPECT_TRUE(memory.is_on_loan());
    memory.advance(kIsStill, out);
    answer_all();
    memory.advance(kIsStill, out);
    EXPECT_FALSE(memory.is_on_loan());
    EXPECT_TRUE(memory.is_all_resident());
}

TEST_F(ReplicaMemoryTest, ALoanThatOneRankRefusesIsOrderedBackEverywhereAndSaid) {
    memory.lend();
    memory.advance(kIsStill, out);
    answer_all(Error{ErrorCode::kInternal, "cudaErrorUnknown"});
    EXPECT_FALSE(memory.advance(kIsStill, out).loan_failure) << "not before the way back";
    EXPECT_EQ(
        std::get<messages::WorkerMemory>(out.workers.back()).action, messages::MemoryAction::kResume
    );
    answer_all();
    const ReplicaMemory::Effects effects = memory.advance(kIsStill, out);
    ASSERT_TRUE(effects.loan_failure);
    EXPECT_NE(effects.loan_failure->message.find("rank 1"), std::string::npos);
    EXPECT_FALSE(memory.is_on_loan());
    EXPECT_TRUE(memory.is_all_resident());
}

}  // namespace
}  // namespace pitstop::scheduler
