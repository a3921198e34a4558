// The admin door: fan-out, merging, deadlines.
#include "messages/control.h"
#include "messages/version_digest.h"
#include "tests/tokenizer_proc/doors_fixture.h"

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

class AdminTest : public DoorsTest {
  protected:
    template <class Message>
    void call(Message message, std::uint64_t number = 5, const std::string& peer = "admin") {
        message.call = CallId{number};
        send(peer, message, messages::Door::kAdmin);
    }
    template <class Message>
    Message order(int replica) {
        return next_to_replica<Message>(replica, ReplicaSocket::kControl);
    }
    template <class Message>
    Message reply(const std::string& peer = "admin") {
        return next_to<Message>(peer, messages::Door::kAdmin);
    }
    // Replica 0 has done what the update needs.
    void update_part(
        messages::UpdateId update, messages::UpdateOrder order, const std::string& label = ""
    ) {
        messages::UpdatePart part;
        part.update = update;
        part.order = order;
        part.ok = true;
        part.state = messages::UpdateState::kServing;
        part.label = label;
        part.digest = "d-" + label;
        from_tree(part);
    }
};

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
    // Its answer after all: nobody is answered twice.
    part.call = order<messages::Status>(1).call;
    part.replica = ReplicaId{1};
    from_tree(part);
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin));
}

TEST_F(AdminTest, TheDeadlineIsKnownToTheLoopAndToTheReplicas) {
    start();
    call(messages::Status{});
    EXPECT_EQ(order<messages::Status>(0).timeout_ms, 5000);
    EXPECT_LE(doors_->next_deadline(now_), now_ + 6s);
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
    wait(150ms);
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

messages::WorkerTensor piece_of(
    CallId call, std::int64_t row, std::int64_t col, std::uint8_t fill
) {
    messages::WorkerTensor piece;
    piece.call = call;
    piece.epoch = Epoch{1};
    piece.tensor = {.name = "w", .dtype = "BF16", .shape = {2, 4}};
    piece.row_begin = row;
    piece.num_rows = 1;
    piece.col_begin = col;
    piece.num_cols = 2;
    piece.data.values.assign(4, fill);
    return piece;
}

TEST_F(AdminTest, ATensorIsPutTogetherFromItsRectangles) {
    start(2);
    messages::GetWeights get;
    get.name = "w";
    call(get);
    const auto read = order<messages::WorkerReadTensor>(0);
    EXPECT_EQ(read.name, "w");
    from_tree(piece_of(read.call, 1, 2, 4));
    from_tree(piece_of(read.call, 0, 0, 1));
    from_tree(piece_of(read.call, 0, 0, 1));  // another rank's copy
    from_tree(piece_of(read.call, 0, 2, 2));
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin));
    from_tree(piece_of(read.call, 1, 0, 3));
    const messages::WeightsReply got = reply<messages::WeightsReply>();
    EXPECT_EQ(
        got.data.values, (std::vector<std::uint8_t>{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4})
    );
    EXPECT_EQ(got.tensor.shape, (std::vector<std::int64_t>{2, 4}));
}

TEST_F(AdminTest, P5_ALateReadOfATensorNamesTheRanksThatSentNothing) {
    make(1);
    ranks_ = 3;
    say_hello(0);
    call(messages::GetWeights{.timeout_ms = 1000, .name = "w"});
    messages::WorkerTensor piece = piece_of(order<messages::WorkerReadTensor>(0).call, 0, 0, 1);
    piece.rank = Rank{1};
    from_tree(piece);
    wait(1000ms);
    const messages::ErrorReply error = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(error.error.code, ErrorCode::kDeadlineExceeded);
    EXPECT_NE(error.error.message.find("phase read"), std::string::npos) << error.error.message;
    EXPECT_NE(error.error.message.find("from replica 0 (rank 0, 2)"), std::string::npos)
        << error.error.message;
}

