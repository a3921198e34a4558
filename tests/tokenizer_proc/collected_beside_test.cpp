// Calls that come while a collection has a call, a commit or a drop in progress; and a collection's
// label.
#include "tests/tokenizer_proc/collected_fixture.h"

namespace pitstop::tokenizer {
namespace {

class CollectedBesideTest : public CollectedTest {
  protected:
    // A bucket of the collection, as trainers of the bus send it.
    void send_bucket(std::uint64_t number, const std::string& label) {
        messages::UpdateBucket bucket;
        bucket.label = label;
        bucket.source.kind = messages::SourceKind::kDistributed;
        bucket.source.group = "g";
        bucket.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
        call(bucket, number);
        order<messages::UpdateFill>();
        answer(messages::UpdateOrder::kFill);
        EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    }
    void expect_said(const std::string& message, std::string_view words) {
        EXPECT_NE(message.find(words), std::string::npos) << words << " is not in: " << message;
    }
};

// ---- its label ----

TEST_F(CollectedBesideTest, ABucketNamesTheVersion) {
    start();
    pause();
    collect_one(/*is_partial=*/true, /*label=*/"");
    send_bucket(11, "by a bucket");
    call(messages::ContinueGeneration{}, 12);
    finish("by a bucket");
    EXPECT_EQ(go_on().update->label, "by a bucket");
}

TEST_F(CollectedBesideTest, ALaterCallNamesTheVersion) {
    start();
    pause();
    collect_one(/*is_partial=*/true, /*label=*/"");
    send_tensors(22, "by the last call");
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    call(messages::ContinueGeneration{}, 23);
    finish("by the last call");
}

TEST_F(CollectedBesideTest, ABucketNamesAWholeModelToo) {
    has_weights_ = false;
    start();
    collect_one(/*is_partial=*/false, /*label=*/"");
    messages::UpdateBucket bucket;
    bucket.label = "by the last bucket";
    bucket.source.kind = messages::SourceKind::kDistributed;
    bucket.source.group = "g";
    bucket.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
    call(bucket, 11);
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill, 0);
    finish("by the last bucket");
    EXPECT_EQ(reply<messages::UpdateReply>().label, "by the last bucket");
}

// Calls of two trainers: together, parts of two models would become one version.
TEST_F(CollectedBesideTest, ACallForAVersionOfAnotherLabelEndsTheCollection) {
    start();
    pause();
    collect_one();
    send_tensors(11, "step-3");
    order<messages::UpdateDrop>();
    const auto refused = reply<messages::UpdateReply>();
    EXPECT_EQ(refused.call, CallId{11});
    EXPECT_EQ(refused.verdict.code, ErrorCode::kAborted);
    expect_said(
        refused.verdict.message, "the version with label 'step-3' arrived among 1 collected"
    );
    expect_said(refused.verdict.message, "calls for the version with label 'step-2'");
    answer(messages::UpdateOrder::kDrop);
    call(messages::ContinueGeneration{}, 12);
    expect_lost(refusal("admin", messages::Door::kAdmin), 12);
    call(messages::ContinueGeneration{}, 13);
    const auto went_on = go_on();
    EXPECT_TRUE(went_on.ok);
    EXPECT_FALSE(went_on.update) << "nothing was published";
}

TEST_F(CollectedBesideTest, ABucketForAVersionOfAnotherLabelEndsTheCollection) {
    start();
    pause();
    collect_one();
    messages::UpdateBucket bucket;
    bucket.label = "step-3";
    bucket.source.kind = messages::SourceKind::kDistributed;
    bucket.source.group = "g";
    bucket.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
    call(bucket, 11);
    order<messages::UpdateDrop>();
    EXPECT_EQ(reply<messages::UpdateReply>().verdict.code, ErrorCode::kAborted);
    answer(messages::UpdateOrder::kDrop);
    call(messages::ContinueGeneration{}, 12);
    expect_lost(refusal("admin", messages::Door::kAdmin), 12);
}

TEST_F(CollectedBesideTest, SetWeightLabelNamesWhatCallsOfAnotherLabelMake) {
    start();
    pause();
    collect_one();
    call(messages::SetWeightLabel{.label = "of its own"}, 31);
    EXPECT_TRUE(reply<messages::LabelReply>().ok);
    send_bucket(11, "step-2");
    call(messages::ContinueGeneration{}, 12);
    finish("of its own");
    EXPECT_EQ(go_on().update->label, "of its own");
}

// Another client's continue has published the calls so far, so this call comes too late.
TEST_F(CollectedBesideTest, ACallThatNamesAVersionPublishedBeforeIsNoVersionOfItsOwn) {
    start();
    pause();
    collect_one();
    call(messages::ContinueGeneration{}, 12);
    finish("step-2");
    ASSERT_TRUE(go_on().ok);
    send_tensors(13, "step-2");
    EXPECT_FALSE(is_anything_ordered());
    const auto late = reply<messages::UpdateReply>();
    EXPECT_EQ(late.verdict.code, ErrorCode::kAborted);
    expect_said(late.verdict.message, "label 'step-2' was published as epoch 2");
    // A call with another label starts a version of its own.
    send_tensors(14, "step-3");
    EXPECT_EQ(order<messages::UpdateStage>().spec.label, "step-3");
}

// ---- during a call of it ----

TEST_F(CollectedBesideTest, ACallRefusedBesideACollectedOneSaysSo) {
    start();
    pause();
    collect_one();
    send_tensors(11);
    order<messages::UpdateFill>();  // not answered yet
    call(messages::CommitWeights{}, 12);
    const auto commit = reply<messages::UpdateReply>();
    EXPECT_EQ(commit.call, CallId{12});
    EXPECT_EQ(commit.verdict.code, ErrorCode::kFailedPrecondition);
    expect_said(commit.verdict.message, "a call of collected update");
    expect_said(commit.verdict.message, "2 calls");
    expect_said(commit.verdict.message, "is under way");
    call(messages::DropStage{}, 13);
    expect_said(reply<messages::UpdateReply>().verdict.message, "a call of collected update");
    call(messages::SetWeightLabel{.label = "zz"}, 14);
    const auto label = reply<messages::LabelReply>();
    EXPECT_EQ(label.verdict.code, ErrorCode::kFailedPrecondition);
    expect_said(label.verdict.message, "the label cannot change now: collected update");
    expect_said(label.verdict.message, "wait for it");
    answer(messages::UpdateOrder::kFill);
    EXPECT_EQ(reply<messages::UpdateReply>().call, CallId{11}) << "no harm was done";
}

TEST_F(CollectedBesideTest, WithoutAnythingNothingIsStagedAndNothingCollected) {
    start();
    call(messages::CommitWeights{}, 12);
    expect_said(
        reply<messages::UpdateReply>().verdict.message,
        "nothing is staged, and no calls are collected"
    );
}

// ---- during its drop ----

TEST_F(CollectedBesideTest, P2_ACallBesideADropWaitsForItAndHearsOfTheLoss) {
    start();
    pause(5);
    collect_one();
    expire_pause();
    order<messages::UpdateDrop>();  // not answered yet
    send_tensors(12);
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin)) << "it waits";
    answer(messages::UpdateOrder::kDrop);
    expect_lost(refusal("admin", messages::Door::kAdmin), 12);
}

