// Calls without a session under a pause, or of a tree without weights: they are one update.
#include "messages/control.h"
#include "messages/memory.h"
#include "messages/weight_reads.h"
#include "tests/tokenizer_proc/doors_fixture.h"

namespace pitstop::tokenizer {
namespace {

class CollectedTest : public DoorsTest {
  protected:
    template <class Message>
    void call(Message message, std::uint64_t number) {
        message.call = CallId{number};
        send("admin", message, messages::Door::kAdmin);
    }
    template <class Message>
    Message order() {
        return next_to_replica<Message>(0, ReplicaSocket::kControl);
    }
    template <class Message>
    Message reply() {
        return next_to<Message>("admin", messages::Door::kAdmin);
    }
    void send_tensors(std::uint64_t number, const std::string& label = "") {
        messages::UpdateWeights update;
        update.update.source.kind = messages::SourceKind::kDistributed;
        update.update.source.group = "g";
        update.update.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
        update.update.partial = true;
        update.update.label = label;
        update.update.kv_policy = kv_policy_;
        call(update, number);
    }
    void answer(
        messages::UpdateOrder order,
        std::int64_t num_missing = 0,
        std::optional<ErrorCode> code = std::nullopt
    ) {
        messages::UpdatePart part;
        part.update = update_;
        part.order = order;
        part.ok = !code;
        part.verdict.code = code;
        part.verdict.message = !code ? "" : "it is broken";
        part.state = messages::UpdateState::kServing;
        part.epoch = Epoch{2};
        part.label = label_;
        part.digest = "d2";
        messages::RankOutcome rank{
            .ok = !code, .phase = messages::UpdatePhase::kStaging, .bytes = 100};
        rank.num_missing = num_missing;
        if (num_missing > 0) rank.missing = {"w.first", "w.second"};
        part.outcome.ranks = {rank};
        from_tree(part);
    }
    void finish(std::string label) {
        label_ = std::move(label);
        EXPECT_EQ(order<messages::UpdateFinish>().label, label_);
        answer(messages::UpdateOrder::kStage);
        order<messages::UpdateReady>();
        answer(messages::UpdateOrder::kReady);
        order<messages::UpdateCommit>();
        answer(messages::UpdateOrder::kCommit);
    }
    void pause() {
        call(messages::PauseGeneration{.mode = messages::PauseMode::kInPlace}, 1);
        from_tree(messages::PausePart{.call = order<messages::PauseGeneration>().call});
        ASSERT_TRUE(reply<messages::PauseReply>().ok);
    }
    void begin_collecting(bool is_partial) {
        send_tensors(10, "step-2");
        const messages::UpdateStage stage = order<messages::UpdateStage>();
        update_ = stage.update;
        EXPECT_EQ(stage.spec.partial, is_partial);
        EXPECT_EQ(stage.spec.source.kind, messages::SourceKind::kBuckets);
        answer(messages::UpdateOrder::kOpen, is_partial ? 0 : 3);
        EXPECT_EQ(order<messages::UpdateFill>().bucket, 1);
    }

    messages::UpdateId update_{};
    std::string label_{};
    messages::KvPolicy kv_policy_ = messages::KvPolicy::kKeep;
};

TEST_F(CollectedTest, CallsUnderAPauseTakeEffectTogetherBeforeTheContinue) {
    start();
    pause();
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill);
    messages::UpdateReply staged = reply<messages::UpdateReply>();
    EXPECT_TRUE(staged.ok) << staged.verdict.message;
    EXPECT_EQ(staged.state, messages::UpdateState::kCollecting);
    EXPECT_EQ(staged.epoch, Epoch{1}) << "what serves is as it was";
    EXPECT_EQ(staged.session, 0u);
    send_tensors(11, "step-3");
    EXPECT_EQ(order<messages::UpdateFill>().bucket, 2);
    answer(messages::UpdateOrder::kFill);
    EXPECT_EQ(reply<messages::UpdateReply>().call, CallId{11});

