// Sessions of trainers whose calls do not name the session, and sessions that replace others.
#include "tests/tokenizer_proc/unnamed_session_fixture.h"

namespace pitstop::tokenizer {
namespace {

TEST_F(UnnamedSessionTest, P2_CallsThatNameNoSessionAreItsBuckets) {
    EXPECT_FALSE(unnamed()) << "without a session it is an update of its own";
    open();
    bucket("named by a bucket");
    bucket();
    EXPECT_EQ(count_orders<messages::UpdateFill>(), 2u);
    end();
    EXPECT_EQ(last_order<messages::UpdateFinish>().label, "named by a bucket");
    finish_commit();
    EXPECT_TRUE(last_reply().ok);
    EXPECT_FALSE(unnamed()) << "it is over as its trainer wanted";
}

TEST_F(UnnamedSessionTest, ASessionOfTheBusTakesNoneOfThem) {
    messages::BeginUpdate call = begin_call("push");
    call.unnamed = false;
    open(call);
    EXPECT_FALSE(unnamed()) << "to be refused as any update beside it";
    end();
    expect_refused({"begin one first"});
    drop(/*is_unnamed=*/true);
    expect_refused({"session 1", "push", "name 1 to drop it"});
    EXPECT_TRUE(coordinator_.is_open());
    drop(/*is_unnamed=*/false, 1);
    both_answer(messages::UpdateOrder::kDrop);
    EXPECT_TRUE(last_reply().ok);
}

// After an idle time-out, an accepted call would become an update of its own, of half a model.
TEST_F(UnnamedSessionTest, P2_CallsAfterALossAreRefusedUntilTheirTrainerKnows) {
    open();
    bucket();
    expire();
    ASSERT_EQ(out_.notes.size(), 1u) << "the log says it";
    for (int i = 0; i < 3; ++i) {  // calls in parallel, or a trainer that ignores answers
        ASSERT_TRUE(unnamed());
        expect_refused({"session 1", "trainer A", "1 buckets", "timed out after 10.0 s"});
        now_ += seconds(299);  // a slow trainer
    }
    end();
    expect_refused({"session 1", "begin one first"});
    EXPECT_FALSE(unnamed()) << "the end was told";
    EXPECT_EQ(count_orders<messages::UpdateFill>(), 1u);
}

TEST_F(UnnamedSessionTest, ALossEndsWithABeginADropOrQuiet) {
    const std::vector<std::pair<const char*, std::function<void()>>> ways{
        {"begin",
         [&] {
             open();
             bucket();
             end();
             finish_commit();
         }},
        {"drop",
         [&] {
             drop(/*is_unnamed=*/true);
             EXPECT_TRUE(last_reply().ok);
             EXPECT_NE(last_reply().verdict.message.find("is over"), std::string::npos);
         }},
        {"quiet", [&] { now_ += std::chrono::minutes(5); }},
    };
    for (const auto& [name, way] : ways) {
        open();
        expire();
        now_ += std::chrono::hours(1);  // no client was told of the loss yet
        EXPECT_TRUE(unnamed()) << name;
        way();
        EXPECT_FALSE(unnamed()) << name;
    }
}

// Trainer B drops before it begins, and knows nothing of trainer A's loss.
TEST_F(UnnamedSessionTest, P2_AnothersDropForgetsNoLoss) {
    open();
    bucket();
    expire();
    for (int i = 0; i < 2; ++i) {
        drop(/*is_unnamed=*/true);
        EXPECT_TRUE(last_reply().ok);
        EXPECT_NE(last_reply().verdict.message.find("session 1"), std::string::npos);
    }
    ASSERT_TRUE(unnamed());
    expect_refused({"session 1", "timed out"});
    drop(/*is_unnamed=*/true);
    EXPECT_FALSE(unnamed()) << "its trainer was told, and drops it";
}

TEST_F(UnnamedSessionTest, P2_TheFirstEndAfterALossMayBeAnothers) {
    open();
    bucket();
    expire();
    end();
    expect_refused({"session 1", "timed out"});
    ASSERT_TRUE(unnamed());
    expect_refused({"session 1", "timed out"});
    end();
    EXPECT_FALSE(unnamed());
}

// Trainer A, whose session was lost, sends its next call after trainer B's session has ended.
TEST_F(UnnamedSessionTest, P2_ALossThatNobodyWasToldOfOutlivesTheNextSession) {
    open();
    bucket();
    expire();
    open();
    bucket();
    end();
    finish_commit();
    ASSERT_TRUE(last_reply().ok);
    EXPECT_TRUE(unnamed());
    expect_refused({"session 1", "timed out"});
}

TEST_F(UnnamedSessionTest, ADropOnTheBusAndAFailureAreLosses) {
    open();
    bucket();
    drop();
    both_answer(messages::UpdateOrder::kDrop);
    EXPECT_NE(last_reply().verdict.message.find("session 1"), std::string::npos);
    EXPECT_TRUE(unnamed());
    expect_refused({"a call asked for it"});
    next_update_ = 2;
    open();
    ASSERT_TRUE(unnamed());
    answer(0, messages::UpdateOrder::kFill);
    answer(1, messages::UpdateOrder::kFill, /*ok=*/false, ErrorCode::kInvalidArgument);
    both_answer(messages::UpdateOrder::kDrop);
    EXPECT_TRUE(unnamed());
    expect_refused({"session 2", "disk on fire"});
}

TEST_F(UnnamedSessionTest, AnEndThatFailsIsKnownToItsTrainer) {
    open();
    bucket();
    end();
    answer(0, messages::UpdateOrder::kStage, /*ok=*/false, ErrorCode::kInvalidArgument);
    both_answer(messages::UpdateOrder::kDrop);
    EXPECT_FALSE(last_reply().ok);
    EXPECT_FALSE(unnamed());
}

TEST_F(UnnamedSessionTest, ASessionWhoseCallsNamedItLosesNoOthers) {
    open();
    named_bucket(1);
    both_answer(messages::UpdateOrder::kFill);
    expire();
    EXPECT_FALSE(unnamed()) << "it is somebody else's";
    named_bucket(1);
    expect_refused({"session 1", "timed out"});
    named_bucket(7);
    expect_refused({"session 7 has ended or never existed"});
}

TEST_F(UnnamedSessionTest, ABeginBesideASessionSaysWhoseItIsAndHowLong) {
    open();
    bucket();
    now_ += milliseconds(2500);
    begin(begin_call("trainer B"));
    expect_refused(
        {"session 1", "trainer A", "1 buckets", "idle for 2.5 s", "in 7.5 s", "take_over"}
    );
    bucket();  // the session was not harmed
    const auto status = coordinator_.session(now_ + seconds(4));
    ASSERT_TRUE(status);
    EXPECT_EQ(status->session, 1u);
    EXPECT_EQ(status->holder, "trainer A");
    EXPECT_EQ(status->calls, 2);
    EXPECT_FALSE(status->is_busy);
    EXPECT_DOUBLE_EQ(status->idle_s, 4.0);
    EXPECT_DOUBLE_EQ(status->ends_in_s, 6.0);
}

TEST_F(UnnamedSessionTest, P2_ATakeOverDropsAnIdleSessionAndSaysSo) {
    open();
    bucket();
    messages::BeginUpdate call = begin_call("trainer B");
    call.take_over = true;
    const std::size_t num_replies = out_.replies.size();
    begin(call);
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 1u);
    EXPECT_EQ(out_.replies.size(), num_replies) << "when it is open";
    both_answer(messages::UpdateOrder::kDrop);
    next_update_ = 2;
    both_answer(messages::UpdateOrder::kOpen);
    ASSERT_TRUE(last_reply().ok);
    EXPECT_EQ(last_reply().session, 2u);
    EXPECT_NE(last_reply().verdict.message.find("session 1 (of trainer A"), std::string::npos);
    EXPECT_NE(last_reply().verdict.message.find("must name it"), std::string::npos);
    // Trainer A may still be alive: its calls do not belong to B's session.
    ASSERT_TRUE(unnamed());
    expect_refused({"session 2 took over from session 1", "Name session 2 in each call"});
    named_bucket(1);
    expect_refused({"session 1", "trainer B took over"});
    end();
    expect_refused({"took over"});
    named_bucket(2);
    both_answer(messages::UpdateOrder::kFill);
    end(2);
    finish_commit();
    EXPECT_TRUE(last_reply().ok);
    ASSERT_TRUE(unnamed()) << "trainer A's may still come";
    expect_refused({"session 1", "trainer B took over"});
}

// Trainer A has staged its whole version, and trainer B's session is empty: A's commit must not
// commit B's session.
TEST_F(UnnamedSessionTest, P2_ACommitWithoutANumberIsRefusedWhereASessionTookOver) {
    messages::StageWeights stage;
    stage.call = CallId{9};
    stage.update.source.path = "/checkpoint";
    coordinator_.handle(now_, {"trainer", stage.call}, stage, out_);
    both_answer(messages::UpdateOrder::kStage);
    messages::BeginUpdate call = begin_call("trainer B");
    call.take_over = true;
    call.unnamed = false;
    begin(call);
    both_answer(messages::UpdateOrder::kDrop);
    next_update_ = 2;
    both_answer(messages::UpdateOrder::kOpen);
    ASSERT_TRUE(last_reply().ok);
    messages::CommitWeights commit;
    commit.call = CallId{13};
    coordinator_.handle(now_, {"trainer", commit.call}, commit, out_);
    expect_refused({"session 2 took over from update 1", "Name session 2 in each call"});
    named_bucket(0);
    expect_refused({"session 2 took over from update 1"});
    named_bucket(2);
    both_answer(messages::UpdateOrder::kFill);
    EXPECT_TRUE(last_reply().ok);
    drop();  // any trainer may drop: a drop brings no version into effect
    both_answer(messages::UpdateOrder::kDrop);
    EXPECT_TRUE(last_reply().ok);
}

// A collection of calls without a session is replaced by a session for such calls.
TEST_F(UnnamedSessionTest, P2_ASessionThatTookOverFromACollectionTakesNoneOfItsCalls) {
    messages::UpdateWeights part;
    part.call = CallId{12};
    part.unnamed = true;
    part.update.partial = true;
    part.update.source.kind = messages::SourceKind::kTensors;
    using Brings = UpdateCoordinator::Brings;
    coordinator_.collect(now_, {"trainer", part.call}, part, Brings::kParts, out_);
    both_answer(messages::UpdateOrder::kOpen);
    both_answer(messages::UpdateOrder::kFill);
    messages::BeginUpdate call = begin_call("trainer B");
    call.take_over = true;
    begin(call);
    both_answer(messages::UpdateOrder::kDrop);
    next_update_ = 2;
    both_answer(messages::UpdateOrder::kOpen);
    ASSERT_TRUE(last_reply().ok);
    ASSERT_TRUE(unnamed());
    expect_refused({"session 2 took over from collected update 1", "Name session 2 in each call"});
}

// The bucket may come from trainer A, which was not told that its session was lost. The collection
// has none of A's other calls.
TEST_F(UnnamedSessionTest, P2_AfterALossABucketWithoutASessionJoinsNoCollection) {
    open();
    bucket("A's");
    expire();
    messages::UpdateWeights part;
    part.call = CallId{30};
    part.timeout_ms = 60'000;
    part.update.partial = true;
    part.update.source.kind = messages::SourceKind::kTensors;
    coordinator_.collect(now_, {"B", part.call}, part, UpdateCoordinator::Brings::kParts, out_);
    both_answer(messages::UpdateOrder::kOpen);
    both_answer(messages::UpdateOrder::kFill);
    ASSERT_TRUE(last_reply().ok) << last_reply().verdict.message;
    const std::size_t num_orders = out_.orders.size();
    named_bucket(0, "A's");
    expect_refused({"session 1", "timed out"});
    ASSERT_TRUE(out_.part_refused) << "B's calls may lack it";
    EXPECT_EQ(out_.orders.size(), num_orders) << "nothing is written";
}

TEST_F(UnnamedSessionTest, ATakeOverOfNothingIsABegin) {
    messages::BeginUpdate call = begin_call();
    call.take_over = true;
    open(call);
    EXPECT_EQ(last_reply().verdict.message, "");
    bucket();
}

TEST_F(UnnamedSessionTest, NoTakeOverOfACallUnderWay) {
    open();
    ASSERT_TRUE(unnamed());
    messages::BeginUpdate call = begin_call("trainer B");
    call.take_over = true;
    begin(call);
    expect_refused({"session 1", "under way", "fill"});
    ASSERT_TRUE(unnamed());
    expect_refused({"a call of session 1", "under way"});
    both_answer(messages::UpdateOrder::kFill);
    EXPECT_TRUE(last_reply().ok);
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 0u);
}