TEST_F(CollectedBesideTest, AnUpdateBesideADropThatWasAskedForWaitsForIt) {
    start();
    pause();
    collect_one();
    call(messages::DropStage{}, 30);
    order<messages::UpdateDrop>();
    send_tensors(31);
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin)) << "it waits";
    answer(messages::UpdateOrder::kDrop);
    EXPECT_EQ(reply<messages::UpdateReply>().call, CallId{30});
    EXPECT_FALSE(order<messages::UpdateStage>().spec.partial);
}

TEST_F(CollectedBesideTest, P5_NobodyWaitsForADropThatIsLate) {
    start();
    pause();
    collect_one();
    call(messages::DropStage{.timeout_ms = 1000}, 30);
    order<messages::UpdateDrop>();  // nobody answers it
    send_tensors(31);
    wait(std::chrono::seconds(11));
    EXPECT_EQ(reply<messages::UpdateReply>().verdict.code, ErrorCode::kDeadlineExceeded);
    const auto refused = reply<messages::UpdateReply>();
    EXPECT_EQ(refused.call, CallId{31});
    expect_said(refused.verdict.message, "is under way, in phase drop;");
}

// ---- during its commit ----

// The call may belong to the collection; alone it would become a version of its own.
TEST_F(CollectedBesideTest, P2_APartBesideTheCommitIsRefused) {
    start();
    pause();
    collect_one();
    call(messages::CommitWeights{}, 12);
    order<messages::UpdateFinish>();
    send_tensors(13);
    const auto refused = reply<messages::UpdateReply>();
    EXPECT_EQ(refused.call, CallId{13});
    EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
    expect_said(refused.verdict.message, "collected update");
}

