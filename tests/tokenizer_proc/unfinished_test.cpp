// The door's report of unfinished updates, and what a restarted door does with it.
#include "tokenizer_proc/unfinished.h"

#include "tests/tokenizer_proc/collected_fixture.h"

namespace pitstop::tokenizer {
namespace {

using Calls = Unfinished::Calls;

class UnfinishedTest : public CollectedTest {
  protected:
    void restart(Unfinished before) {
        restart_ = {.why = "the tree restarted at noon, as X died", .before = std::move(before)};
        start();
    }
    void expect_told(const messages::ErrorReply& refused, std::string_view words) {
        EXPECT_EQ(refused.error.code, ErrorCode::kAborted);
        for (const std::string_view word : {words, std::string_view("the tree restarted at noon")})
            EXPECT_NE(refused.error.message.find(word), std::string::npos) << refused.error.message;
    }
    // An update that names no session, over HTTP, of an adapter or (empty) of the model.
    void send_unnamed(std::uint64_t number, std::string adapter = "", std::string config = "") {
        messages::UpdateWeights update;
        update.unnamed = true;
        update.update.adapter = std::move(adapter);
        update.update.adapter_config = std::move(config);
        update.update.source.kind = messages::SourceKind::kDistributed;
        update.update.source.group = "g";
        update.update.source.tensors = {{.name = "w", .dtype = "BF16", .shape = {2}}};
        update.update.partial = true;
        call(update, number);
    }
};

TEST(Unfinished, ItsLineSaysAllOfIt) {
    for (const Unfinished& each : std::initializer_list<Unfinished>{
             {},
             {.calls = Calls::kStandStill},
             {.calls = Calls::kCollected},
             {.session = 7, .session_what = "session 7 (of A B, label 'x  y', 3 buckets)"},
             {.session = 7, .session_adapter = "a b 3", .session_what = "session 7"},
             {.calls = Calls::kCollected, .session = ~std::uint64_t{0}, .session_what = "s"}})
        EXPECT_EQ(read_unfinished(line_of(each)), each) << line_of(each);
    EXPECT_EQ(line_of({}), "");
}

TEST(Unfinished, ALineOfAnotherKindMeansTheWorst) {
    for (const std::string_view line : {"?", " ", "gathered x", "collected"})
        EXPECT_EQ(read_unfinished(line).calls, Calls::kCollected) << line;
    EXPECT_EQ(read_unfinished("? 99999999999999999999 x").session, 0u);
}

TEST_F(UnfinishedTest, TheLauncherIsToldWhatWouldBeLost) {
    start();
    EXPECT_EQ(unfinished_, Unfinished{});
    pause();
    EXPECT_EQ(unfinished_.calls, Calls::kStandStill);
    begin_collecting(/*is_partial=*/true);
    EXPECT_EQ(unfinished_.calls, Calls::kCollected) << "before its call is answered";
    answer(messages::UpdateOrder::kFill);
    reply<messages::UpdateReply>();
    call(messages::ContinueGeneration{}, 12);
    order<messages::UpdateFinish>();
    EXPECT_EQ(unfinished_.calls, Calls::kCollected);
    answer(messages::UpdateOrder::kStage);
    order<messages::UpdateReady>();
    answer(messages::UpdateOrder::kReady);
    EXPECT_EQ(unfinished_.calls, Calls::kStandStill) << "its commit is ordered";
    order<messages::UpdateCommit>();
    answer(messages::UpdateOrder::kCommit);
    EXPECT_TRUE(go_on().ok);
    EXPECT_EQ(unfinished_, Unfinished{});
}

TEST_F(UnfinishedTest, ALossThatNobodyWasToldOfWouldBeLostToo) {
    start();
    pause(5);
    collect_one();
    expire_pause();
    order<messages::UpdateDrop>();
    answer(messages::UpdateOrder::kDrop);
    EXPECT_EQ(unfinished_.calls, Calls::kCollected);
    call(messages::ContinueGeneration{}, 14);
    expect_lost(refusal("admin", messages::Door::kAdmin), 14);
    call(messages::ContinueGeneration{}, 15);
    EXPECT_TRUE(go_on().ok);
    EXPECT_EQ(unfinished_, Unfinished{});
}

TEST_F(UnfinishedTest, P2_CollectedCallsAreALossAfterARestart) {
    restart({.calls = Calls::kCollected});
    EXPECT_EQ(unfinished_.calls, Calls::kCollected) << "the next restart must know, too";
    for (std::uint64_t number = 10; number < 13; ++number) {
        send_tensors(number);
        expect_told(refusal("admin", messages::Door::kAdmin), "were collected take no effect");
    }
    call(messages::ContinueGeneration{}, 14);
    expect_told(refusal("admin", messages::Door::kAdmin), "take no effect");
    call(messages::ContinueGeneration{}, 15);
    EXPECT_TRUE(go_on().ok);
    send_tensors(16);
    EXPECT_EQ(order<messages::UpdateStage>().spec.source.kind, messages::SourceKind::kDistributed);
}

TEST_F(UnfinishedTest, P2_AfterARestartAPauseForgetsNoLoss) {
    restart({.calls = Calls::kCollected});
    call(messages::PauseGeneration{.mode = messages::PauseMode::kInPlace}, 15);
    standing_.is_paused = true;
    from_tree(standing_);
    from_tree(messages::PausePart{.call = order<messages::PauseGeneration>().call});
    EXPECT_NE(
        reply<messages::PauseReply>().verdict.message.find("the tree restarted"), std::string::npos
    );
    collect_one(/*is_partial=*/false);
}

TEST_F(UnfinishedTest, AfterARestartAPauseOfATrainerThatWasRefusedBeginsAnew) {
    restart({.calls = Calls::kCollected});
    send_tensors(10);
    expect_told(refusal("admin", messages::Door::kAdmin), "were collected take no effect");
    pause();
    collect_one();
}

TEST_F(UnfinishedTest, P2_AStandstillThatARestartEndedKeepsPartsOutUntilSomebodyContinues) {
    restart({.calls = Calls::kStandStill});
    from_tree(standing_);  // a running replica's report does not count as a continue
    send_tensors(10);
    expect_told(refusal("admin", messages::Door::kAdmin), "no longer stands still");
    call(messages::ContinueGeneration{}, 14);
    EXPECT_TRUE(go_on().ok) << "nothing was lost";
    send_tensors(16);
    order<messages::UpdateStage>();
    EXPECT_EQ(unfinished_, Unfinished{});
}

TEST_F(UnfinishedTest, ALossByARestartEndsWithQuiet) {
    restart({.calls = Calls::kStandStill});
    wait(std::chrono::minutes(4));
    send_tensors(10);
    expect_told(refusal("admin", messages::Door::kAdmin), "no longer stands still");
    wait(std::chrono::minutes(5));
    EXPECT_EQ(unfinished_, Unfinished{});
    send_tensors(11);
    order<messages::UpdateStage>();
}

TEST_F(UnfinishedTest, P2_CallsWithoutANumberAreLostWithTheirSession) {
    restart({.session = 7, .session_what = "session 7 (of trainer A, 3 buckets)"});
    EXPECT_EQ(unfinished_.session, 7u);
    send_unnamed(10);
    const auto refused = reply<messages::UpdateReply>();
    EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
    for (const char* words : {"session 7 (of trainer A", "the tree restarted at noon", "begin one"})
        EXPECT_NE(refused.verdict.message.find(words), std::string::npos)
            << refused.verdict.message;
    send_tensors(11);
    order<messages::UpdateStage>();  // of a caller that would name its session
}

TEST_F(UnfinishedTest, P2_CallsOfAnAdapterWithoutANumberAreLostWithItsSession) {
    restart({.session = 7, .session_adapter = "policy", .session_what = "session 7"});
    EXPECT_EQ(unfinished_.session_adapter, "policy") << "the next restart must know, too";
    send_unnamed(10, "policy");
    const auto refused = reply<messages::UpdateReply>();
    EXPECT_EQ(refused.verdict.code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(refused.verdict.message.find("the tree restarted at noon"), std::string::npos);
    send_unnamed(11, "critic", "{}");
    EXPECT_EQ(order<messages::UpdateStage>().spec.adapter, "critic") << "an update of its own";
}

TEST_F(UnfinishedTest, ATreeThatComesBackFromNothingBeginsAnew) {
    restart({});
    EXPECT_EQ(unfinished_, Unfinished{});
    EXPECT_FALSE(status().lost_calls);
    send_unnamed(10);
    order<messages::UpdateStage>();
}

}  // namespace
}  // namespace pitstop::tokenizer
