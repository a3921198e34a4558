// Calls without a session that become one update, alone: which join, which wait, which are refused.
#include "tokenizer_proc/collected_update.h"

#include "tests/tokenizer_proc/admin_outbox_reader.h"

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;
using messages::UpdateOrder;

class CollectedUpdateTest : public testing::Test {
  protected:
    CollectedUpdateTest() {
        messages::SchedulerHello hello{.epoch = Epoch{1}, .label = "base", .digest = "d1"};
        hello.has_weights = true;
        ReplicaHellos hellos(1);
        EXPECT_TRUE(hellos.add(hello));
        updates_.set_version(hellos, "/models/base", std::nullopt);
    }
    void pause(bool is_paused = true, std::int64_t num_expired = 0) {
        collected_.handle_standing(
            now_, {.is_paused = is_paused, .pauses_expired = num_expired, .has_weights = true}
        );
    }
    static messages::UpdateWeights part(const std::string& label = "step-2") {
        messages::UpdateWeights call{.call = CallId{10}};
        call.update.source.kind = messages::SourceKind::kDistributed;
        call.update.source.group = "g";
        call.update.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
        call.update.partial = true;
        call.update.label = label;
        return call;
    }
    void answer(UpdateOrder order, std::optional<ErrorCode> code = std::nullopt) {
        messages::UpdatePart part{
            .update = kFirst, .order = order, .ok = !code, .label = "step-2", .digest = "d2"};
        part.verdict.code = code;
        part.verdict.message = code ? "it is broken" : "";
        part.outcome.ranks = {{.ok = !code, .bytes = 100}};
        collected_.drive(now_, [&](UpdateCoordinator& updates, UpdateOutput& out) {
            updates.handle_part(now_, part, out);
        });
    }
    // Collects one call, which is answered.
    void collect() {
        pause();
        ASSERT_TRUE(collected_.joins(part()));
        collected_.join(now_, "trainer", part());
        read_.order<messages::UpdateStage>();
        answer(UpdateOrder::kOpen);
        read_.order<messages::UpdateFill>();
        answer(UpdateOrder::kFill);
        EXPECT_EQ(
            read_.answer<messages::UpdateReply>("trainer").state, messages::UpdateState::kCollecting
        );
    }
    // A call that counts its starts.
    HeldCall held(std::string_view what, bool brings_weights = false, Duration timeout = 10s) {
        return {
            .caller = {"other", CallId{20}},
            .what = what,
            .deadline = now_ + timeout,
            .brings_weights = brings_weights,
            .start = [this](TimePoint) {
                ++num_started_;
                return Result<>(Ok{});
            }};
    }
    HeldCall go_on(Duration timeout = 10s) {
        return held(messages::ContinueGeneration::kType, false, timeout);
    }
    void finish_commit() {
        EXPECT_EQ(read_.order<messages::UpdateFinish>().label, "step-2");
        answer(UpdateOrder::kStage);
        read_.order<messages::UpdateReady>();
        answer(UpdateOrder::kReady);
        read_.order<messages::UpdateCommit>();
        answer(UpdateOrder::kCommit);
    }

    static constexpr messages::UpdateId kFirst{40};
    TimePoint now_ = TimePoint{} + 1h;
    int num_started_ = 0;
    AdminOutbox out_{};
    AdminOutboxReader read_{out_};
    CallFanout fanout_{1, out_};
    AdminUpdates updates_{1, kFirst, out_};
    CollectedUpdate collected_{1, updates_, fanout_, out_};
};

TEST_F(CollectedUpdateTest, OnlyPartsOfAPausedTreeJoin) {
    EXPECT_FALSE(collected_.joins(part())) << "it runs: the call is an update of its own";
    pause();
    EXPECT_TRUE(collected_.joins(part()));
    messages::UpdateWeights whole = part();
    whole.update.partial = false;
    EXPECT_FALSE(collected_.joins(whole));
    pause(false);
    EXPECT_FALSE(collected_.joins(part()));
    collected_.handle_standing(now_, {.replica = ReplicaId{1}, .is_paused = true});
    EXPECT_FALSE(collected_.joins(part())) << "no such replica";
}

// P2: the collected weights serve before any token is generated.
TEST_F(CollectedUpdateTest, P2_AContinueStartsWhenTheCollectionIsCommitted) {
    collect();
    ASSERT_TRUE(collected_.is_to_publish());
    EXPECT_TRUE(collected_.lets_generation_go_on(messages::ContinueGeneration{}));
    ASSERT_TRUE(collected_.publish(now_, go_on()));
    EXPECT_TRUE(collected_.is_closing());
    EXPECT_FALSE(collected_.joins(part())) << "it would be no part of this version";
    EXPECT_EQ(num_started_, 0);
    finish_commit();
    EXPECT_EQ(num_started_, 1);
    EXPECT_FALSE(collected_.is_closing());
    EXPECT_EQ(updates_.coordinator().version().epoch, Epoch{2});
}

TEST_F(CollectedUpdateTest, P2_AContinueIsRefusedIfTheCollectionCannotBeCommitted) {
    collect();
    ASSERT_TRUE(collected_.publish(now_, go_on()));
    read_.order<messages::UpdateFinish>();
    answer(UpdateOrder::kStage, ErrorCode::kDataLoss);
    read_.order<messages::UpdateDrop>();
    answer(UpdateOrder::kDrop);
    EXPECT_EQ(num_started_, 0);
    const auto refused = read_.answer<messages::ErrorReply>("other");
    EXPECT_EQ(refused.call, CallId{20});
    EXPECT_TRUE(refused.error.message.starts_with("the collected update failed: "))
        << refused.error.message;
    EXPECT_TRUE(collected_.report_lost(now_));
}