TEST_F(AdminTest, ARectangleOutsideTheTensorIsAnErrorNotAWrite) {
    start();
    call(messages::GetWeights{.name = "w"});
    messages::WorkerTensor piece = piece_of(order<messages::WorkerReadTensor>(0).call, 0, 0, 1);
    piece.row_begin = 5;
    from_tree(piece);
    EXPECT_EQ(refusal("admin", messages::Door::kAdmin).error.code, ErrorCode::kInternal);
}

TEST_F(AdminTest, ATensorThatDoesNotExistIsNotFound) {
    start();
    call(messages::GetWeights{.name = "w"});
    messages::WorkerTensor piece;
    piece.call = order<messages::WorkerReadTensor>(0).call;
    piece.verdict.code = ErrorCode::kNotFound;
    piece.verdict.message = "near are: v";
    from_tree(piece);
    const messages::ErrorReply error = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(error.error.code, ErrorCode::kNotFound);
    EXPECT_EQ(error.error.message, "near are: v");
}

TEST_F(AdminTest, DigestsAreComparedOverReplicas) {
    start(2);
    for (const bool is_same : {true, false}) {
        call(messages::WeightDigests{});
        for (const int replica : {0, 1}) {
            messages::WorkerDigests part;
            part.call = order<messages::WorkerDigest>(replica).call;
            part.replica = ReplicaId{replica};
            part.epoch = Epoch{1};
            part.digests = {
                {.name = "w",
                 .shape = {2, 4},
                 .lane0 = 1,
                 .lane1 = is_same ? 2u : 2u + static_cast<std::uint64_t>(replica)}};
            from_tree(part);
        }
        const messages::DigestsReply digests = reply<messages::DigestsReply>();
        EXPECT_EQ(digests.ok, is_same) << digests.verdict.message;
        if (is_same) {
            EXPECT_EQ(digests.tensors.size(), 1u);
            EXPECT_EQ(digests.digest.size(), 32u);
        } else {
            EXPECT_EQ(digests.verdict.code, ErrorCode::kDataLoss);
        }
    }
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

TEST_F(AdminTest, ANewLabelIsKnownToLaterAnswersAboutWeights) {
    start(2);
    call(messages::SetWeightLabel{.label = "step-7"});
    for (const int replica : {0, 1}) {
        messages::LabelPart part;
        part.call = order<messages::SetWeightLabel>(replica).call;
        part.replica = ReplicaId{replica};
        part.epoch = Epoch{1};
        part.label = "step-7";
        from_tree(part);
    }
    EXPECT_TRUE(reply<messages::LabelReply>().ok);
    call(messages::DropStage{});  // nothing is staged: the answer says what serves
    EXPECT_EQ(reply<messages::UpdateReply>().label, "step-7");
}

TEST_F(AdminTest, LabelCallsUnderWayTogetherDoNotConfuseEachOther) {
    start();
    call(messages::SetWeightLabel{.label = "one"}, 1);
    call(messages::SetWeightLabel{.label = "two"}, 2);
    const auto label_part = [&](const std::string& label, std::optional<ErrorCode> code) {
        messages::LabelPart part;
        part.call = order<messages::SetWeightLabel>(0).call;
        part.label = label;
        part.verdict.code = code;
        from_tree(part);
        return reply<messages::LabelReply>();
    };
    EXPECT_TRUE(label_part("one", std::nullopt).ok);
    call(messages::DropStage{});
    EXPECT_EQ(reply<messages::UpdateReply>().label, "one") << "the second call is still under way";
    EXPECT_FALSE(label_part("one", ErrorCode::kFailedPrecondition).ok);
    call(messages::DropStage{});
    EXPECT_EQ(reply<messages::UpdateReply>().label, "one") << "and was refused";
}

TEST_F(AdminTest, P2_TheLauncherKnowsTheVersionBeforeWhoAskedForIt) {
    weights_path_ = "/checkpoints/7";
    start();
    EXPECT_EQ(status().weights_path, "/checkpoints/7");
    call(messages::SetWeightLabel{.label = "step-7"});
    messages::LabelPart part;
    part.call = order<messages::SetWeightLabel>(0).call;
    part.label = "step-7";
    from_tree(part);
    EXPECT_TRUE(reply<messages::LabelReply>().ok);
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update);
    update_part(order<messages::UpdateStage>(0).update, messages::UpdateOrder::kStage, "step-8");
    update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
    ASSERT_EQ(served_.size(), 3u) << "with the order to commit: a replica may serve it from now on";
    const messages::UpdateId commit = order<messages::UpdateCommit>(0).update;
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin));
    update_part(commit, messages::UpdateOrder::kCommit);
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    ASSERT_EQ(served_.size(), 3u);
    EXPECT_EQ(num_answers_at_served_, 0u);
    const ServedVersion relabelled{
        .epoch = Epoch{1}, .label = "step-7", .digest = "d1", .path = "/checkpoints/7"};
    const ServedVersion updated{
        .epoch = Epoch{2}, .label = "step-8", .digest = "d-step-8", .path = "/checkpoints/8"};
    EXPECT_EQ(served_[0].digest, "d1") << "what was loaded, so that a restart loads the same";
    EXPECT_EQ(served_[1], relabelled);
    EXPECT_EQ(served_[2], updated);
    call(messages::RollbackWeights{});
    update_part(order<messages::UpdateRollback>(0).update, messages::UpdateOrder::kStage, "step-7");
    update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
    update_part(order<messages::UpdateCommit>(0).update, messages::UpdateOrder::kCommit);
    EXPECT_EQ(served_.back().path, "/checkpoints/7")
        << "also where no update of this tree brought it";
    EXPECT_EQ(status().weights_path, "/checkpoints/7");
}

