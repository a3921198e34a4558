// The admin door: fan-out, merging, deadlines.
#include "tests/tokenizer_proc/admin_fixture.h"

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

TEST_F(AdminTest, StatusIsMergedFromAllReplicas) {
    start(2);
    call(messages::Status{}, 41);
    for (const int replica : {1, 0}) {
        messages::ReplicaStatus part;
        part.call = order<messages::Status>(replica).call;
        part.replica = ReplicaId{replica};
        part.num_running = 10 + replica;
        from_tree(part);
    }
    const messages::StatusReply status = reply<messages::StatusReply>();
    EXPECT_EQ(status.call, CallId{41});
    EXPECT_EQ(status.model, "stories");
    ASSERT_EQ(status.replicas.size(), 2u);
    EXPECT_EQ(status.replicas[0].num_running, 10);
    EXPECT_EQ(status.replicas[1].num_running, 11);
}

TEST_F(AdminTest, P5_ALateCallFailsNamingWhoDidNotAnswerAndThePhase) {
    start(2);
    messages::Status status;
    status.timeout_ms = 1000;
    call(status, 41);
    messages::ReplicaStatus part;
    part.call = order<messages::Status>(0).call;
    from_tree(part);
    wait(999ms);
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin));
    wait(300ms);
    const messages::ErrorReply error = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(error.call, CallId{41});
    EXPECT_EQ(error.error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(error.error.message.find("scheduler_proc[1]"), std::string::npos);
    EXPECT_EQ(error.error.message.find("scheduler_proc[0]"), std::string::npos);
    EXPECT_NE(error.error.message.find("phase status"), std::string::npos);
    // Replica 1 answers after the time-out: the caller must not be answered twice.
    part.call = order<messages::Status>(1).call;
    part.replica = ReplicaId{1};
    from_tree(part);
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin));
}

TEST_F(AdminTest, TheDeadlineIsKnownToTheLoopAndToTheReplicas) {
    start();
    call(messages::Status{});
    EXPECT_EQ(order<messages::Status>(0).timeout_ms, 5000);
    EXPECT_LE(wake_at_, now_ + 6s);
}

TEST_F(AdminTest, CallersNumbersNeverMeet) {
    start();
    call(messages::Status{}, 1, "one");
    call(messages::Status{}, 1, "two");
    const CallId first = order<messages::Status>(0).call;
    const CallId second = order<messages::Status>(0).call;
    EXPECT_NE(first, second);
    messages::ReplicaStatus part;
    part.call = second;
    part.num_running = 2;
    from_tree(part);
    EXPECT_EQ(reply<messages::StatusReply>("two").replicas[0].num_running, 2);
    EXPECT_FALSE(has_message("one", messages::Door::kAdmin));
}