TEST_F(CollectedUpdateTest, P5_TheCallerOfACommitThatIsLateIsToldThatItMayTakeEffect) {
    collect();
    ASSERT_TRUE(collected_.publish(now_, go_on(3s)));
    read_.order<messages::UpdateFinish>();
    answer(UpdateOrder::kStage);
    read_.order<messages::UpdateReady>();
    answer(UpdateOrder::kReady);
    read_.order<messages::UpdateCommit>();
    now_ += 3s + HeldCall::kGrace;
    collected_.tick(now_);
    const auto late = read_.answer<messages::ErrorReply>("other");
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
    answer(UpdateOrder::kCommit);
    EXPECT_EQ(num_started_, 0) << "its caller was answered";
    EXPECT_EQ(updates_.coordinator().version().epoch, Epoch{2});
}

TEST_F(CollectedUpdateTest, CallsWaitInOrderForAPartThatIsArriving) {
    pause();
    collected_.join(now_, "trainer", part());
    read_.order<messages::UpdateStage>();
    const HeldCall first = held(messages::UpdateWeights::kType, /*brings_weights=*/true);
    ASSERT_TRUE(collected_.must_wait(first));
    ASSERT_TRUE(collected_.hold(first));
    EXPECT_TRUE(collected_.must_wait(go_on())) << "it publishes what came before it";
    EXPECT_FALSE(collected_.must_wait(held(messages::FlushCache::kType)));
    answer(UpdateOrder::kOpen);
    EXPECT_EQ(num_started_, 0);
    answer(UpdateOrder::kFill);
    EXPECT_EQ(num_started_, 1);
    EXPECT_FALSE(collected_.must_wait(go_on()));
}

TEST_F(CollectedUpdateTest, P5_AHeldCallIsAnsweredAtItsDeadline) {
    pause();
    collected_.join(now_, "trainer", part());
    ASSERT_TRUE(collected_.hold(held(messages::UpdateWeights::kType, /*brings_weights=*/true, 2s)));
    EXPECT_EQ(collected_.next_deadline(), now_ + 2s);
    now_ += 2s;
    collected_.tick(now_);
    read_.order<messages::UpdateStage>();
    const auto late = read_.answer<messages::ErrorReply>("other");
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(late.error.message.find("waited for an update"), std::string::npos);
    EXPECT_EQ(num_started_, 0);
}

// P2: the trainer that paused may be gone, and half of a model is collected.
TEST_F(CollectedUpdateTest, P2_WhatIsCollectedIsDroppedWhenThePauseEndsByItself) {
    collect();
    pause(false, 1);
    EXPECT_NE(read_.order<messages::UpdateDrop>().reason.find("max_pause_s"), std::string::npos);
    answer(UpdateOrder::kDrop);
    const auto lost = collected_.report_lost(now_);
    ASSERT_TRUE(lost);
    EXPECT_EQ(lost->calls, 1);
    EXPECT_EQ(collected_.unfinished().calls, Unfinished::Calls::kCollected);
    const Result<> refused = collected_.check_loss(now_, "trainer");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kAborted);
    EXPECT_TRUE(collected_.check_loss(now_, "trainer")) << "it knows";
}

TEST_F(CollectedUpdateTest, ALabelIsTheCollectionsAndNamesNothingElse) {
    EXPECT_FALSE(collected_.takes_label());
    collect();
    ASSERT_TRUE(collected_.takes_label());
    collected_.name("trainer", {.call = CallId{30}, .label = "step-2"});
    const auto named = read_.answer<messages::LabelReply>("trainer");
    EXPECT_TRUE(named.ok);
    ASSERT_EQ(named.parts.size(), 1u);
    EXPECT_EQ(named.parts[0].label, "base") << "what serves keeps its own";
    collected_.name("trainer", {.call = CallId{31}, .label = "x", .abort_all = true});
    EXPECT_FALSE(read_.answer<messages::LabelReply>("trainer").ok);
}

TEST_F(CollectedUpdateTest, P2_AContinueWhileMemoryIsReleasedLeavesTheCollection) {
    collect();
    EXPECT_FALSE(collected_.check_none_is_collected(now_));
    collected_.handle_standing(
        now_, {.is_paused = true, .released = {messages::MemoryTag::kKvCache}, .has_weights = true}
    );
    EXPECT_FALSE(collected_.lets_generation_go_on(messages::ContinueGeneration{}));
    EXPECT_FALSE(collected_.lets_generation_go_on(messages::ResumeMemory{})) << "it is paused, too";
    const Result<> refused = collected_.check_none_is_collected(now_);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("memory is released"), std::string::npos);
    EXPECT_NE(collected_.note_for_pause(now_).find("1 calls without a session"), std::string::npos);
}

TEST_F(CollectedUpdateTest, AllWhoWaitAreAnsweredWhenTheTreeEnds) {
    collect();
    ASSERT_TRUE(collected_.publish(now_, go_on()));
    HeldCall waits = held(messages::UpdateWeights::kType, /*brings_weights=*/true);
    waits.caller.peer = "third";
    ASSERT_TRUE(collected_.hold(std::move(waits)));
    read_.order<messages::UpdateFinish>();
    collected_.fail_all({ErrorCode::kUnavailable, "the tree ends"});
    const std::string why = read_.answer<messages::ErrorReply>("other").error.message;
    EXPECT_NE(why.find("the tree ends"), std::string::npos) << why;
    EXPECT_EQ(read_.answer<messages::ErrorReply>("third").error.message, "the tree ends");
    EXPECT_EQ(num_started_, 0);
}

}  // namespace
}  // namespace pitstop::tokenizer