TEST_F(AdminTest, P2_ACommitThatSomeReplicaRefusedIsTheOneThatComesBack) {
    start(2);
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update);
    const auto part = [&](int replica, messages::UpdateId id, messages::UpdateOrder order, bool ok
                      ) {
        messages::UpdatePart message;
        message.replica = ReplicaId{replica};
        message.update = id;
        message.order = order;
        message.ok = ok;
        message.state = ok ? messages::UpdateState::kServing : messages::UpdateState::kTorn;
        message.label = "step-8";
        message.digest = "d8";
        from_tree(message);
    };
    const messages::UpdateId id = order<messages::UpdateStage>(0).update;
    for (const int replica : {0, 1}) part(replica, id, messages::UpdateOrder::kStage, true);
    for (const int replica : {0, 1}) part(replica, id, messages::UpdateOrder::kReady, true);
    part(0, id, messages::UpdateOrder::kCommit, true);  // and generates from here on
    part(1, id, messages::UpdateOrder::kCommit, false);
    for (const int replica : {0, 1}) part(replica, id, messages::UpdateOrder::kDrop, false);
    EXPECT_FALSE(reply<messages::UpdateReply>().ok);
    const ServedVersion decided{
        .epoch = Epoch{2}, .label = "step-8", .digest = "d8", .path = "/checkpoints/8"};
    EXPECT_EQ(served_.back(), decided);
}

TEST_F(AdminTest, ALostVersionIsToldUntilAnotherIsCommitted) {
    has_weights_ = false;
    lost_ = messages::LostVersion{.label = "step-7", .digest = "d7", .why = "gone"};
    start();
    ASSERT_TRUE(status().lost.has_value());
    EXPECT_EQ(status().lost->epoch, Epoch{1}) << "the hello's: epochs go on counting";
    EXPECT_EQ(status().lost->label, "step-7");
    EXPECT_FALSE(status().is_ready);
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update);
    update_part(order<messages::UpdateStage>(0).update, messages::UpdateOrder::kStage, "step-8");
    update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
    EXPECT_TRUE(status().lost.has_value());
    update_part(order<messages::UpdateCommit>(0).update, messages::UpdateOrder::kCommit);
    EXPECT_FALSE(status().lost.has_value());
    EXPECT_TRUE(status().is_ready);
}

