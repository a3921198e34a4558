// A refused call may belong to the version that is being collected. That version would lack the
// call's tensors, and a trainer that ignores answers would publish it.
#include "tests/tokenizer_proc/collected_fixture.h"

namespace pitstop::tokenizer {
namespace {

class CollectedRefusalTest : public CollectedTest {
  protected:
    // The next continue is refused because of the loss. The second continue works, and changes no
    // version.
    void expect_told_once() {
        call(messages::ContinueGeneration{}, 90);
        const messages::ErrorReply refused = refusal("admin", messages::Door::kAdmin);
        EXPECT_EQ(refused.call, CallId{90});
        EXPECT_EQ(refused.error.code, ErrorCode::kAborted) << refused.error.message;
        EXPECT_FALSE(is_anything_ordered());
        call(messages::ContinueGeneration{}, 91);
        const messages::ContinueReply went_on = go_on();
        EXPECT_TRUE(went_on.ok);
        EXPECT_FALSE(went_on.update) << "nothing was published";
    }
    // The collection takes effect with the continue.
    void expect_published() {
        call(messages::ContinueGeneration{}, 90);
        finish("step-2");
        EXPECT_TRUE(go_on().update);
    }
    void expect_dropped(const std::string& why) {
        const std::string reason = order<messages::UpdateDrop>().reason;
        EXPECT_NE(reason.find(why), std::string::npos) << reason;
        answer(messages::UpdateOrder::kDrop);
    }
    void refuse_at_front_end() {
        call(messages::RefusedPart{.why = "http_proc answered 413 to a POST"}, 20);
    }
};

TEST_F(CollectedRefusalTest, P2_ACallThatAFrontEndRefusesEndsTheCollection) {
    start();
    pause();
    collect_one();
    refuse_at_front_end();
    EXPECT_FALSE(has_message("admin", messages::Door::kAdmin)) << "its sender is answered after it";
    expect_dropped("http_proc answered 413");
    EXPECT_EQ(reply<messages::UpdateReply>().call, CallId{20});
    expect_told_once();
}

TEST_F(CollectedRefusalTest, P2_ARefusedCallMayHaveBeenTheFirstOfItsVersion) {
    start();
    pause();
    refuse_at_front_end();
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    send_tensors(10);
    update_ = order<messages::UpdateStage>().update;
    answer(messages::UpdateOrder::kOpen, 2);
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill, 2);
    ASSERT_TRUE(reply<messages::UpdateReply>().ok);
    call(messages::ContinueGeneration{}, 90);
    EXPECT_EQ(refusal("admin", messages::Door::kAdmin).error.code, ErrorCode::kAborted);
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    call(messages::ContinueGeneration{}, 91);
    EXPECT_FALSE(go_on().update);
}

TEST_F(CollectedRefusalTest, WhereGenerationRunsARefusedCallWasAnUpdateOfItsOwn) {
    start();
    refuse_at_front_end();
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
    send_tensors(10, "a");
    label_ = "a";
    update_ = order<messages::UpdateStage>().update;
    answer(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>();
    answer(messages::UpdateOrder::kReady);
    order<messages::UpdateCommit>();
    answer(messages::UpdateOrder::kCommit);
    EXPECT_TRUE(reply<messages::UpdateReply>().ok);
}

TEST_F(CollectedRefusalTest, P2_ACallThatCannotBeReadEndsTheCollection) {
    start();
    pause();
    collect_one();
    messages::UpdateWeights unreadable;
    unreadable.update.partial = true;  // from a directory without a name
    call(unreadable, 20);
    EXPECT_EQ(refusal("admin", messages::Door::kAdmin).call, CallId{20});
    expect_dropped("source.path is empty");
    expect_told_once();
}

TEST_F(CollectedRefusalTest, P2_ACallBesideAnothersStageIsMissedLater) {
    start();
    pause();
    messages::StageWeights stage;
    stage.update.source.path = "/elsewhere";
    call(stage, 15);
    update_ = order<messages::UpdateStage>().update;
    answer(messages::UpdateOrder::kStage);
    ASSERT_TRUE(reply<messages::UpdateReply>().ok);
    send_tensors(16);
    ASSERT_EQ(reply<messages::UpdateReply>().verdict.code, ErrorCode::kFailedPrecondition);
    call(messages::DropStage{}, 17);
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    ASSERT_TRUE(reply<messages::UpdateReply>().ok);
    expect_told_once();
}

// A session whose calls do not name it is lost. Then another trainer, which begins no session,
// pauses and sends its calls. The door refuses the first of these as a call of the lost session.
TEST_F(CollectedRefusalTest, P2_ACallThatIsTakenForOneOfALostSessionIsMissed) {
    start();
    messages::BeginUpdate begin;
    begin.update.source = {.kind = messages::SourceKind::kBuckets};
    begin.update.partial = true;
    begin.unnamed = true;
    begin.idle_timeout_ms = 1000;
    call(begin, 2);
    update_ = order<messages::UpdateStage>().update;
    answer(messages::UpdateOrder::kOpen);
    ASSERT_TRUE(reply<messages::UpdateReply>().ok);
    const auto send_unnamed = [&](std::uint64_t number) {
        messages::UpdateWeights part;
        part.unnamed = true;
        part.update.partial = true;
        part.update.source.kind = messages::SourceKind::kDistributed;
        part.update.source.group = "g";
        part.update.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
        call(part, number);
    };
    send_unnamed(3);
    order<messages::UpdateFill>();
    answer(messages::UpdateOrder::kFill);
    ASSERT_TRUE(reply<messages::UpdateReply>().ok);
    wait(std::chrono::milliseconds(1500));
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    pause();
    collect_one();  // a call of the bus, which the loss does not concern
    send_unnamed(11);
    EXPECT_FALSE(reply<messages::UpdateReply>().ok);
    expect_dropped("session");
    expect_told_once();
}

TEST_F(CollectedRefusalTest, P2_ACallWhoseTimeIsUpBeforeItBeginsIsMissed) {
    start();
    pause();
    collect_one();
    send_tensors(11);
    order<messages::UpdateFill>();  // not answered yet
    messages::UpdateWeights late;
    late.timeout_ms = 1000;
    late.update.source.kind = messages::SourceKind::kDistributed;
    late.update.source.group = "g";
    late.update.source.tensors = {{.name = "v", .dtype = "BF16", .shape = {2}}};
    late.update.partial = true;
    call(late, 12);
    wait(std::chrono::milliseconds(1500));
    EXPECT_EQ(refusal("admin", messages::Door::kAdmin).call, CallId{12});
    expect_dropped("waited for an update");
}

TEST_F(CollectedRefusalTest, ACallThatIsNoPartOfACollectionLeavesItAsItIs) {
    start();
    pause();
    collect_one();
    messages::UpdateWeights whole;
    whole.update.source.path = "/elsewhere";
    call(whole, 20);
    EXPECT_EQ(reply<messages::UpdateReply>().verdict.code, ErrorCode::kFailedPrecondition);
    whole.update.partial = true;
    whole.update.epoch = Epoch{1};  // of an earlier trainer
    call(whole, 21);
    EXPECT_EQ(reply<messages::UpdateReply>().verdict.code, ErrorCode::kFailedPrecondition);
    messages::UpdateBucket bucket;
    bucket.session = 9;  // it is over
    bucket.source.kind = messages::SourceKind::kDistributed;
    bucket.source.group = "g";
    bucket.source.tensors = {{.name = "v", .dtype = "BF16", .shape = {2}}};
    call(bucket, 22);
    EXPECT_EQ(reply<messages::UpdateReply>().verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_FALSE(is_anything_ordered());
    expect_published();
}

TEST_F(CollectedRefusalTest, ACallThatIsToBeSentAgainLosesNothing) {
    start();
    pause();
    collect_one();
    send_tensors(11);
    order<messages::UpdateFill>();  // not answered yet
    messages::UpdateWeights large;
    large.update.source.kind = messages::SourceKind::kTensors;
    large.update.source.format = messages::TensorFormat::kFlattened;
    large.update.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
    large.update.source.payloads.resize(1);
    large.update.source.payloads[0].data.values.resize(std::size_t{200} << 20);
    large.update.partial = true;
    call(large, 12);
    call(large, 13);
    EXPECT_EQ(refusal("admin", messages::Door::kAdmin).error.code, ErrorCode::kResourceExhausted);
    EXPECT_FALSE(is_anything_ordered());
}

TEST_F(CollectedRefusalTest, ACollectionThatIsBeingDroppedIsToldNoLonger) {
    start();
    pause();
    collect_one();
    refuse_at_front_end();
    order<messages::UpdateDrop>();  // not answered yet
    call(messages::Status{}, 30);
    from_tree(messages::ReplicaStatus{.call = order<messages::Status>().call});
    EXPECT_FALSE(reply<messages::StatusReply>().collecting);
}

// ---- the table of calls ----

template <class Message>
Message sample() {
    Message message;
    if constexpr (requires { message.update.source; }) {
        message.update.source.kind = messages::SourceKind::kDistributed;
        message.update.source.group = "g";
        message.update.source.tensors = {{.name = "v", .dtype = "BF16", .shape = {2}}};
        message.update.partial = true;
    }
    if constexpr (std::is_same_v<Message, messages::BeginUpdate>)
        message.update.source = {.kind = messages::SourceKind::kBuckets};
    if constexpr (std::is_same_v<Message, messages::UpdateBucket>) {
        message.source.kind = messages::SourceKind::kDistributed;
        message.source.group = "g";
        message.source.tensors = {{.name = "v", .dtype = "BF16", .shape = {2}}};
    }
    if constexpr (std::is_same_v<Message, messages::Abort>) message.all = true;
    if constexpr (std::is_same_v<Message, messages::SetWeightLabel>) message.label = "b";
    if constexpr (std::is_same_v<Message, messages::GetWeights>) message.name = "w";
    if constexpr (std::is_same_v<Message, messages::UnloadAdapter>) message.name = "a";
    if constexpr (std::is_same_v<Message, messages::InitGroup>) {
        message.spec = {
            .group = "h", .address = "127.0.0.1", .port = 4242, .rank_offset = 1, .world_size = 2};
    }
    if constexpr (std::is_same_v<Message, messages::DestroyGroup>) message.group = "h";
    if constexpr (std::is_same_v<Message, messages::RefusedPart>) message.why = "it was too large";
    return message;
}

class CollectedRowTest : public CollectedTest {
  protected:
    // The order to the replicas that concerns the collection, if any.
    std::string effect() {
        for (const messages::Frames& frames :
             std::exchange(to_replica_[{0, ReplicaSocket::kControl}], {})) {
            const std::string& type = frames.type;
            if (type == messages::UpdateFinish::kType || type == messages::UpdateDrop::kType ||
                type == messages::UpdateFill::kType || type == messages::UpdateStage::kType)
                return type;
        }
        return "";
    }
    template <class Message>
    std::string effect_of(bool is_paused) {
        standing_ = {};
        to_client_.clear();
        to_replica_.clear();
        start();
        if (is_paused) {
            pause();
        } else {
            release({messages::MemoryTag::kKvCache});
        }
        collect_one();
        call(sample<Message>(), 50);
        const std::string what = effect();
        for (const messages::Frames& frames : to_client_[{messages::Door::kAdmin, "admin"}]) {
            if (frames.type != messages::ErrorReply::kType) continue;
            const Error error = refusal("admin", messages::Door::kAdmin).error;
            EXPECT_NE(error.code, ErrorCode::kInvalidArgument) << Message::kType << error.message;
            break;
        }
        return what;
    }
    template <class Message>
    void check_row() {
        using messages::OnCollection;
        constexpr OnCollection kRule = messages::CallOf<Message>::kOnCollection;
        const std::string paused = effect_of<Message>(true);
        const std::string released = effect_of<Message>(false);
        SCOPED_TRACE(std::string(Message::kType));
        const std::string finish(messages::UpdateFinish::kType);
        switch (kRule) {
            case OnCollection::kNone:
            case OnCollection::kRefused:
                EXPECT_EQ(paused + released, "");
                break;
            case OnCollection::kJoins:  // a label adds no bytes
                if (std::is_same_v<Message, messages::SetWeightLabel>) break;
                EXPECT_EQ(paused, messages::UpdateFill::kType);
                break;
            case OnCollection::kPublishes:
                EXPECT_TRUE(paused == finish || released == finish);
                break;
            case OnCollection::kCommits:
                EXPECT_EQ(paused, finish);
                break;
            case OnCollection::kDrops:
                EXPECT_EQ(paused, messages::UpdateDrop::kType);
                break;
        }
    }
};

TEST_F(CollectedRowTest, P2_EachCallDoesToACollectionWhatItsRowSays) {
    messages::AdminCalls::for_each([&]<class Message>() { check_row<Message>(); });
}

}  // namespace
}  // namespace pitstop::tokenizer