TEST_F(AdminTest, APauseIsOkOnlyIfEveryReplicaIs) {
    start(2);
    messages::PauseGeneration pause;
    pause.mode = messages::PauseMode::kRetract;
    call(pause);
    for (const int replica : {0, 1}) {
        const auto given = order<messages::PauseGeneration>(replica);
        EXPECT_EQ(given.mode, messages::PauseMode::kRetract);
        messages::PausePart part;
        part.call = given.call;
        part.replica = ReplicaId{replica};
        part.verdict.message = "already paused";
        if (replica == 1) {
            part.verdict.code = ErrorCode::kDeadlineExceeded;
            part.verdict.message = "phase pause: step 7 runs";
        }
        from_tree(part);
    }
    const messages::PauseReply paused = reply<messages::PauseReply>();
    EXPECT_FALSE(paused.ok);
    EXPECT_EQ(paused.verdict.code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(paused.verdict.message, "replica 1: phase pause: step 7 runs");
    EXPECT_EQ(paused.parts.size(), 2u);
}

TEST_F(AdminTest, HarmlessnessIsSaidInTheMessageOfAnOkReply) {
    start();
    call(messages::ContinueGeneration{});
    messages::ContinuePart part;
    part.call = order<messages::ContinueGeneration>(0).call;
    part.verdict.message = "not paused";
    from_tree(part);
    const messages::ContinueReply reply_ = reply<messages::ContinueReply>();
    EXPECT_TRUE(reply_.ok);
    EXPECT_EQ(reply_.verdict.message, "replica 0: not paused");
}

TEST_F(AdminTest, AnAbortIsAnsweredWhenTheLastChunksAreOut) {
    start();
    send("p", prompt("a"));
    send("q", prompt("a"));
    send("p", prompt("b"));
    const RequestKey first = next_request().key;
    const RequestKey second = next_request().key;
    const RequestKey other = next_request().key;
    deliver({chunk(other, "x", /*is_last=*/true)});
    messages::Abort abort;
    abort.rids = {"a", "b", "never"};
    call(abort);
    const messages::EndRequests end = next_end();
    EXPECT_EQ(end.keys, (std::vector<RequestKey>{first, second}));  // of any client
    EXPECT_EQ(end.cause, messages::EndCause::kAbort);
    deliver({chunk(first, "", /*is_last=*/true)});
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin));
    deliver({chunk(second, "", /*is_last=*/true)});
    const messages::AbortReply aborted = reply<messages::AbortReply>();
    EXPECT_TRUE(aborted.ok);
    ASSERT_EQ(aborted.results.size(), 3u);
    EXPECT_EQ(aborted.results[0].outcome, messages::AbortOutcome::kAborted);
    EXPECT_EQ(aborted.results[1].outcome, messages::AbortOutcome::kAlreadyDone);
    EXPECT_EQ(aborted.results[2].outcome, messages::AbortOutcome::kUnknown);
}

TEST_F(AdminTest, AnAbortOfAllNamesEveryOpenRequest) {
    start(2);
    for (const char* rid : {"a", "b", "c"}) send("p", prompt(rid));
    messages::Abort abort;
    abort.all = true;
    call(abort);
    std::vector<messages::OutputChunk> last;
    for (const int replica : {0, 1}) {
        for (const RequestKey key : next_end(replica).keys) {
            last.push_back(chunk(key, "", /*is_last=*/true));
        }
    }
    ASSERT_EQ(last.size(), 3u);
    deliver(last);
    EXPECT_EQ(reply<messages::AbortReply>().results.size(), 3u);
}

TEST_F(AdminTest, AnAbortOfNothingOpenIsAnsweredAtOnce) {
    start();
    messages::Abort abort;
    abort.all = true;
    call(abort);
    EXPECT_TRUE(reply<messages::AbortReply>().ok);
}

TEST_F(AdminTest, ALateAbortSaysHowManyAreLeft) {
    start();
    send("p", prompt("a"));
    messages::Abort abort;
    abort.rids = {"a"};
    abort.timeout_ms = 100;
    call(abort);
    wait(100ms + kReplicaGrace);
    const messages::ErrorReply error = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(error.error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(error.error.message.find("1 of 1"), std::string::npos) << error.error.message;
    EXPECT_NE(error.error.message.find("replica 0"), std::string::npos) << error.error.message;
}

TEST_F(AdminTest, CallsAreBounded) {
    start();
    for (std::size_t i = 0; i < kCallsMax; ++i) call(messages::Status{}, i + 1);
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin));
    call(messages::Status{}, 9999);
    const messages::ErrorReply error = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(error.error.code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(error.call, CallId{9999});
}

TEST_F(AdminTest, ACallWithoutANumberIsRefused) {
    start();
    send("admin", messages::Status{}, messages::Door::kAdmin);
    EXPECT_EQ(refusal("admin", messages::Door::kAdmin).error.code, ErrorCode::kInvalidArgument);
}