TEST_F(AdminTest, WhatIsCommittedIsKeptByReplicaZero) {
    keep_committed_ = "/kept";
    start(2);
    EXPECT_EQ(status().keep->state, "idle");
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update);
    const auto part = [&](int replica, messages::UpdateId id, messages::UpdateOrder order) {
        messages::UpdatePart message;
        message.replica = ReplicaId{replica};
        message.update = id;
        message.order = order;
        message.ok = true;
        message.state = messages::UpdateState::kServing;
        message.digest = "d8";
        from_tree(message);
    };
    const messages::UpdateId id = order<messages::UpdateStage>(0).update;
    for (const messages::UpdateOrder order :
         {messages::UpdateOrder::kStage, messages::UpdateOrder::kReady})
        for (const int replica : {0, 1}) part(replica, id, order);
    part(0, id, messages::UpdateOrder::kCommit);
    EXPECT_THROW(order<messages::WorkerKeep>(0), std::runtime_error)
        << "not committed everywhere yet";
    part(1, id, messages::UpdateOrder::kCommit);
    const messages::WorkerKeep begin = order<messages::WorkerKeep>(0);
    EXPECT_EQ(begin.step, messages::KeepStep::kBegin);
    EXPECT_EQ(begin.digest, "d8");
    EXPECT_THROW(order<messages::WorkerKeep>(1), std::runtime_error) << "it holds the same weights";
    EXPECT_EQ(status().keep->state, "writing");
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
    from_tree(gone);
    call(messages::DropStage{});
    EXPECT_EQ(reply<messages::UpdateReply>().state, messages::UpdateState::kAwaitingWeights);
}

TEST_F(AdminTest, StatusNamesACallByItsOwnTypeWhateverElseWasAskedMeanwhile) {
    start();
    messages::UpdateWeights update;
    update.update.source.path = "/checkpoints/8";
    call(update, 1);
    call(messages::DropStage{}, 2);  // refused: nothing is staged
    EXPECT_FALSE(reply<messages::UpdateReply>().ok);
    update_part(order<messages::UpdateStage>(0).update, messages::UpdateOrder::kStage, "step-8");
    update_part(order<messages::UpdateReady>(0).update, messages::UpdateOrder::kReady);
    update_part(order<messages::UpdateCommit>(0).update, messages::UpdateOrder::kCommit);
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    const messages::StatusReply now = status();
    ASSERT_EQ(now.updates.size(), 2u);
    EXPECT_EQ(now.updates[1].what, "update_weights");
    EXPECT_EQ(now.updates_total, 1);
    EXPECT_EQ(now.updates_failed_total, 0);
}

TEST_F(AdminTest, StatusListsTheLatestUpdates) {
    start();
    for (int i = 0; i < 20; ++i) {
        call(messages::RollbackWeights{});
        EXPECT_FALSE(reply<messages::UpdateReply>().ok);
    }
    call(messages::DropStage{});
    EXPECT_FALSE(reply<messages::UpdateReply>().ok);
    wait(3000ms);
    const messages::StatusReply now = status();
    ASSERT_EQ(now.updates.size(), Admin::kUpdatesShown);
    EXPECT_EQ(now.updates.back().what, "drop_stage");
    EXPECT_EQ(now.updates.front().what, "rollback_weights");
    EXPECT_EQ(now.updates.front().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_GE(now.updates.back().age_s, 0);
    EXPECT_EQ(now.updates_total, 0);
    EXPECT_EQ(now.updates_failed_total, 20);
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
    EXPECT_LE(doors_->next_deadline(now_), now_ + 5s);
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

}  // namespace
}  // namespace pitstop::tokenizer