    call(messages::ContinueGeneration{}, 12);
    finish("step-3");
    from_tree(messages::ContinuePart{
        .call = order<messages::ContinueGeneration>().call, .was_paused = true});
    const auto went_on = reply<messages::ContinueReply>();
    EXPECT_EQ(went_on.call, CallId{12});
    EXPECT_TRUE(went_on.ok);
    EXPECT_NE(went_on.verdict.message.find("epoch 2, label 'step-3', digest d2"), std::string::npos)
        << went_on.verdict.message;
}

TEST_F(CollectedTest, StatusIsAnsweredMeanwhileAndSaysWhatWasCollected) {
    start();
    pause();
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    call(messages::Status{}, 20);
    messages::ReplicaStatus part;
    part.call = order<messages::Status>().call;
    part.pause_mode = "in_place";
    from_tree(part);
    const auto status = reply<messages::StatusReply>();
    ASSERT_TRUE(status.collecting);
    EXPECT_EQ(status.collecting->calls, 1);
    EXPECT_EQ(status.collecting->bytes, 100);
    EXPECT_FALSE(status.collecting->must_be_complete);
    EXPECT_EQ(status.updates_total, 0) << "nothing has taken effect";
}

TEST_F(CollectedTest, AContinueIsRefusedWhereTheUpdateFailsAndTheNextOneIsNot) {
    start();
    pause();
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    call(messages::ContinueGeneration{}, 12);
    order<messages::UpdateFinish>();
    answer(messages::UpdateOrder::kStage, 0, ErrorCode::kDataLoss);
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    const messages::ErrorReply refused = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(refused.call, CallId{12});
    EXPECT_EQ(refused.error.code, ErrorCode::kDataLoss);
    EXPECT_NE(refused.error.message.find("it is broken"), std::string::npos)
        << refused.error.message;
    call(messages::ContinueGeneration{}, 13);
    from_tree(messages::ContinuePart{
        .call = order<messages::ContinueGeneration>().call, .was_paused = true});
    EXPECT_TRUE(reply<messages::ContinueReply>().ok);
}

TEST_F(CollectedTest, ACallThatFailsEndsWhatWasCollected) {
    start();
    pause();
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    send_tensors(11);
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill, 0, ErrorCode::kInvalidArgument);
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    const auto failed = reply<messages::UpdateReply>();
    EXPECT_EQ(failed.verdict.code, ErrorCode::kInvalidArgument);
    EXPECT_NE(failed.verdict.message.find("none of the 2 calls takes effect"), std::string::npos)
        << failed.verdict.message;
    EXPECT_EQ(failed.state, messages::UpdateState::kServing);
}

TEST_F(CollectedTest, ATreeWithoutWeightsHasThemWithTheLastTensor) {
    has_weights_ = false;
    start();
    begin_collecting(/*is_partial=*/false);
    answer(messages::UpdateOrder::kFill, 2);
    const auto staged = reply<messages::UpdateReply>();
    EXPECT_EQ(staged.state, messages::UpdateState::kCollecting);
    EXPECT_NE(staged.verdict.message.find("2 missing"), std::string::npos)
        << staged.verdict.message;
    // Nothing is there that a continue could wait for: it is answered by what is.
    call(messages::ContinueGeneration{}, 12);
    from_tree(messages::ContinuePart{.call = order<messages::ContinueGeneration>().call});
    EXPECT_TRUE(reply<messages::ContinueReply>().ok);
    call(messages::Status{}, 20);
    from_tree(messages::ReplicaStatus{.call = order<messages::Status>().call});
    const auto status = reply<messages::StatusReply>();
    ASSERT_TRUE(status.collecting);
    EXPECT_EQ(status.collecting->num_missing, 2);
    EXPECT_EQ(status.collecting->missing, (std::vector<std::string>{"w.first", "w.second"}));

    send_tensors(13);
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill, 0);
    finish("step-2");
    const auto updated = reply<messages::UpdateReply>();
    EXPECT_EQ(updated.call, CallId{13});
    EXPECT_TRUE(updated.ok) << updated.verdict.message;
    EXPECT_EQ(updated.state, messages::UpdateState::kServing);
    EXPECT_EQ(updated.epoch, Epoch{2});
}

TEST_F(CollectedTest, ACommitThatIsNotAnsweredIsNotSaidToHaveNoEffect) {
    has_weights_ = false;
    start();
    begin_collecting(/*is_partial=*/false);
    answer(messages::UpdateOrder::kFill, 2);
    reply<messages::UpdateReply>();
    send_tensors(13);
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill, 0);
    order<messages::UpdateFinish>();
    answer(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>();
    answer(messages::UpdateOrder::kReady);
    order<messages::UpdateCommit>();  // nobody answers it
    wait(std::chrono::minutes(11));
    const auto late = reply<messages::UpdateReply>();
    EXPECT_EQ(late.call, CallId{13});
    EXPECT_FALSE(late.ok);
    EXPECT_NE(late.verdict.message.find("the 2 calls may take effect yet"), std::string::npos)
        << late.verdict.message;
}

TEST_F(CollectedTest, ACompleteUpdateReplacesWhatIsIncomplete) {
    has_weights_ = false;
    start();
    begin_collecting(/*is_partial=*/false);
    answer(messages::UpdateOrder::kFill, 2);
    reply<messages::UpdateReply>();
    messages::UpdateWeights disk;
    disk.update.source.path = "/somewhere";
    call(disk, 30);
    EXPECT_EQ(order<messages::UpdateDrop>().update, update_);
    answer(messages::UpdateOrder::kDrop);
    EXPECT_EQ(order<messages::UpdateStage>().spec.source.path, "/somewhere");
}

TEST_F(CollectedTest, APauseThatEndsByItselfBringsWhatWasCollected) {
    start();
    call(messages::PauseGeneration{.mode = messages::PauseMode::kInPlace, .max_pause_s = 5}, 1);
    from_tree(messages::PausePart{.call = order<messages::PauseGeneration>().call});
    reply<messages::PauseReply>();
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    wait(std::chrono::seconds(5));
    finish("step-2");
}