TEST_F(CollectedBesideTest, AnUpdateBesideARollbackWaitsForIt) {
    start();
    pause();
    collect_one();
    call(messages::ContinueGeneration{}, 12);
    finish("step-2");
    EXPECT_TRUE(go_on().ok);
    call(messages::RollbackWeights{}, 20);
    update_ = order<messages::UpdateRollback>().update;
    send_tensors(21, "after it");
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin)) << "it waits";
    answer(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>();
    answer(messages::UpdateOrder::kReady);
    order<messages::UpdateCommit>();
    answer(messages::UpdateOrder::kCommit);
    EXPECT_EQ(reply<messages::UpdateReply>().call, CallId{20});
    EXPECT_EQ(order<messages::UpdateStage>().spec.label, "after it");
}

TEST_F(CollectedBesideTest, P5_AContinueWhoseCommitIsLateSaysThatItMayTakeEffect) {
    start();
    pause();
    collect_one();
    call(messages::ContinueGeneration{.timeout_ms = 60'000}, 12);
    order<messages::UpdateFinish>();
    answer(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>();
    answer(messages::UpdateOrder::kReady);
    order<messages::UpdateCommit>();  // nobody answers it
    wait(std::chrono::milliseconds(60'100));
    const messages::ErrorReply late = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(late.call, CallId{12});
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
    expect_said(late.error.message, "still being committed, and may take effect: ask status");
    EXPECT_EQ(late.error.message.find("failed"), std::string::npos) << late.error.message;
    // The same call, sent a second time, must not join the commit either.
    call(messages::ContinueGeneration{.timeout_ms = 60'000}, 13);
    EXPECT_FALSE(is_anything_ordered()) << "it waits for the commit";
    answer(messages::UpdateOrder::kCommit);
    EXPECT_TRUE(go_on().ok);
}

// An adapter is no part of the model, and does not replace missing weights.
TEST_F(CollectedTest, AnAdapterNeitherJoinsNorReplacesACollection) {
    has_weights_ = false;
    start();
    begin_collecting(/*is_partial=*/false);
    answer(messages::UpdateOrder::kFill, 2);
    reply<messages::UpdateReply>();
    messages::UpdateWeights adapter;
    adapter.update.source.path = "/adapters/a";
    adapter.update.adapter = "a";
    call(adapter, 30);
    const auto refused = reply<messages::UpdateReply>();
    EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(refused.verdict.message.find("collected"), std::string::npos)
        << refused.verdict.message;
    send_tensors(31);  // the collection goes on
    order<messages::UpdateFill>();
}

// A part of an adapter names no epoch or digest, like a part of the model.
TEST_F(CollectedTest, APartOfAnAdapterJoinsNoCollection) {
    start();
    pause(5);
    begin_collecting(/*is_partial=*/true);
    answer(messages::UpdateOrder::kFill, 2);
    reply<messages::UpdateReply>();
    messages::UpdateWeights part;
    part.update.source.path = "/adapters/a";
    part.update.adapter = "a";
    part.update.partial = true;
    call(part, 30);
    const auto refused = reply<messages::UpdateReply>();
    EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
    send_tensors(31);  // the collection goes on
    order<messages::UpdateFill>();
}

// ---- unloads ----

class UnloadBesideTest : public CollectedTest {
  protected:
    void load(const std::string& adapter, std::uint64_t number) {
        messages::UpdateWeights load;
        load.update.source.path = "/adapters/" + adapter;
        load.update.adapter = adapter;
        call(load, number);
    }
    void unload(std::uint64_t number, std::int64_t timeout_ms = 0) {
        call(messages::UnloadAdapter{.timeout_ms = timeout_ms, .name = "a"}, number);
    }
    void finish_load() {
        update_ = order<messages::UpdateStage>().update;
        answer(messages::UpdateOrder::kStage);
        order<messages::UpdateReady>();
        answer(messages::UpdateOrder::kReady);
        order<messages::UpdateCommit>();
        answer(messages::UpdateOrder::kCommit);
        EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    }
    void finish_unload(std::uint64_t number) {
        from_tree(messages::AdapterPart{.call = order<messages::UnloadAdapter>().call});
        EXPECT_EQ(reply<messages::AdapterReply>().call, CallId{number});
    }
};

TEST_F(UnloadBesideTest, AnUnloadAndALoadAfterItWaitForTheirTurn) {
    start();
    load("b", 10);
    unload(11);
    load("a", 12);
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin)) << "they wait";
    finish_load();
    finish_unload(11);
    finish_load();
    unload(13);
    finish_unload(13);
}

// Unlike a call with weights, an unload is no part of the version.
TEST_F(UnloadBesideTest, AnUnloadWaitsForTheCommitOfACollection) {
    start();
    pause();
    collect_one();
    call(messages::ContinueGeneration{}, 12);
    unload(13);
    finish("step-2");
    from_tree(messages::AdapterPart{.call = order<messages::UnloadAdapter>().call});
    EXPECT_TRUE(go_on().update);
    EXPECT_EQ(reply<messages::AdapterReply>().call, CallId{13});
}

TEST_F(UnloadBesideTest, P5_AnUnloadHasNoMoreTimeThanItWasGiven) {
    start();
    load("b", 10);
    unload(11, /*timeout_ms=*/2000);
    wait(std::chrono::milliseconds(1500));
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin));
    wait(std::chrono::milliseconds(500));
    const messages::ErrorReply late = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(late.call, CallId{11});
    EXPECT_EQ(late.error.code, ErrorCode::kDeadlineExceeded);
    finish_load();
    EXPECT_FALSE(is_anything_ordered());
    load("b", 12);
    unload(13, /*timeout_ms=*/2000);
    wait(std::chrono::milliseconds(1500));
    finish_load();
    EXPECT_EQ(order<messages::UnloadAdapter>().timeout_ms, 500);
}

// No call is in progress, so the wait would have no end.
TEST_F(UnloadBesideTest, AnUnloadIsRefusedWhileCallsAreCollected) {
    start();
    pause();
    collect_one();
    unload(11);
    const auto refused = reply<messages::AdapterReply>();
    EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(refused.verdict.message.find("cannot be unloaded now"), std::string::npos)
        << refused.verdict.message;
}

// ---- beside calls for adapters that cannot be read ----

class UnreadAdapterTest : public CollectedTest {
  protected:
    static messages::UpdateWeights load(const std::string& adapter) {
        messages::UpdateWeights load;
        load.update.source.path = "/adapters/a";
        load.update.adapter = adapter;
        return load;
    }
    void begin_unnamed(const std::string& adapter) {
        messages::BeginUpdate begin;
        begin.update.source = {.kind = messages::SourceKind::kBuckets};
        begin.update.adapter = adapter;
        if (!adapter.empty()) begin.update.adapter_config = "{}";
        begin.update.partial = adapter.empty();
        begin.unnamed = true;
        call(begin, 2);
        update_ = order<messages::UpdateStage>().update;
        answer(messages::UpdateOrder::kOpen);
        ASSERT_TRUE(reply<messages::UpdateReply>().ok);
    }
    // Loads that decode() refuses, each for another reason.
    static std::vector<messages::UpdateWeights> unreadable() {
        std::vector<messages::UpdateWeights> all(5, load("a"));
        all[0].update.kv_policy = messages::KvPolicy::kDrain;
        all[1].update.epoch = Epoch{9};
        all[2].update.adapter_config.assign((std::size_t{1} << 20) + 1, ' ');
        all[3].update.adapter.assign(257, 'a');
        all[4].update.source = {
            .kind = messages::SourceKind::kTensors,
            .tensors = {{.name = "w", .dtype = "F32", .shape = {2}}},
            .payloads = {{}}};
        return all;
    }
    void refuse_all() {
        std::uint64_t number = 40;
        for (const messages::UpdateWeights& load : unreadable()) {
            call(load, number);
            const messages::ErrorReply refused = refusal("admin", messages::Door::kAdmin);
            EXPECT_EQ(refused.call, CallId{number++});
            EXPECT_EQ(refused.error.code, ErrorCode::kInvalidArgument) << refused.error.message;
            EXPECT_FALSE(is_anything_ordered()) << refused.error.message;
        }
    }
};

TEST_F(UnreadAdapterTest, P2_TheyLeaveACollectionAsItIs) {
    start();
    pause();
    refuse_all();
    collect_one();
    refuse_all();
    call(messages::ContinueGeneration{}, 90);
    finish("step-2");
    EXPECT_TRUE(go_on().update);
}

TEST_F(UnreadAdapterTest, P2_TheyLeaveTheSessionOfTheModelAsItIs) {
    start();
    begin_unnamed("");
    refuse_all();
    EXPECT_EQ(unfinished_.session, static_cast<std::uint64_t>(update_));
}

TEST_F(UnreadAdapterTest, P2_OneForTheAdapterOfTheSessionEndsThatSession) {
    start();
    begin_unnamed("b");
    refuse_all();
    messages::UpdateWeights unreadable = load("b");
    unreadable.unnamed = true;
    unreadable.update.epoch = Epoch{9};
    call(unreadable, 60);
    EXPECT_EQ(refusal("admin", messages::Door::kAdmin).call, CallId{60});
    EXPECT_EQ(order<messages::UpdateDrop>().update, update_);
}

}  // namespace
}  // namespace pitstop::tokenizer
