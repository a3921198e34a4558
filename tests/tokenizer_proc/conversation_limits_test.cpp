// The limits of the door's conversations: on tokens, and on the turns of one conversation.
#include "tokenizer_proc/conversations.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace pitstop::tokenizer {
namespace {

class SmallConversations : public ::testing::Test {
  protected:
    static constexpr std::size_t kTurn = 100;  // tokens of each turn's prompt

    // Room for this many turns of kTurn tokens.
    void start(std::size_t num_turns, std::size_t turns_max = Conversations::kTurnsMax) {
        const std::size_t tokens_max = num_turns * (kTurn + Conversations::kTurnTokens);
        all_.emplace(nullptr, Conversations::Limits{tokens_max, turns_max});
    }
    void open(const std::string& id) { ASSERT_TRUE(all_->open("a", {.id = id}, now())); }
    // Begins a turn of this many tokens, adds it, and ends it without output.
    Result<> run(const std::string& id, const std::string& rid, bool replaces, std::size_t num) {
        OpenRequest request{.peer = "a", .rid = rid};
        const messages::Turn turn{.conversation = id, .replace = replaces};
        std::vector<TokenId> prompt(num, TokenId{5});
        ASSIGN_OR_RETURN(const auto begun, all_->begin(request, turn, prompt, now()));
        all_->add(request, turn, begun, prompt);
        all_->end_turn(request, now());
        return Ok{};
    }
    bool is_open(const std::string& id) {
        return all_->check("a", "unused", {.conversation = id}).has_value();
    }
    TimePoint now() { return now_ += std::chrono::milliseconds(1); }

    std::optional<Conversations> all_{};
    TimePoint now_{};
};

TEST_F(SmallConversations, AReplacingTurnUsesTheRoomOfTheTurnsThatItReplaces) {
    start(/*num_turns=*/2);
    open("other");
    ASSERT_TRUE(run("other", "t1", /*replaces=*/false, kTurn));
    open("c");
    ASSERT_TRUE(run("c", "t1", /*replaces=*/false, kTurn));
    EXPECT_TRUE(run("c", "t2", /*replaces=*/true, kTurn));
    EXPECT_TRUE(is_open("other"));
    EXPECT_TRUE(all_->take_ended().empty());
    // One token more, and the other conversation ends.
    EXPECT_TRUE(run("c", "t3", /*replaces=*/true, kTurn + 1));
    EXPECT_FALSE(is_open("other"));
    EXPECT_EQ(all_->num_tokens(), kTurn + 1 + Conversations::kTurnTokens);
}

TEST_F(SmallConversations, AReplacingTurnIsRefusedOnlyForTokensThatItAddsItself) {
    start(/*num_turns=*/1);
    open("c");
    ASSERT_TRUE(run("c", "t1", /*replaces=*/false, kTurn));
    EXPECT_TRUE(run("c", "t2", /*replaces=*/true, kTurn));
    const Result<> refused = run("c", "t3", /*replaces=*/true, kTurn + 1);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(run("c", "t3", /*replaces=*/false, 1).error().code, ErrorCode::kResourceExhausted);
    EXPECT_TRUE(all_->check("a", "unused", {.conversation = "c", .after = "t2"}));
}

TEST_F(SmallConversations, ATurnThatIsRefusedForItsNumberEndsNoConversation) {
    start(/*num_turns=*/2, /*turns_max=*/1);
    open("other");
    ASSERT_TRUE(run("other", "t1", /*replaces=*/false, kTurn));
    open("c");
    ASSERT_TRUE(run("c", "t1", /*replaces=*/false, kTurn));
    EXPECT_EQ(run("c", "t2", false, kTurn).error().code, ErrorCode::kResourceExhausted);
    EXPECT_TRUE(is_open("other"));
}

}  // namespace
}  // namespace pitstop::tokenizer