TEST_F(AdminTest, AnUpdateGoesThroughTheCoordinatorAndIsAnsweredOnce) {
    start(2);
    messages::UpdateWeights update;
    update.update.source.path = "/somewhere";
    call(update, 8);
    const messages::UpdateId id = order<messages::UpdateStage>(0).update;
    order<messages::UpdateStage>(1);
    const auto answer_all = [&](messages::UpdateOrder order) {
        for (const int replica : {0, 1}) {
            messages::UpdatePart part;
            part.update = id;
            part.replica = ReplicaId{replica};
            part.order = order;
            part.ok = true;
            part.state = messages::UpdateState::kServing;
            part.epoch = Epoch{2};
            part.digest = "d2";
            part.outcome.replica = ReplicaId{replica};
            from_tree(part);
        }
    };
    answer_all(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>(0);
    answer_all(messages::UpdateOrder::kReady);
    order<messages::UpdateCommit>(1);
    answer_all(messages::UpdateOrder::kCommit);
    const messages::UpdateReply updated = reply<messages::UpdateReply>();
    EXPECT_EQ(updated.call, CallId{8});
    EXPECT_TRUE(updated.ok) << updated.verdict.message;
    EXPECT_EQ(updated.epoch, Epoch{2});
}

messages::MemoryPart memory_part(
    CallId call, int replica, std::optional<ErrorCode> code, bool was_done
) {
    messages::MemoryPart part;
    part.call = call;
    part.replica = ReplicaId{replica};
    part.verdict.code = code;
    part.verdict.message = part.verdict.is_done() ? "" : "kv_cache is already released";
    part.was_done = was_done;
    return part;
}

TEST_F(AdminTest, AReleaseThatWasDoneOnSomeReplicasIsCompletedOnTheOthers) {
    start(2);
    call(messages::ReleaseMemory{.tags = {messages::MemoryTag::kKvCache}});
    const auto first = order<messages::ReleaseMemory>(0);
    EXPECT_EQ(first.tags, std::vector{messages::MemoryTag::kKvCache});
    from_tree(memory_part(first.call, 0, ErrorCode::kFailedPrecondition, true));
    from_tree(memory_part(order<messages::ReleaseMemory>(1).call, 1, std::nullopt, false));
    const messages::MemoryReply completed = reply<messages::MemoryReply>();
    EXPECT_TRUE(completed.ok) << completed.verdict.message;
    EXPECT_EQ(completed.parts.size(), 2u);
}

TEST_F(AdminTest, AReleaseThatWasDoneEverywhereIsAnError) {
    start(2);
    call(messages::ReleaseMemory{});
    for (const int replica : {0, 1}) {
        const CallId id = order<messages::ReleaseMemory>(replica).call;
        from_tree(memory_part(id, replica, ErrorCode::kFailedPrecondition, true));
    }
    const messages::MemoryReply refused = reply<messages::MemoryReply>();
    EXPECT_FALSE(refused.ok);
    EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(refused.verdict.message.find("already released"), std::string::npos);
}

TEST_F(AdminTest, AReleaseThatOneReplicaCannotDoIsAnErrorThatNamesIt) {
    start(2);
    call(messages::ReleaseMemory{});
    from_tree(memory_part(order<messages::ReleaseMemory>(0).call, 0, std::nullopt, false));
    from_tree(memory_part(
        order<messages::ReleaseMemory>(1).call, 1, ErrorCode::kFailedPrecondition, false
    ));
    const messages::MemoryReply refused = reply<messages::MemoryReply>();
    EXPECT_FALSE(refused.ok);
    EXPECT_NE(refused.verdict.message.find("replica 1"), std::string::npos);
}

TEST_F(AdminTest, ARefusalSaysThatThereAreNoWeights) {
    has_weights_ = false;
    start();
    EXPECT_EQ(status().weights_path, "");
    call(messages::RollbackWeights{});
    EXPECT_EQ(reply<messages::UpdateReply>().state, messages::UpdateState::kAwaitingWeights);
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update);
    update_part(order<messages::UpdateStage>(0).update, messages::UpdateOrder::kStage, "step-8");
    update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
    update_part(order<messages::UpdateCommit>(0).update, messages::UpdateOrder::kCommit);
    EXPECT_EQ(reply<messages::UpdateReply>().state, messages::UpdateState::kServing);
    call(messages::ReleaseMemory{});
    from_tree(memory_part(order<messages::ReleaseMemory>(0).call, 0, std::nullopt, false));
    call(messages::DropStage{});
    EXPECT_EQ(reply<messages::UpdateReply>().state, messages::UpdateState::kServing)
        << "they are kept";
    call(messages::ReleaseMemory{});
    messages::MemoryPart gone =
        memory_part(order<messages::ReleaseMemory>(0).call, 0, std::nullopt, false);
    gone.has_weights = false;
    from_tree(messages::ReplicaStanding{
        .released = {messages::MemoryTag::kWeights}, .has_weights = false});
    from_tree(gone);
    call(messages::DropStage{});
    EXPECT_EQ(reply<messages::UpdateReply>().state, messages::UpdateState::kAwaitingWeights);
}

