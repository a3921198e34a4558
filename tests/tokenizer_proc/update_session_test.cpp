// Updates whose tensors come in many calls.
#include "tests/tokenizer_proc/update_coordinator_fixture.h"

namespace pitstop::tokenizer {
namespace {

using std::chrono::seconds;

class UpdateSessionTest : public UpdateCoordinatorTest {
  protected:
    void begin(std::string base_digest = "", std::string adapter = "") {
        messages::BeginUpdate call;
        call.call = CallId{11};
        call.timeout_ms = 60'000;
        call.idle_timeout_ms = 30'000;
        call.update.source.kind = messages::SourceKind::kBuckets;
        call.update.base_digest = std::move(base_digest);
        call.update.adapter = std::move(adapter);
        coordinator_.handle(now_, {"trainer", call.call}, call, out_);
    }
    void bucket(
        std::uint64_t session = 0, messages::TensorFormat format = messages::TensorFormat::kPickle
    ) {
        messages::UpdateBucket call;
        call.call = CallId{12};
        call.timeout_ms = 60'000;
        call.session = session;
        call.source.kind = messages::SourceKind::kTensors;
        call.source.format = format;
        coordinator_.handle(now_, {"trainer", call.call}, call, out_);
    }
    void commit(std::uint64_t session = 0) {
        messages::CommitWeights call;
        call.call = CallId{13};
        call.timeout_ms = 60'000;
        call.session = session;
        call.label = "last";
        coordinator_.handle(now_, {"trainer", call.call}, call, out_);
    }
    const messages::UpdateReply& last_reply() const { return out_.replies.back().second; }
};

TEST_F(UpdateSessionTest, P2_ManyBucketsAreOneTransaction) {
    begin();
    EXPECT_EQ(last_order<messages::UpdateStage>().spec.source.kind, messages::SourceKind::kBuckets);
    both_answer(messages::UpdateOrder::kOpen);
    ASSERT_EQ(out_.replies.size(), 1u);
    EXPECT_TRUE(last_reply().ok);
    EXPECT_EQ(last_reply().session, 1u);
    EXPECT_EQ(last_reply().state, messages::UpdateState::kOpen);
    for (std::int64_t i = 1; i <= 3; ++i) {
        bucket(1);
        EXPECT_EQ(last_order<messages::UpdateFill>().bucket, i);
        both_answer(messages::UpdateOrder::kFill);
        EXPECT_EQ(out_.replies.size(), static_cast<std::size_t>(i) + 1);
        EXPECT_TRUE(last_reply().ok);
        EXPECT_EQ(last_reply().digest, "d1") << "nothing serves yet";
    }
    commit(1);
    EXPECT_EQ(last_order<messages::UpdateFinish>().label, "last");
    both_answer(messages::UpdateOrder::kStage);
    both_answer(messages::UpdateOrder::kReady);
    both_answer(messages::UpdateOrder::kCommit);
    EXPECT_TRUE(last_reply().ok);
    EXPECT_EQ(last_reply().digest, "d2");
    EXPECT_EQ(coordinator_.state(), messages::UpdateState::kServing);
}

// The version has its update's number, and the model's version serves as before.
TEST_F(UpdateSessionTest, P2_AnAdaptersSessionMakesNoVersionOfTheModel) {
    const ServedVersion model = coordinator_.version();
    for (; next_update_ <= 3; ++next_update_) {
        begin("", "policy");
        EXPECT_EQ(raw(last_order<messages::UpdateStage>().new_epoch), next_update_);
        both_answer(messages::UpdateOrder::kOpen);
        bucket(next_update_ + 1);
        EXPECT_FALSE(last_reply().ok) << "another session's";
        EXPECT_EQ(count_orders<messages::UpdateFill>(), next_update_ - 1);
        bucket(next_update_);
        both_answer(messages::UpdateOrder::kFill);
        commit(next_update_);
        both_answer(messages::UpdateOrder::kStage);
        both_answer(messages::UpdateOrder::kReady);
        EXPECT_EQ(count_orders<messages::UpdateCommit>(), next_update_);
        EXPECT_EQ(coordinator_.decided(), model) << "on record before the commit is ordered";
        both_answer(messages::UpdateOrder::kCommit);
        EXPECT_TRUE(last_reply().ok) << last_reply().verdict.message;
        EXPECT_EQ(last_reply().adapter, "policy");
        EXPECT_EQ(raw(last_reply().epoch), next_update_);
        EXPECT_EQ(last_reply().digest, "d2");
        EXPECT_EQ(coordinator_.version(), model);
    }
}

TEST_F(UpdateSessionTest, AnAbandonedSessionIsDroppedByItsDeadline) {
    begin();
    both_answer(messages::UpdateOrder::kOpen);
    bucket();
    both_answer(messages::UpdateOrder::kFill);
    now_ += seconds(29);
    coordinator_.tick(now_, out_);
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 0u);
    now_ += seconds(1);
    EXPECT_EQ(coordinator_.next_deadline(), now_);
    coordinator_.tick(now_, out_);
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 1u);
    both_answer(messages::UpdateOrder::kDrop);
    EXPECT_EQ(coordinator_.state(), messages::UpdateState::kServing);
    commit();
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(last_reply().digest, "d1");
}

TEST_F(UpdateSessionTest, P2_ABucketThatFailsDropsTheSession) {
    begin();
    both_answer(messages::UpdateOrder::kOpen);
    bucket();
    answer(0, messages::UpdateOrder::kFill);
    answer(1, messages::UpdateOrder::kFill, /*ok=*/false, ErrorCode::kInvalidArgument);
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 1u);
    both_answer(messages::UpdateOrder::kDrop);
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(coordinator_.state(), messages::UpdateState::kServing);
    bucket();
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kFailedPrecondition);
}

TEST_F(UpdateSessionTest, ASecondSenderIsRefused) {
    begin();
    both_answer(messages::UpdateOrder::kOpen);
    begin();
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kFailedPrecondition);
    start(call());
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kFailedPrecondition);
    bucket(/*session=*/7);
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(count_orders<messages::UpdateFill>(), 0u);
    bucket();
    bucket();
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kFailedPrecondition) << "one bucket at a time";
    EXPECT_EQ(count_orders<messages::UpdateFill>(), 1u);
}

TEST_F(UpdateSessionTest, ASparseBucketNeedsTheVersionItWasMadeFor) {
    begin(/*base_digest=*/"d0");
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kFailedPrecondition);
    begin();
    both_answer(messages::UpdateOrder::kOpen);
    bucket(0, messages::TensorFormat::kSparse);
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kFailedPrecondition);
    messages::DropStage drop;
    drop.call = CallId{14};
    coordinator_.handle(now_, {"trainer", drop.call}, drop, out_);
    both_answer(messages::UpdateOrder::kDrop);
    EXPECT_TRUE(last_reply().ok);
    next_update_ = 2;
    begin(/*base_digest=*/"d1");
    both_answer(messages::UpdateOrder::kOpen);
    bucket(0, messages::TensorFormat::kSparse);
    EXPECT_EQ(count_orders<messages::UpdateFill>(), 1u);
}

}  // namespace
}  // namespace pitstop::tokenizer