// Each would wait for the other: requests that a pause has frozen do not run out.
TEST_F(CollectedTest, P5_AContinueDoesNotWaitForAnUpdateThatWaitsForRequests) {
    start();
    kv_policy_ = messages::KvPolicy::kDrain;
    call(messages::PauseGeneration{.mode = messages::PauseMode::kInPlace, .max_pause_s = 5}, 1);
    from_tree(messages::PausePart{.call = order<messages::PauseGeneration>().call});
    reply<messages::PauseReply>();
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    wait(std::chrono::seconds(5));
    order<messages::UpdateFinish>();
    answer(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>();  // answered when requests have run out

    pause();
    call(messages::ContinueGeneration{}, 12);
    from_tree(messages::ContinuePart{
        .call = order<messages::ContinueGeneration>().call, .was_paused = true});
    EXPECT_TRUE(reply<messages::ContinueReply>().ok);
    answer(messages::UpdateOrder::kReady);
    order<messages::UpdateCommit>();
    answer(messages::UpdateOrder::kCommit);
}

TEST_F(CollectedTest, WithoutAPauseACallIsAnUpdateOfItsOwn) {
    start();
    send_tensors(10);
    EXPECT_EQ(order<messages::UpdateStage>().spec.source.kind, messages::SourceKind::kDistributed);
}

TEST_F(CollectedTest, WhatDeclaresTheVersionAfterItIsNotCollected) {
    start();
    pause();
    messages::UpdateWeights update;
    update.update.source.kind = messages::SourceKind::kDistributed;
    update.update.source.group = "g";
    update.update.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
    update.update.partial = true;
    update.update.digest = std::string(32, 'a');
    call(update, 10);
    EXPECT_EQ(order<messages::UpdateStage>().spec.source.kind, messages::SourceKind::kDistributed);
}

TEST_F(CollectedTest, P5_WhoWaitsForACommitThatNeverEndsIsToldInItsTime) {
    start();
    pause();
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    call(messages::ContinueGeneration{.timeout_ms = 2000}, 12);
    order<messages::UpdateFinish>();
    answer(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>();
    answer(messages::UpdateOrder::kReady);
    order<messages::UpdateCommit>();  // nobody answers it
    wait(std::chrono::milliseconds(2500));
    const messages::ErrorReply late = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(late.call, CallId{12});
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
}

TEST_F(CollectedTest, P5_WhoWaitsBehindAnotherCallHasNoMoreTimeThanItWasGiven) {
    start();
    pause();
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    call(messages::ContinueGeneration{.timeout_ms = 60'000}, 12);
    order<messages::UpdateFinish>();  // nobody answers it
    call(messages::FlushCache{.timeout_ms = 2000}, 13);
    wait(std::chrono::milliseconds(2500));
    const messages::ErrorReply late = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(late.call, CallId{13});
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(
        late.error.message.find("flush_cache waited for the collected update"), std::string::npos
    ) << late.error.message;
}

TEST_F(CollectedTest, AnUpdateBesideTheCommitOfWhatWasCollectedIsRefusedAndNotHeld) {
    start();
    pause();
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    call(messages::ContinueGeneration{}, 12);
    messages::UpdateWeights disk;
    disk.update.source.path = "/somewhere";
    call(disk, 30);
    const auto refused = reply<messages::UpdateReply>();
    EXPECT_EQ(refused.call, CallId{30});
    EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
}

TEST_F(CollectedTest, ALabelIsRefusedForAllWhileAnUpdateIsUnderWay) {
    start(2);
    messages::UpdateWeights disk;
    disk.update.source.path = "/somewhere";
    call(disk, 30);
    order<messages::UpdateStage>();
    call(messages::SetWeightLabel{.label = "zz"}, 31);
    const auto refused = reply<messages::LabelReply>();
    EXPECT_EQ(refused.call, CallId{31});
    EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_TRUE(refused.parts.empty()) << "no replica was asked";
}

TEST_F(CollectedTest, AnUpdateWithoutALabelNamesTheOldOneToEveryReplica) {
    start();
    call(messages::SetWeightLabel{.label = "step-7"}, 31);
    from_tree(messages::LabelPart{.call = order<messages::SetWeightLabel>().call, .label = "step-7"}
    );
    EXPECT_TRUE(reply<messages::LabelReply>().ok);
    messages::UpdateWeights disk;
    disk.update.source.path = "/somewhere";
    call(disk, 32);
    EXPECT_EQ(order<messages::UpdateStage>().spec.label, "step-7");
}

TEST_F(CollectedTest, ASessionOfATreeWithoutWeightsMustBringAllOfThem) {
    has_weights_ = false;
    start();
    messages::BeginUpdate begin;
    begin.update.source.kind = messages::SourceKind::kBuckets;
    begin.update.partial = true;
    call(begin, 10);
    EXPECT_FALSE(order<messages::UpdateStage>().spec.partial);
}

}  // namespace
}  // namespace pitstop::tokenizer
