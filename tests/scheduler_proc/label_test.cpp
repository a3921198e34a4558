// A new label for the version that serves: spans are split, nothing else changes.
#include "tests/scheduler_proc/rig.h"

#include <gtest/gtest.h>

namespace pitstop::scheduler {
namespace {

class LabelTest : public testing::Test {
  protected:
    messages::LabelPart relabel(const std::string& label, bool abort_all = false) {
        rig.control(messages::SetWeightLabel{
            .call = CallId{4}, .label = label, .abort_all = abort_all});
        rig.turn();
        auto parts = rig.take<messages::LabelPart>();
        EXPECT_EQ(parts.size(), 1u);
        return parts.empty() ? messages::LabelPart{} : parts[0];
    }
    static std::vector<std::string> labels_of(const Received& got) {
        std::vector<std::string> labels;
        for (const messages::Span& span : got.spans) {
            if (labels.empty() || labels.back() != span.label) labels.push_back(span.label);
        }
        return labels;
    }
    Rig rig{};
    const Ask ask{.prompt = prompt_of(9), .max_new_tokens = 20};
};

TEST_F(LabelTest, P3_SplitsTheSpansOfRunningRequestsAndChangesNoToken) {
    const RequestKey key = rig.send(ask);
    rig.turn();
    for (int i = 0; i < 6; ++i) rig.step();
    const messages::LabelPart part = relabel("step-7");
    EXPECT_EQ(part.verdict.code, std::nullopt);
    EXPECT_EQ(part.epoch, Epoch{1});
    EXPECT_EQ(part.old_label, "");
    EXPECT_EQ(part.label, "step-7");
    rig.run();
    const Received& got = rig.of(key);
    EXPECT_EQ(got.tokens, rig.expected(ask).tokens);
    EXPECT_EQ(labels_of(got), (std::vector<std::string>{"", "step-7"}));
    std::int64_t num_tokens = 0;
    for (const messages::Span& span : got.spans) {
        EXPECT_EQ(span.epoch, Epoch{1}) << "the weights are the same";
        num_tokens += span.tokens;
    }
    EXPECT_EQ(num_tokens, 20);
    EXPECT_EQ(rig.status().spanning_requests_total, 1);
    EXPECT_EQ(rig.status().label, "step-7");
}

TEST_F(LabelTest, LaterRequestsCarryOnlyTheNewLabel) {
    relabel("step-7");
    const RequestKey key = rig.send(ask);
    rig.run();
    EXPECT_EQ(labels_of(rig.of(key)), (std::vector<std::string>{"step-7"}));
    EXPECT_EQ(rig.status().spanning_requests_total, 0);
}

TEST_F(LabelTest, TheSameLabelAgainSplitsNothing) {
    relabel("step-7");
    const RequestKey key = rig.send(ask);
    rig.turn();
    for (int i = 0; i < 6; ++i) rig.step();
    EXPECT_EQ(relabel("step-7").old_label, "step-7");
    rig.run();
    EXPECT_EQ(labels_of(rig.of(key)).size(), 1u);
}

TEST_F(LabelTest, P4_EndsRequestsOnlyIfAskedTo) {
    const RequestKey key = rig.send(ask);
    rig.turn();
    for (int i = 0; i < 6; ++i) rig.step();
    EXPECT_EQ(relabel("a").num_aborted, 0);
    EXPECT_FALSE(rig.of(key).finish);
    EXPECT_EQ(relabel("b", /*abort_all=*/true).num_aborted, 1);
    ASSERT_TRUE(rig.of(key).finish);
    EXPECT_EQ(rig.of(key).finish->reason, messages::FinishReason::kAbort);
}

TEST_F(LabelTest, IsRefusedDuringAnUpdateWhoseOwnLabelComes) {
    rig.control(messages::UpdateReady{.update = messages::UpdateId{1}});
    rig.turn();
    const messages::LabelPart part = relabel("late");
    EXPECT_EQ(part.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(part.verdict.message.find("update 1"), std::string::npos);
    EXPECT_EQ(rig.status().label, "");
}

TEST(Label, IsRefusedWhereNothingServes) {
    Rig rig{FakeModel{.has_weights = false}};
    rig.control(messages::SetWeightLabel{.call = CallId{4}, .label = "x"});
    rig.turn();
    EXPECT_EQ(rig.take<messages::LabelPart>().at(0).verdict.code, ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace pitstop::scheduler