// A take-over that would be refused anyway must not drop the open session.
TEST_F(UnnamedSessionTest, ATakeOverLooksAtItsOwnConditionsFirst) {
    open();
    messages::BeginUpdate call = begin_call();
    call.take_over = true;
    call.update.base_digest = "d0";
    begin(call);
    expect_refused({"d0"});
    EXPECT_TRUE(coordinator_.is_open());
}

TEST_F(UnnamedSessionTest, AHeldStageIsTakenOver) {
    messages::StageWeights stage;
    stage.call = CallId{9};
    stage.update.source.path = "/checkpoint";
    coordinator_.handle(now_, {"trainer", stage.call}, stage, out_);
    both_answer(messages::UpdateOrder::kStage);
    messages::BeginUpdate call = begin_call();
    begin(call);
    expect_refused({"update 1", "staged", "take_over"});
    call.take_over = true;
    begin(call);
    both_answer(messages::UpdateOrder::kDrop);
    next_update_ = 2;
    both_answer(messages::UpdateOrder::kOpen);
    ASSERT_TRUE(last_reply().ok);
    EXPECT_NE(last_reply().verdict.message.find("update 1"), std::string::npos);
    bucket();  // the dropped stage had no calls without a session
}

TEST_F(UnnamedSessionTest, ATakeOverWhoseTimeIsUpBeginsNothing) {
    open();
    messages::BeginUpdate call = begin_call();
    call.take_over = true;
    call.timeout_ms = 1000;
    begin(call);
    now_ += seconds(11);
    coordinator_.tick(now_, out_);
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kDeadlineExceeded);
    both_answer(messages::UpdateOrder::kDrop);
    EXPECT_FALSE(coordinator_.is_busy());
    EXPECT_EQ(count_orders<messages::UpdateStage>(), 1u);
}

