// Calls without a session whose update cannot take effect: every trainer is told.
#include "tests/tokenizer_proc/collected_fixture.h"

namespace pitstop::tokenizer {
namespace {

// ---- what is lost ----

TEST_F(CollectedTest, P2_AfterALossTheContinueIsRefusedOnceAndNothingOfItTakesEffect) {
    start();
    pause();
    lose_collection();
    // The trainer's later calls bring the second half of the model, as if nothing had happened.
    send_tensors(13);
    const messages::UpdateStage stage = order<messages::UpdateStage>();
    update_ = stage.update;
    EXPECT_FALSE(stage.spec.partial) << "after a loss all tensors must come";
    answer(messages::UpdateOrder::kOpen, 3);
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill, 2);
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);

    call(messages::ContinueGeneration{}, 14);
    EXPECT_EQ(order<messages::UpdateDrop>().update, update_);
    expect_lost(refusal("admin", messages::Door::kAdmin), 14);
    answer(messages::UpdateOrder::kDrop);
    call(messages::ContinueGeneration{}, 15);
    const messages::ContinueReply went_on = go_on();
    EXPECT_TRUE(went_on.ok);
    EXPECT_FALSE(went_on.update);
    // The next attempt is like the first.
    pause();
    collect_one();
}

TEST_F(CollectedTest, AfterALossAWholeModelTakesEffectWithItsLastTensor) {
    start();
    pause();
    lose_collection();
    send_tensors(13, "again");
    update_ = order<messages::UpdateStage>().update;
    answer(messages::UpdateOrder::kOpen, 1);
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill, 0);
    finish("again");
    EXPECT_EQ(reply<messages::UpdateReply>().epoch, Epoch{2});
    call(messages::ContinueGeneration{}, 14);
    EXPECT_TRUE(go_on().ok) << "all of it was sent again";
}

