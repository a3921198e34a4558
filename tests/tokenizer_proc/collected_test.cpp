// Calls without a session under a pause, or for a tree without weights: they become one update.
#include "tests/tokenizer_proc/collected_fixture.h"

namespace pitstop::tokenizer {
namespace {

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
    send_tensors(11);
    EXPECT_EQ(order<messages::UpdateFill>().bucket, 2);
    answer(messages::UpdateOrder::kFill);
    EXPECT_EQ(reply<messages::UpdateReply>().call, CallId{11});

    call(messages::ContinueGeneration{}, 12);
    finish("step-2");
    const messages::ContinueReply went_on = go_on();
    EXPECT_EQ(went_on.call, CallId{12});
    EXPECT_TRUE(went_on.ok);
    const messages::CollectedVersion version{
        .epoch = Epoch{2}, .label = "step-2", .digest = "d2", .calls = 2, .bytes = 100};
    EXPECT_EQ(went_on.update, version);
    EXPECT_NE(went_on.verdict.message.find("epoch 2, label 'step-2', digest d2"), std::string::npos)
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
    EXPECT_TRUE(go_on().ok);
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
    // Two tensors are missing: the continue publishes nothing, and is answered at once.
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
    EXPECT_NE(late.verdict.message.find("the 2 calls may still take effect"), std::string::npos)
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

// ---- what leaves a collection unchanged ----

TEST_F(CollectedTest, P2_ReadersAndRefusedCallsPublishNothing) {
    start();
    pause();
    collect_one();
    call(messages::WeightDigests{}, 40);
    order<messages::WorkerDigest>();
    call(messages::GetWeights{.name = "w"}, 41);
    order<messages::WorkerReadTensor>();
    call(messages::FlushCache{}, 42);
    order<messages::FlushCache>();
    call(messages::ReleaseMemory{}, 43);
    from_tree(messages::MemoryPart{
        .call = order<messages::ReleaseMemory>().call,
        .verdict = Error{ErrorCode::kFailedPrecondition, "an update is under way"}});
    EXPECT_FALSE(reply<messages::MemoryReply>().ok);
    call(messages::ResumeMemory{}, 44);
    from_tree(messages::MemoryPart{
        .call = order<messages::ResumeMemory>().call,
        .verdict = Error{ErrorCode::kFailedPrecondition, "nothing is released"}});
    EXPECT_FALSE(reply<messages::MemoryReply>().ok);
    call(messages::PauseGeneration{.mode = messages::PauseMode::kInPlace}, 45);
    order<messages::PauseGeneration>();
    messages::UpdateWeights disk;
    disk.update.source.path = "/nowhere";
    messages::UpdateWeights old = disk;
    old.update.epoch = Epoch{1};
    messages::BeginUpdate begin;
    begin.update.source.kind = messages::SourceKind::kBuckets;
    call(disk, 46);
    call(old, 47);
    call(messages::StageWeights{.update = disk.update}, 48);
    call(begin, 49);
    call(messages::RollbackWeights{}, 50);
    call(messages::SetWeightLabel{.label = "zz", .abort_all = true}, 51);
    for (std::uint64_t number = 46; number <= 50; ++number) {
        const auto refused = reply<messages::UpdateReply>();
        EXPECT_EQ(refused.call, CallId{number});
        EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
        EXPECT_NE(refused.verdict.message.find("continue, commit or drop it"), std::string::npos)
            << refused.verdict.message;
    }
    EXPECT_EQ(reply<messages::LabelReply>().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_FALSE(is_anything_ordered());
    call(messages::ContinueGeneration{}, 60);
    finish("step-2");
}

TEST_F(CollectedTest, P2_AContinueThatWouldBeRefusedPublishesNothing) {
    start();
    pause();
    collect_one();
    release({messages::MemoryTag::kKvCache});
    call(messages::ContinueGeneration{}, 12);
    // The continue is refused before any replica is asked: a replica would generate without the
    // collected call.
    const auto refused = reply<messages::ErrorReply>();
    EXPECT_EQ(refused.call, CallId{12});
    EXPECT_EQ(refused.error.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(refused.error.message.find("memory is released"), std::string::npos)
        << refused.error.message;
    EXPECT_FALSE(is_anything_ordered());
    release({});
    call(messages::ContinueGeneration{}, 13);
    finish("step-2");
}

TEST_F(CollectedTest, TheResumeThatLetsGenerationGoOnPublishes) {
    start();
    release({messages::MemoryTag::kKvCache});
    collect_one();
    call(messages::ResumeMemory{.tags = {messages::MemoryTag::kWeights}}, 20);
    from_tree(messages::MemoryPart{.call = order<messages::ResumeMemory>().call});
    EXPECT_FALSE(reply<messages::MemoryReply>().update) << "kv_cache is released still";
    using messages::MemoryTag;
    call(messages::ResumeMemory{.tags = {MemoryTag::kWeights, MemoryTag::kKvCache}}, 22);
    from_tree(messages::MemoryPart{
        .call = order<messages::ResumeMemory>().call,
        .verdict = Error{ErrorCode::kFailedPrecondition, "the weights are not released"}});
    EXPECT_FALSE(reply<messages::MemoryReply>().update) << "one that is refused publishes nothing";
    call(messages::ResumeMemory{.tags = {messages::MemoryTag::kKvCache}}, 21);
    finish("step-2");
    release({});
    from_tree(messages::MemoryPart{.call = order<messages::ResumeMemory>().call});
    const auto resumed = reply<messages::MemoryReply>();
    ASSERT_TRUE(resumed.update);
    EXPECT_EQ(resumed.update->epoch, Epoch{2});
}

TEST_F(CollectedTest, ALabelThatComesMeanwhileIsTheNewVersions) {
    start();
    pause();
    collect_one();
    call(messages::SetWeightLabel{.label = "step-7"}, 31);
    const auto labelled = reply<messages::LabelReply>();
    EXPECT_TRUE(labelled.ok);
    EXPECT_EQ(labelled.parts.front().label, "") << "what serves keeps its own";
    call(messages::ContinueGeneration{}, 12);
    finish("step-7");
    EXPECT_EQ(go_on().update->label, "step-7");
}

// A replica that refuses a pause is not paused, even though the pause was ordered.
TEST_F(CollectedTest, APauseThatWasRefusedCollectsNothing) {
    start();
    call(messages::PauseGeneration{.mode = messages::PauseMode::kInPlace}, 1);
    from_tree(messages::PausePart{
        .call = order<messages::PauseGeneration>().call,
        .verdict = Error{ErrorCode::kResourceExhausted, "too many"}});
    EXPECT_FALSE(reply<messages::PauseReply>().ok);
    send_tensors(10);
    EXPECT_EQ(order<messages::UpdateStage>().spec.source.kind, messages::SourceKind::kDistributed);
}

// ---- calls in parallel ----

TEST_F(CollectedTest, CallsInParallelWaitForTheirTurn) {
    start();
    pause();
    begin_collecting(/*is_partial=*/true);
    send_tensors(11, "step-2");
    send_tensors(12, "step-2");
    call(messages::ContinueGeneration{}, 13);
    EXPECT_FALSE(is_anything_ordered());
    answer(messages::UpdateOrder::kFill);
    EXPECT_EQ(reply<messages::UpdateReply>().call, CallId{10});
    EXPECT_EQ(order<messages::UpdateFill>().bucket, 2);
    answer(messages::UpdateOrder::kFill);
    EXPECT_EQ(reply<messages::UpdateReply>().call, CallId{11});
    EXPECT_EQ(order<messages::UpdateFill>().bucket, 3);
    answer(messages::UpdateOrder::kFill);
    EXPECT_EQ(reply<messages::UpdateReply>().call, CallId{12});
    finish("step-2");
    EXPECT_EQ(go_on().update->calls, 3);
}

TEST_F(CollectedTest, UpdatesWithoutAPauseWaitForTheirTurn) {
    start();
    send_tensors(10, "a");
    send_tensors(11, "b");
    update_ = order<messages::UpdateStage>().update;
    EXPECT_FALSE(is_anything_ordered());
    label_ = "a";
    answer(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>();
    answer(messages::UpdateOrder::kReady);
    order<messages::UpdateCommit>();
    answer(messages::UpdateOrder::kCommit);
    EXPECT_EQ(reply<messages::UpdateReply>().call, CallId{10});
    EXPECT_EQ(order<messages::UpdateStage>().spec.label, "b");
}

TEST_F(CollectedTest, TheMemoryOfWaitingCallsIsBounded) {
    start();
    send_tensors(10);
    order<messages::UpdateStage>();  // nobody answers it
    messages::UpdateWeights large;
    large.update.source.kind = messages::SourceKind::kTensors;
    large.update.source.format = messages::TensorFormat::kFlattened;
    large.update.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
    large.update.source.payloads.resize(1);
    large.update.source.payloads[0].data.values.resize(std::size_t{100} << 20);
    large.update.partial = true;
    for (std::uint64_t number = 11; number <= 12; ++number) call(large, number);
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin)) << "they wait";
    call(large, 13);
    const messages::ErrorReply refused = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(refused.call, CallId{13});
    EXPECT_EQ(refused.error.code, ErrorCode::kResourceExhausted);
}

TEST_F(CollectedTest, P5_AnUpdateThatWaitsHasNoMoreTimeThanItWasGiven) {
    start();
    send_tensors(10);
    order<messages::UpdateStage>();  // nobody answers it
    messages::UpdateWeights disk;
    disk.timeout_ms = 2000;
    disk.update.source.path = "/somewhere";
    call(disk, 30);
    wait(std::chrono::milliseconds(2500));
    const messages::ErrorReply late = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(late.call, CallId{30});
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
}

// The update waits until requests end, and a pause has frozen them: only the continue lets them
// end.
TEST_F(CollectedTest, P5_AContinueDoesNotWaitForAnUpdateThatWaitsForRequests) {
    start();
    kv_policy_ = messages::KvPolicy::kDrain;
    pause();
    collect_one();
    call(messages::ContinueGeneration{}, 12);
    order<messages::UpdateFinish>();
    answer(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>();  // answered when the running requests have ended
    call(messages::ContinueGeneration{}, 13);
    EXPECT_TRUE(go_on().ok);
    answer(messages::UpdateOrder::kReady);
    order<messages::UpdateCommit>();
    answer(messages::UpdateOrder::kCommit);
}

TEST_F(CollectedTest, WithoutAPauseACallIsAnUpdateOfItsOwn) {
    start();
    send_tensors(10);
    EXPECT_EQ(order<messages::UpdateStage>().spec.source.kind, messages::SourceKind::kDistributed);
}

TEST_F(CollectedTest, ACallThatDeclaresTheVersionAfterItIsNotCollected) {
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

TEST_F(CollectedTest, P5_ACallThatWaitsForACommitThatNeverEndsIsToldInItsTime) {
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

TEST_F(CollectedTest, P5_ACallBehindAnotherHasNoMoreTimeThanItWasGiven) {
    start();
    pause();
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    call(messages::ContinueGeneration{.timeout_ms = 60'000}, 12);
    order<messages::UpdateFinish>();  // nobody answers it
    call(messages::ContinueGeneration{.timeout_ms = 2000}, 13);
    wait(std::chrono::milliseconds(2500));
    const messages::ErrorReply late = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(late.call, CallId{13});
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(
        late.error.message.find("continue_generation waited for an update"), std::string::npos
    ) << late.error.message;
}

// The continue has waited for the call until its own time was up. A commit would have no time left,
// fail, and lose the collection.
TEST_F(CollectedTest, P2_P5_AContinueWhoseTimeIsUpLeavesTheCollectionAsItIs) {
    start();
    pause();
    begin_collecting(/*is_partial=*/true);
    call(messages::ContinueGeneration{.timeout_ms = 2000}, 12);
    wait(std::chrono::milliseconds(2100));
    answer(messages::UpdateOrder::kFill);
    ASSERT_EQ(reply<messages::UpdateReply>().state, messages::UpdateState::kCollecting);
    const messages::ErrorReply late = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(late.call, CallId{12});
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_FALSE(is_anything_ordered());
    call(messages::ContinueGeneration{}, 13);
    finish("step-2");
    EXPECT_TRUE(go_on().ok);
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

TEST_F(CollectedTest, AVersionWithoutALabelHasNone) {
    start();
    call(messages::SetWeightLabel{.label = "step-7"}, 31);
    from_tree(messages::LabelPart{.call = order<messages::SetWeightLabel>().call, .label = "step-7"}
    );
    EXPECT_TRUE(reply<messages::LabelReply>().ok);
    pause();
    send_tensors(10);
    const messages::UpdateStage stage = order<messages::UpdateStage>();
    update_ = stage.update;
    EXPECT_EQ(stage.spec.label, "");
    answer(messages::UpdateOrder::kOpen);
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill);
    call(messages::ContinueGeneration{}, 12);
    finish("");
    EXPECT_EQ(go_on().update->label, "") << "the old one names other weights";
    messages::UpdateWeights disk;
    disk.update.source.path = "/somewhere";
    call(disk, 32);
    EXPECT_EQ(order<messages::UpdateStage>().spec.label, "");
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