TEST_F(UnnamedSessionTest, AnIdleTimeIsItsOwn) {
    messages::BeginUpdate call = begin_call();
    call.idle_timeout_ms = 300;
    open(call);
    now_ += milliseconds(299);
    coordinator_.tick(now_, out_);
    EXPECT_TRUE(coordinator_.is_open());
    expire(milliseconds(1));
}

TEST_F(UnnamedSessionTest, ABucketDeclaresNoVersion) {
    open();
    messages::UpdateWeights call;
    call.call = CallId{12};
    call.unnamed = true;
    call.update.epoch = Epoch{9};
    EXPECT_TRUE(coordinator_.take_unnamed(now_, {"trainer", call.call}, call, out_));
    expect_refused({"epoch"});
    EXPECT_TRUE(coordinator_.is_open());
}

// The bus accepts `unnamed` beside an adapter's name.
TEST_F(UnnamedSessionTest, P2_ACallForAnAdapterIsNoBucketOfTheModelsSession) {
    open();
    EXPECT_TRUE(unnamed_for("policy"));
    expect_refused({"adapter 'policy'", "is no bucket of session", "of the model's weights"});
    EXPECT_EQ(count_orders<messages::UpdateFill>(), 0u);
    EXPECT_TRUE(coordinator_.is_open());
    bucket();
    end();
    finish_commit();
    EXPECT_TRUE(last_reply().ok) << last_reply().verdict.message;
}