// The calls for an adapter name no session. One waits behind another until its time is up.
TEST_F(CollectedTest, P2_ABucketThatIsLateDropsItsAdaptersSession) {
    start();
    messages::BeginUpdate begin;
    begin.unnamed = true;
    begin.update.adapter = "a";
    begin.update.partial = true;
    begin.update.source.kind = messages::SourceKind::kBuckets;
    call(begin, 10);
    update_ = order<messages::UpdateStage>().update;
    answer(messages::UpdateOrder::kOpen);
    const auto opened = reply<messages::UpdateReply>();
    EXPECT_TRUE(opened.ok);
    EXPECT_EQ(opened.adapter, "a");
    EXPECT_EQ(opened.epoch, Epoch{}) << "no version of the model";
    EXPECT_EQ(opened.digest, "");
    const auto send_bucket = [&](std::uint64_t number, std::int64_t timeout_ms) {
        messages::UpdateWeights bucket;
        bucket.timeout_ms = timeout_ms;
        bucket.unnamed = true;
        bucket.update.adapter = "a";
        bucket.update.partial = true;
        bucket.update.source.kind = messages::SourceKind::kTensors;
        bucket.update.source.format = messages::TensorFormat::kPickle;
        bucket.update.source.payloads.resize(1);
        call(bucket, number);
    };
    send_bucket(11, 60'000);
    order<messages::UpdateFill>();  // nobody answers it
    send_bucket(12, 1'000);
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin)) << "it waits for the first";
    wait(std::chrono::milliseconds(1'100));
    EXPECT_EQ(order<messages::UpdateDrop>().update, update_);
    answer(messages::UpdateOrder::kDrop);
    const messages::ErrorReply late = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(late.call, CallId{12});
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_FALSE(reply<messages::UpdateReply>().ok) << "the first bucket takes no effect";
    call(messages::CommitWeights{.unnamed = true}, 13);
    EXPECT_FALSE(reply<messages::UpdateReply>().ok);
}

TEST_F(CollectedTest, APauseAndTheStatusSayWhatWasLost) {
    start();
    pause();
    lose_collection();
    call(messages::Status{}, 20);
    from_tree(messages::ReplicaStatus{.call = order<messages::Status>().call});
    const auto status = reply<messages::StatusReply>();
    ASSERT_TRUE(status.lost_calls);
    EXPECT_EQ(status.lost_calls->calls, 2);
    EXPECT_NE(status.lost_calls->why.find("it is broken"), std::string::npos)
        << status.lost_calls->why;
    call(messages::PauseGeneration{.mode = messages::PauseMode::kInPlace}, 21);
    from_tree(messages::PausePart{.call = order<messages::PauseGeneration>().call});
    const auto paused = reply<messages::PauseReply>();
    EXPECT_TRUE(paused.ok);
    EXPECT_NE(paused.verdict.message.find("take no effect"), std::string::npos)
        << paused.verdict.message;
}

// A slow trainer lost its collection and pauses again. Few trainers read a pause's answer, so its
// next continue must be refused.
TEST_F(CollectedTest, P2_APauseOfItsTrainerForgetsNoLossOfWhichNobodyWasRefused) {
    for (const std::string label : {"", "step-2"}) {
        start();
        pause(5);
        collect_one(true, label);
        expire_pause();
        order<messages::UpdateDrop>();
        answer(messages::UpdateOrder::kDrop);
        pause();
        collect_one(/*is_partial=*/false, label);
        call(messages::ContinueGeneration{}, 14);
        order<messages::UpdateDrop>();
        expect_lost(refusal("admin", messages::Door::kAdmin), 14);
        answer(messages::UpdateOrder::kDrop);
        call(messages::ContinueGeneration{}, 15);
        EXPECT_TRUE(go_on().ok);
        pause();
        collect_one(/*is_partial=*/true, label);  // its trainer was told
    }
}

// Another caller was refused for the loss, and continued. The lost version's trainer must be
// refused, too.
TEST_F(CollectedTest, P2_TheRestOfALostVersionIsRefusedByItsLabel) {
    for (const bool is_paused : {false, true}) {
        lose_beside_another("of A");
        if (is_paused) {
            pause();
            collect_one(/*is_partial=*/false, "of A");
            call(messages::ContinueGeneration{}, 22);
            order<messages::UpdateDrop>();
            expect_lost(refusal("admin", messages::Door::kAdmin), 22);
            answer(messages::UpdateOrder::kDrop);
        } else {
            for (const std::uint64_t number : {22u, 23u}) {
                send_tensors(number, "of A");
                expect_lost(refusal("admin", messages::Door::kAdmin), number);
            }
        }
    }
}

TEST_F(CollectedTest, P2_APartOfALostVersionIsRefusedHoweverLate) {
    start();
    pause(5);
    collect_one(true, "of A");
    expire_pause();
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    wait(std::chrono::minutes(6));
    send_tensors(22, "of A");
    expect_lost(refusal("admin", messages::Door::kAdmin), 22);
}

// A version with another label belongs to another trainer, and is accepted.
TEST_F(CollectedTest, AnotherLabelThanTheLostOneIsAVersionOfItsOwn) {
    lose_beside_another("of A");
    pause();
    collect_one(/*is_partial=*/true, "of B");
}

TEST_F(CollectedTest, P2_APauseThatEndsByItselfDropsWhatWasCollected) {
    start();
    pause(5);
    collect_one();
    wait(std::chrono::seconds(6));
    EXPECT_FALSE(is_anything_ordered()) << "the door has no timer of a pause";
    expire_pause();
    EXPECT_EQ(order<messages::UpdateDrop>().update, update_);
    answer(messages::UpdateOrder::kDrop);
    // The trainer is slow, not dead: none of its further calls is an update of its own.
    for (const std::uint64_t number : {12u, 13u, 14u}) {
        send_tensors(number);
        expect_lost(refusal("admin", messages::Door::kAdmin), number);
    }
    // The next attempt begins with a pause, whose answer reports the loss.
    call(messages::PauseGeneration{.mode = messages::PauseMode::kInPlace}, 15);
    standing_.is_paused = true;
    from_tree(standing_);
    from_tree(messages::PausePart{.call = order<messages::PauseGeneration>().call});
    EXPECT_NE(
        reply<messages::PauseReply>().verdict.message.find("take no effect"), std::string::npos
    );
    collect_one();
}

// The pause ends before a slow trainer's first call, so the trainer believes that generation is
// paused.
TEST_F(CollectedTest, P2_APauseThatEndsByItselfBeforeTheFirstCallKeepsPartsOut) {
    start();
    pause(5);
    expire_pause();
    for (const std::uint64_t number : {12u, 13u}) {
        send_tensors(number);
        const messages::ErrorReply refused = refusal("admin", messages::Door::kAdmin);
        EXPECT_EQ(refused.error.code, ErrorCode::kAborted);
        EXPECT_NE(refused.error.message.find("max_pause_s ended the pause"), std::string::npos)
            << refused.error.message;
    }
    call(messages::ContinueGeneration{}, 14);
    EXPECT_TRUE(go_on().ok) << "nothing was lost";
    send_tensors(15);
    EXPECT_EQ(order<messages::UpdateStage>().spec.source.kind, messages::SourceKind::kDistributed);
}

TEST_F(CollectedTest, P2_AnotherTrainersVersionForgetsNoLoss) {
    start();
    pause(5);
    collect_one();
    expire_pause();
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    messages::UpdateWeights disk;
    disk.update.source.path = "/another";
    call(disk, 20);
    update_ = order<messages::UpdateStage>().update;
    answer(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>();
    answer(messages::UpdateOrder::kReady);
    order<messages::UpdateCommit>();
    answer(messages::UpdateOrder::kCommit);
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    send_tensors(21);
    expect_lost(refusal("admin", messages::Door::kAdmin), 21);
}

// A trainer has sent seven eighths of a first model when another trainer's complete update comes.
TEST_F(CollectedTest, P2_ACompleteUpdateThatTakesTheirPlaceIsALossWhateverComesOfIt) {
    for (const bool is_done : {false, true}) {
        has_weights_ = false;
        start();
        collect_one(/*is_partial=*/false);
        messages::UpdateWeights disk;
        disk.update.source.path = "/another";
        disk.call = CallId{20};
        send("other", disk, messages::Door::kAdmin);
        order<messages::UpdateDrop>();
        answer(messages::UpdateOrder::kDrop);
        update_ = order<messages::UpdateStage>().update;
        if (is_done) {
            answer(messages::UpdateOrder::kStage);
            order<messages::UpdateReady>();
            answer(messages::UpdateOrder::kReady);
            order<messages::UpdateCommit>();
            answer(messages::UpdateOrder::kCommit);
        } else {
            answer(messages::UpdateOrder::kStage, 0, ErrorCode::kInvalidArgument);
            order<messages::UpdateDrop>();
            answer(messages::UpdateOrder::kDrop);
        }
        const auto replaced = next_to<messages::UpdateReply>("other", messages::Door::kAdmin);
        EXPECT_EQ(replaced.ok, is_done);
        EXPECT_NE(
            replaced.verdict.message.find("1 collected calls were dropped for it"),
            std::string::npos
        ) << replaced.verdict.message;
        ASSERT_TRUE(status().lost_calls);
        EXPECT_NE(status().lost_calls->why.find("took their place"), std::string::npos);
        send_tensors(21);  // the last eighth
        if (is_done) {
            expect_lost(refusal("admin", messages::Door::kAdmin), 21);
        } else {
            EXPECT_FALSE(order<messages::UpdateStage>().spec.partial)
                << "nothing serves without it";
        }
    }
}

TEST_F(CollectedTest, P2_AnotherCallersRefusalDoesNotLetAHalfThrough) {
    start();
    pause();
    lose_collection();
    call(messages::ContinueGeneration{}, 30);  // another client's
    expect_lost(refusal("admin", messages::Door::kAdmin), 30);
    send_tensors(31);
    const messages::UpdateStage stage = order<messages::UpdateStage>();
    update_ = stage.update;
    EXPECT_FALSE(stage.spec.partial);
    answer(messages::UpdateOrder::kOpen, 3);
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill, 2);
    reply<messages::UpdateReply>();
    call(messages::ContinueGeneration{}, 32);
    order<messages::UpdateDrop>();
    expect_lost(refusal("admin", messages::Door::kAdmin), 32);
}

TEST_F(CollectedTest, P2_ACommitOfAnotherThatFailsIsALossToo) {
    start();
    pause();
    collect_one();
    messages::CommitWeights commit;
    commit.call = CallId{40};
    commit.digest = std::string(32, '0');
    send("other", commit, messages::Door::kAdmin);
    order<messages::UpdateFinish>();
    answer(messages::UpdateOrder::kStage, 0, ErrorCode::kDataLoss);
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    EXPECT_FALSE(next_to<messages::UpdateReply>("other", messages::Door::kAdmin).ok);
    call(messages::ContinueGeneration{}, 41);
    expect_lost(refusal("admin", messages::Door::kAdmin), 41);
}

TEST_F(CollectedTest, P2_ACallThatIsUnderWayWhenThePauseEndsIsToldSo) {
    start();
    pause(5);
    begin_collecting(/*is_partial=*/true);
    expire_pause();
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    const auto told = reply<messages::UpdateReply>();
    EXPECT_EQ(told.verdict.code, ErrorCode::kAborted);
    EXPECT_NE(told.verdict.message.find("max_pause_s ended the pause"), std::string::npos)
        << told.verdict.message;
    call(messages::ContinueGeneration{}, 14);
    expect_lost(refusal("admin", messages::Door::kAdmin), 14);
}

// A continue ended the pause: the pause's time limit must end no later collection.
TEST_F(CollectedTest, P2_AnEarlierPausesTimeEndsNoLaterCollection) {
    start();
    pause(5);
    call(messages::ContinueGeneration{}, 2);
    EXPECT_TRUE(go_on().ok);
    release({messages::MemoryTag::kKvCache});
    collect_one();
    wait(std::chrono::seconds(30));
    EXPECT_FALSE(is_anything_ordered());
}

TEST_F(CollectedTest, ADropThatWasAskedForKeepsNobodyFromGoingOn) {
    start();
    pause();
    collect_one();
    call(messages::DropStage{}, 30);
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    call(messages::ContinueGeneration{}, 31);
    EXPECT_TRUE(go_on().ok);
}

TEST_F(CollectedTest, P2_ADropOfWhatCameAfterALossForgetsNoLoss) {
    start();
    pause();
    lose_collection();
    collect_one(/*is_partial=*/false);
    call(messages::DropStage{}, 30);
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    call(messages::ContinueGeneration{}, 31);
    expect_lost(refusal("admin", messages::Door::kAdmin), 31);
}

TEST_F(CollectedTest, P2_AVersionAfterADropThatWasAskedForMustBeWhole) {
    start();
    pause();
    collect_one();
    call(messages::DropStage{}, 30);
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    reply<messages::UpdateReply>();
    send_tensors(32);  // from a trainer that was not told of the drop
    EXPECT_FALSE(order<messages::UpdateStage>().spec.partial);
}

}  // namespace
}  // namespace pitstop::tokenizer
