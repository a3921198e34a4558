// Labels tell apart the trainers that fill one session without naming it.
#include "tests/tokenizer_proc/unnamed_session_fixture.h"

namespace pitstop::tokenizer {
namespace {

// ---- trainers that labels tell apart ----

// Without the check, both trainers' calls would become one version, under one of the two labels.
TEST_F(UnnamedSessionTest, P2_CallsOfTwoLabelsEndTheSession) {
    open();
    bucket("step-2");
    bucket();
    ASSERT_TRUE(unnamed("step-3"));
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kAborted);
    const std::string said =
        "label 'step-3' arrived among 2 calls of session 1 for the version with label ";
    EXPECT_NE(last_reply().verdict.message.find(said + "'step-2'"), std::string::npos);
    both_answer(messages::UpdateOrder::kDrop);
    ASSERT_TRUE(unnamed("step-2")) << "its trainer learns of the loss";
    expect_refused({"session 1", "'step-3' arrived among"});
    end();
    expect_refused({"session 1", "'step-3' arrived among"});
    EXPECT_EQ(count_orders<messages::UpdateFinish>(), 0u);
}

TEST_F(UnnamedSessionTest, P2_CallsThatNameTheSessionShareItWithNoOtherLabel) {
    open();
    bucket("step-3");
    named_bucket(1, "step-2");
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kAborted);
    EXPECT_EQ(count_orders<messages::UpdateDrop>(), 1u);
}

TEST_F(UnnamedSessionTest, ACallOfAnotherLabelHarmsNoSessionThatItsTrainerNames) {
    messages::BeginUpdate call = begin_call();
    call.update.label = "step-2";
    open(call);
    ASSERT_TRUE(unnamed("step-3")) << "the begin names the version";
    expect_refused({"'step-3'", "session 1", "'step-2'"});
    named_bucket(1, "renamed");
    both_answer(messages::UpdateOrder::kFill);
    ASSERT_TRUE(unnamed("step-2"));
    expect_refused({"'step-2'", "session 1", "'renamed'"});
    named_bucket(0, "step-3");
    expect_refused({"'step-3'", "session 1", "'renamed'"});
    end(1);
    EXPECT_EQ(last_order<messages::UpdateFinish>().label, "renamed");
    finish_commit();
    EXPECT_TRUE(last_reply().ok);
    EXPECT_FALSE(unnamed()) << "nothing was lost";
}

// The session's end has published its calls, so a later call with this label is refused.
TEST_F(UnnamedSessionTest, P2_ACallThatNamesAVersionPublishedBeforeIsNoVersionOfItsOwn) {
    open();
    bucket("step-2");
    end();
    finish_commit();
    messages::UpdateWeights late = UpdateCoordinatorTest::call();
    late.update.partial = true;
    late.update.label = "step-2";
    start(late);
    EXPECT_EQ(last_reply().verdict.code, ErrorCode::kAborted);
    EXPECT_NE(last_reply().verdict.message.find("published as epoch 2"), std::string::npos);
    late.update.label = "step-3";
    start(late);
    EXPECT_EQ(last_order<messages::UpdateStage>().spec.label, "step-3");
}

}  // namespace
}  // namespace pitstop::tokenizer