TEST_F(UnnamedSessionTest, P2_ACallForAnAdapterIsABucketOfItsOwnSessionAlone) {
    messages::BeginUpdate call = begin_call();
    call.update.adapter = "policy";
    open(call);
    EXPECT_TRUE(unnamed_for("critic"));
    expect_refused({"adapter 'critic'", "of adapter 'policy'"});
    messages::UpdateWeights pinned = call_for("policy");
    pinned.update.adapter_pinned = true;
    EXPECT_TRUE(coordinator_.take_unnamed(now_, {"trainer", pinned.call}, pinned, out_));
    expect_refused({"adapter's settings"});
    EXPECT_EQ(count_orders<messages::UpdateFill>(), 0u);
    EXPECT_TRUE(unnamed_for("policy"));
    both_answer(messages::UpdateOrder::kFill);
    EXPECT_TRUE(last_reply().ok) << last_reply().verdict.message;
    EXPECT_EQ(count_orders<messages::UpdateFill>(), 1u);
}

// Were the adapter's trainer told of the loss, the session's own trainer might not be.
TEST_F(UnnamedSessionTest, P2_ACallForAnAdapterIsToldOfNoLossOfTheModels) {
    open();
    bucket();
    expire();
    EXPECT_FALSE(unnamed_for("policy")) << "an update of its own";
    now_ += std::chrono::hours(1);
    ASSERT_TRUE(unnamed()) << "the session's trainer is still to be told";
    expect_refused({"session 1", "timed out"});
}

