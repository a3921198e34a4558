// Calls that took no effect: which later calls are refused for them, how often, and when refusals
// end.
#include "tokenizer_proc/lost_calls.h"

#include <gtest/gtest.h>

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

class LostCallsTest : public testing::Test {
  protected:
    LostCallsTest() {
        updates_.set_version({.epoch = Epoch{4}, .label = "step-4", .digest = "d"});
        updates_.set_has_weights(ReplicaId{0}, true);
    }
    void lose(std::string label = "", std::string why = "max_pause_s ended the pause") {
        lost_.record(
            now_,
            {.calls = 3, .bytes = 1000, .why = std::move(why), .label = std::move(label)},
            std::nullopt
        );
    }
    void hold(bool is_paused) {
        standings_.record({.replica = ReplicaId{0}, .is_paused = is_paused, .has_weights = true});
    }
    std::string refusal(const std::string& peer = "trainer") {
        const Result<> checked = lost_.check_continue(now_, peer);
        return checked ? "" : checked.error().message;
    }

    TimePoint now_ = TimePoint{} + 1h;
    UpdateCoordinator updates_{1};
    ReplicaStandings standings_{1};
    LostCalls lost_{updates_, standings_};
};

TEST_F(LostCallsTest, P3_AContinueIsRefusedOnceAndTheNextEndsTheLoss) {
    EXPECT_EQ(refusal(), "") << "nothing is lost";
    hold(true);
    lose();
    EXPECT_TRUE(lost_.is_untold());
    const std::string text = refusal();
    EXPECT_NE(text.find("3 calls without a session (1000 bytes staged)"), std::string::npos)
        << text;
    EXPECT_NE(text.find("Epoch 4 serves"), std::string::npos) << text;
    EXPECT_FALSE(lost_.is_untold());
    EXPECT_EQ(refusal(), "");
    EXPECT_TRUE(lost_.is_any()) << "until generation continues, only a whole model takes effect";
    hold(false);
    EXPECT_EQ(refusal(), "");
    EXPECT_FALSE(lost_.is_any());
}

TEST_F(LostCallsTest, TheCallerThatDroppedTheCallsIsNotRefused) {
    lose("", /*why=*/"");
    EXPECT_TRUE(lost_.is_any());
    EXPECT_FALSE(lost_.is_untold());
    EXPECT_EQ(refusal(), "");
}

TEST_F(LostCallsTest, P3_APartIsRefusedUntilNoneHasComeForAWhile) {
    lose();
    EXPECT_FALSE(lost_.check_late_part(now_, ""));
    now_ += LostCalls::kQuiet - 1s;
    EXPECT_FALSE(lost_.check_late_part(now_, "")) << "each refusal begins the time anew";
    now_ += LostCalls::kQuiet;
    EXPECT_TRUE(lost_.check_late_part(now_, ""));
    lost_.expire(now_);
    EXPECT_TRUE(lost_.is_any()) << "no continue has been refused";
    EXPECT_NE(refusal(), "");
    now_ += LostCalls::kQuiet;
    lost_.expire(now_);
    EXPECT_FALSE(lost_.is_any());
}

TEST_F(LostCallsTest, P3_ALaterCallWithTheLabelRestoresTheLossOnce) {
    lose("step-5");
    lost_.end();  // another trainer has sent a complete update
    lost_.recall(now_, "step-6");
    EXPECT_FALSE(lost_.is_any());
    lost_.recall(now_, "step-5");
    ASSERT_TRUE(lost_.is_any());
    EXPECT_FALSE(lost_.check_late_part(now_, "step-5"));
    lost_.end();
    lost_.recall(now_, "step-5");
    EXPECT_FALSE(lost_.is_any()) << "its trainer has been told";
}

TEST_F(LostCallsTest, AVersionWithTheLabelForgetsIt) {
    lose("step-5");
    lost_.end();
    updates_.set_version({.epoch = Epoch{5}, .label = "step-5", .digest = "e"});
    lost_.forget_labels_of_version();
    lost_.recall(now_, "step-5");
    EXPECT_FALSE(lost_.is_any());
}

TEST_F(LostCallsTest, APauseEndsTheLossOnlyIfACallerWasRefused) {
    lose();
    EXPECT_NE(lost_.note_for_pause(), "");
    EXPECT_TRUE(lost_.is_any());
    EXPECT_NE(refusal(), "");
    EXPECT_NE(lost_.note_for_pause(), "");
    EXPECT_FALSE(lost_.is_any());
    EXPECT_EQ(lost_.note_for_pause(), "");
}

TEST_F(LostCallsTest, AMissedPartEndsWithANewSession) {
    lost_.record_missed_part(now_, {ErrorCode::kMalformed, "not msgpack"});
    EXPECT_TRUE(lost_.is_untold());
    lost_.end_missed_part();
    EXPECT_FALSE(lost_.is_any());
    lose();
    lost_.end_missed_part();
    EXPECT_TRUE(lost_.is_any());
}

TEST_F(LostCallsTest, ThePreviousTreesCollectionIsToldOnce) {
    lost_.record_of_previous_tree(now_, "the tree was restarted");
    EXPECT_TRUE(lost_.is_untold());
    EXPECT_NE(refusal().find("that were collected take no effect"), std::string::npos);
    now_ += 7s;
    ASSERT_TRUE(lost_.report(now_).has_value());
    EXPECT_EQ(lost_.report(now_)->age_s, 7);
    EXPECT_EQ(lost_.report(now_)->why, "the tree was restarted");
}

}  // namespace
}  // namespace pitstop::tokenizer