TEST_F(AdminTest, AShutdownLetsOpenRequestsRunOutAndTakesNoNewOnes) {
    start();
    send("client", prompt("r1"));
    const RequestKey key = next_request().key;
    call(messages::Shutdown{.drain_s = 5});
    const messages::ShutdownReply ending = reply<messages::ShutdownReply>();
    EXPECT_TRUE(ending.ok);
    EXPECT_EQ(ending.open_requests, 1);
    EXPECT_FALSE(doors_->is_end_due(now_));
    send("client", prompt("r2"));
    EXPECT_EQ(refusal("client").error.code, ErrorCode::kUnavailable);
    EXPECT_LE(wake_at_, now_ + 5s);
    deliver({chunk(key, "the end", /*is_last=*/true)});
    EXPECT_TRUE(doors_->is_end_due(now_));
}

TEST_F(AdminTest, AShutdownWithoutADrainIsDueAtOnce) {
    start();
    send("client", prompt("r1"));
    call(messages::Shutdown{});
    EXPECT_TRUE(reply<messages::ShutdownReply>().ok);
    EXPECT_TRUE(doors_->is_end_due(now_));
}

TEST_F(AdminTest, ATreeThatWaitsForItsFirstWeightsSaysThatItIsNotReady) {
    make(1);
    messages::SchedulerHello hello;
    hello.replica = ReplicaId{0};
    hello.model_type = "llama";
    hello.context_len = kContextLen;
    hello.vocab_size = kVocabSize;
    hello.page_size = 16;
    hello.epoch = Epoch{1};
    hello.has_weights = false;
    from_tree(hello);
    EXPECT_TRUE(doors_->is_ready()) << "the doors are open";
    EXPECT_NE(doors_->describe().find("waits"), std::string::npos);
    EXPECT_FALSE(status().is_ready);
}

// An unnamed call may be a bucket of an adapter's session, which has the configuration.
TEST_F(AdminTest, AnUnnamedCallForAnAdapterNeedsAConfigurationIfItIsNoBucket) {
    start();
    messages::UpdateWeights update;
    update.unnamed = true;
    update.update.adapter = "policy";
    update.update.source.kind = messages::SourceKind::kDistributed;
    update.update.source.group = "g";
    update.update.source.tensors = {{.name = "w", .dtype = "F32", .shape = {2}}};
    call(update);
    const messages::ErrorReply error = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(error.call, CallId{5});
    EXPECT_EQ(error.error.code, ErrorCode::kInvalidArgument);
    EXPECT_NE(error.error.message.find("adapter_config is empty"), std::string::npos)
        << error.error.message;
    update.update.adapter_config = "{}";
    call(update, 6);
    EXPECT_EQ(order<messages::UpdateStage>(0).spec.adapter_config, "{}");
}

}  // namespace
}  // namespace pitstop::tokenizer