TEST_F(UnnamedSessionTest, P2_ALossOfAnAdaptersSessionIsToldToItsCalls) {
    messages::BeginUpdate call = begin_call();
    call.update.adapter = "policy";
    open(call);
    expire();
    EXPECT_EQ(coordinator_.unnamed_at_stake()->adapter, "policy") << "of the next tree, too";
    EXPECT_FALSE(unnamed_for("critic"));
    EXPECT_TRUE(unnamed_for("policy"));
    expect_refused({"session 1", "timed out"});
    EXPECT_TRUE(unnamed()) << "a call that names no adapter may be a bucket of one";
}

// The trainer of the model's session may not have called since.
TEST_F(UnnamedSessionTest, P2_TheLossOfAnAdaptersSessionEndsNoLossOfTheModels) {
    open();
    bucket();
    expire();
    messages::BeginUpdate call = begin_call();
    call.update.adapter = "policy";
    open(call);
    expire();
    open();  // before the model's trainer is told
    named_bucket(next_update_);
    both_answer(messages::UpdateOrder::kFill);
    end(next_update_);
    finish_commit();
    EXPECT_TRUE(unnamed_for("policy"));
    expect_refused({"session 2"});
    open(call);
    end();
    finish_commit();
    ASSERT_FALSE(coordinator_.is_busy());
    EXPECT_FALSE(unnamed_for("policy")) << "the adapter's trainer was told, and has begun anew";
    EXPECT_TRUE(unnamed()) << "of the model's trainer nobody was told";
    expect_refused({"session 1"});
    open(call);
    end();
    finish_commit();
    EXPECT_TRUE(unnamed()) << "the adapter's trainer has begun anew, and no other";
    open();
    end();
    finish_commit();
    EXPECT_FALSE(unnamed());
}

// The collected calls are the model's, so an adapter's late call must not end them.
TEST_F(UnnamedSessionTest, P2_ALateCallForAnAdapterIsNoPartOfWhatIsCollected) {
    messages::BeginUpdate call = begin_call();
    call.update.adapter = "policy";
    open(call);
    expire();
    messages::UpdateWeights part = call_for("");
    part.unnamed = false;
    using Brings = UpdateCoordinator::Brings;
    coordinator_.collect(now_, {"trainer", part.call}, part, Brings::kParts, out_);
    both_answer(messages::UpdateOrder::kOpen);
    both_answer(messages::UpdateOrder::kFill);
    ASSERT_TRUE(coordinator_.is_collecting());
    EXPECT_TRUE(unnamed_for("policy"));
    expect_refused({"session 1", "timed out"});
    EXPECT_EQ(out_.part_refused, std::nullopt);
    EXPECT_TRUE(unnamed());
    EXPECT_NE(out_.part_refused, std::nullopt) << "a call that names no adapter may be collected";
}

}  // namespace
}  // namespace pitstop::tokenizer
