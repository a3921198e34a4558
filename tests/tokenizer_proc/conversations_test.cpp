// Conversations at the data door: what each turn's prompt is, and how a conversation ends.
#include "tokenizer_proc/conversations.h"

#include "tests/tokenizer_proc/doors_fixture.h"

#include <cstddef>
#include <limits>
#include <string>

namespace pitstop::tokenizer {
namespace {

using Ids = std::vector<TokenId>;

Ids ids(std::initializer_list<int> values) {
    Ids made;
    for (const int value : values) made.push_back(TokenId{value});
    return made;
}

class ConversationsTest : public DoorsTest {
  protected:
    void open(
        const std::string& id, const std::string& peer = "a", std::optional<double> idle = {}
    ) {
        messages::OpenConversation call;
        call.call = CallId{3};
        call.id = id;
        call.idle_timeout_s = idle;
        send(peer, call);
    }
    void open_done(
        const std::string& id, const std::string& peer = "a", std::optional<double> idle = {}
    ) {
        open(id, peer, idle);
        EXPECT_EQ(next_to<messages::ConversationReply>(peer).id, id);
    }
    void close(const std::string& id, const std::string& peer = "a") {
        messages::CloseConversation call;
        call.call = CallId{4};
        call.id = id;
        send(peer, call);
    }
    static messages::Generate turn_of(
        const std::string& rid, Ids own, std::optional<std::string> after = {}
    ) {
        messages::Generate message;
        message.rid = rid;
        message.input_ids = std::move(own);
        message.sampling.max_new_tokens = 8;
        message.turn = messages::Turn{.conversation = "c", .after = std::move(after)};
        return message;
    }
    // Runs a turn until its end with this output. Returns its whole prompt.
    Ids run(const messages::Generate& message, Ids output, const std::string& peer = "a") {
        send(peer, message);
        const messages::TokenizedRequest request = next_request();
        finish(request.key, std::move(output));
        while (has_message(peer)) {  // probes have no chunks
            const messages::Outputs outputs = next_to<messages::Outputs>(peer);
            if (!outputs.chunks.empty()) last_ = outputs.chunks.front();
        }
        return request.prompt.values;
    }
    void finish(
        RequestKey key, Ids output, messages::FinishReason reason = messages::FinishReason::kLength
    ) {
        messages::OutputChunk last = chunk(key, "x", /*is_last=*/true);
        last.tokens = std::move(output);
        last.counts = messages::RequestCounts{};
        last.finish->reason = reason;
        if (reason == messages::FinishReason::kError)
            last.finish->verdict = Error{ErrorCode::kInternal, "broken"};
        deliver({last});
    }
    Ids prompt_of(const messages::Generate& message) { return run(message, {}); }

    messages::OutputChunk last_{};
};

TEST_F(ConversationsTest, ATurnContinuesFromPromptAndOutputOfTheTurnThatItNames) {
    start();
    open_done("c");
    EXPECT_EQ(run(turn_of("t1", ids({5, 6})), ids({7, 8})), ids({5, 6}));
    EXPECT_EQ(last_.counts->history_tokens, 0);
    EXPECT_EQ(run(turn_of("t2", ids({9}), "t1"), ids({10})), ids({5, 6, 7, 8, 9}));
    EXPECT_EQ(last_.counts->history_tokens, 4);
    EXPECT_EQ(run(turn_of("t3", ids({11}), "t2"), {}), ids({5, 6, 7, 8, 9, 10, 11}));
    // An earlier turn can be continued a second time. A turn that continues no other has only its
    // own prompt.
    EXPECT_EQ(run(turn_of("t4", ids({12}), "t1"), {}), ids({5, 6, 7, 8, 12}));
    EXPECT_EQ(run(turn_of("t5", ids({13})), {}), ids({13}));
}

TEST_F(ConversationsTest, HistoryIsCutAsAsked) {
    start();
    open_done("c");
    run(turn_of("t1", ids({5, 6})), ids({7, 8}));
    run(turn_of("t2", ids({9}), "t1"), ids({10}));
    messages::Generate message = turn_of("u1", ids({20}), "t2");
    message.turn->drop_output = true;
    EXPECT_EQ(prompt_of(message), ids({5, 6, 7, 8, 9, 20}));
    message = turn_of("u2", ids({20}), "t2");
    message.turn->offset = 3;
    EXPECT_EQ(prompt_of(message), ids({5, 6, 7, 20}));
    EXPECT_EQ(last_.counts->history_tokens, 3);
    message = turn_of("u3", ids({21}), "u2");
    EXPECT_EQ(prompt_of(message), ids({5, 6, 7, 20, 21}));
    message = turn_of("u4", ids({20}), "t2");
    message.turn->offset = -1;
    EXPECT_EQ(prompt_of(message), ids({5, 6, 7, 8, 9, 20}));
    message = turn_of("u5", ids({20}), "t2");
    message.turn->offset = 100;
    EXPECT_EQ(prompt_of(message), ids({5, 6, 7, 8, 9, 10, 20}));
    message = turn_of("u6", ids({20}), "t2");
    message.turn->drop_output = true;
    message.turn->offset = 2;
    message.turn->wants_prompt = true;
    EXPECT_EQ(prompt_of(message), ids({5, 6, 20}));
    EXPECT_EQ(last_.prompt_ids, ids({5, 6, 20}));
}

TEST_F(ConversationsTest, ATextAfterATurnHasNoTokenOfABeginningOfItsOwn) {
    start();
    open_done("c");
    messages::Generate first = prompt("t1", "Once upon a time");
    first.turn = messages::Turn{.conversation = "c"};
    const Ids begin = run(first, ids({7}));
    messages::Generate second = prompt("t2", " there was");
    second.turn = messages::Turn{.conversation = "c", .after = "t1"};
    Ids expected = begin;
    expected.push_back(TokenId{7});
    const auto text = tokenizer_->encode(" there was", text::AddSpecial::kNo);
    expected.insert(expected.end(), text->begin(), text->end());
    EXPECT_EQ(run(second, {}), expected);
}

TEST_F(ConversationsTest, ReplacingATurnDropsWhatFollowedItAndAbortsWhatRuns) {
    start();
    open_done("c");
    run(turn_of("t1", ids({5})), ids({6}));
    run(turn_of("t2", ids({7}), "t1"), ids({8}));
    send("a", turn_of("t3", ids({9}), "t2"));
    const messages::TokenizedRequest running = next_request();
    messages::Generate message = turn_of("u", ids({20}), "t1");
    message.turn->replace = true;
    send("a", message);
    EXPECT_EQ(next_end().keys, std::vector{running.key});
    EXPECT_EQ(next_request().prompt.values, ids({5, 6, 20}));
    for (const std::string gone : {"t2", "t3"}) {
        send("a", turn_of("v", ids({1}), gone));
        EXPECT_EQ(refusal("a").error.code, ErrorCode::kNotFound) << gone;
    }
    finish(running.key, ids({10}), messages::FinishReason::kAbort);  // it was replaced
    next_to<messages::Outputs>("a");
    message = turn_of("w", ids({30}));
    message.turn->replace = true;
    send("a", message);  // replaces all turns
    EXPECT_EQ(next_request().prompt.values, ids({30}));
    send("a", turn_of("v", ids({1}), "t1"));
    EXPECT_EQ(refusal("a").error.code, ErrorCode::kNotFound);
}

TEST_F(ConversationsTest, P4_ARefusedReplacementDropsAndAbortsNothing) {
    start();
    open_done("c");
    run(turn_of("t1", ids({5})), ids({6}));
    run(turn_of("t2", ids({7}), "t1"), ids({8}));
    send("a", turn_of("t3", ids({9}), "t2"));
    const messages::TokenizedRequest running = next_request();
    for (const std::optional<std::string>& after :
         {std::optional<std::string>("t1"), std::optional<std::string>()}) {
        messages::Generate message = turn_of("u", Ids(5000, TokenId{3}), after);  // too long
        message.turn->replace = true;
        send("a", message);
        EXPECT_NE(refusal("a").error.message.find("context"), std::string::npos);
    }
    EXPECT_FALSE(has_message_to_replica(0));
    finish(running.key, ids({10}));
    next_to<messages::Outputs>("a");
    EXPECT_EQ(run(turn_of("v", ids({11}), "t3"), {}), ids({5, 6, 7, 8, 9, 10, 11}));
}

TEST_F(ConversationsTest, WhereNothingIsKeptATextBeginsAsAnyOther) {
    start();
    open_done("c");
    run(turn_of("t1", ids({5, 6})), ids({7}));
    messages::Generate message = prompt("t2", "Once");
    message.turn = messages::Turn{.conversation = "c", .after = "t1", .offset = -1000};
    EXPECT_EQ(run(message, {}), *tokenizer_->encode("Once", text::AddSpecial::kYes));
}

TEST_F(ConversationsTest, ATurnsErrorLeavesWhatContinuesFromIt) {
    start();
    open_done("c");
    run(turn_of("t1", ids({5})), ids({6}));
    send("a", turn_of("t2", ids({7}), "t1"));
    const messages::TokenizedRequest failing = next_request();
    messages::Generate message = turn_of("t3", ids({9}), "t2");
    message.turn->replace = true;
    send("a", message);  // it continues from t2's prompt
    EXPECT_EQ(next_end().keys, std::vector{failing.key});
    const RequestKey child = next_request().key;
    finish(failing.key, {}, messages::FinishReason::kError);
    next_to<messages::Outputs>("a");
    finish(child, ids({10}));
    next_to<messages::Outputs>("a");
    EXPECT_EQ(run(turn_of("t4", ids({11}), "t3"), {}), ids({5, 6, 7, 9, 10, 11}));
}

TEST_F(ConversationsTest, TurnsAreBoundedInNumber) {
    start();
    open_done("c");
    const auto name = [](std::size_t i) { return "t" + std::to_string(i); };
    run(turn_of(name(0), ids({5})), {});
    for (std::size_t i = 1; i < Conversations::kTurnsMax; ++i) {
        messages::Generate message = turn_of(name(i), ids({5}), name(i - 1));
        message.turn->offset = 1;
        run(message, {});
    }
    send("a", turn_of("more", ids({5})));
    EXPECT_EQ(refusal("a").error.code, ErrorCode::kResourceExhausted);
    messages::Generate message = turn_of("anew", ids({9}));
    message.turn->replace = true;
    EXPECT_EQ(run(message, {}), ids({9}));
    send("a", turn_of("v", ids({1}), name(0)));
    EXPECT_EQ(refusal("a").error.code, ErrorCode::kNotFound);
}

TEST_F(ConversationsTest, WhatCannotBeContinuedIsRefusedByName) {
    start();
    send("a", turn_of("t", ids({5})));
    EXPECT_NE(refusal("a").error.message.find("no conversation 'c'"), std::string::npos);
    open_done("c");
    open("c");
    EXPECT_EQ(refusal("a").error.code, ErrorCode::kAlreadyExists);
    send("b", turn_of("t", ids({5})));  // the conversation is another client's
    EXPECT_EQ(refusal("b").error.code, ErrorCode::kNotFound);
    send("a", turn_of("t1", ids({5})));
    const RequestKey open_key = next_request().key;
    send("a", turn_of("t2", ids({5}), "t1"));
    EXPECT_NE(refusal("a").error.message.find("has not ended"), std::string::npos);
    finish(open_key, ids({6}));
    next_to<messages::Outputs>("a");
    send("a", turn_of("t1", ids({5}), "t1"));
    EXPECT_EQ(refusal("a").error.code, ErrorCode::kAlreadyExists);
    // The limit is on the whole prompt, not on the turn's own part.
    messages::Generate message = turn_of("t3", Ids(1018, TokenId{3}), "t1");
    message.sampling.max_new_tokens = 5;
    send("a", message);
    EXPECT_NE(refusal("a").error.message.find("1020"), std::string::npos);
}

TEST_F(ConversationsTest, ATurnThatEndsWithAnErrorLeavesNothingToContinue) {
    start();
    open_done("c");
    send("a", turn_of("t1", ids({5})));
    finish(next_request().key, ids({6}), messages::FinishReason::kError);
    next_to<messages::Outputs>("a");
    send("a", turn_of("t2", ids({5}), "t1"));
    EXPECT_EQ(refusal("a").error.code, ErrorCode::kNotFound);
    EXPECT_EQ(run(turn_of("t1", ids({9})), {}), ids({9}));  // the failed turn's name is free again
}

TEST_F(ConversationsTest, AnIdleConversationEndsAndItsReplicasAreTold) {
    start(2);
    open_done("c", "a", 30.0);
    send("a", turn_of("t1", ids({5})));
    const int replica = has_message_to_replica(0, ReplicaSocket::kRequests) ? 0 : 1;
    const messages::TokenizedRequest request = next_request(replica);
    ASSERT_TRUE(request.conversation);
    wait(std::chrono::seconds(60));
    EXPECT_FALSE(has_message_to_replica(0));  // a turn is open
    finish(request.key, ids({6}));
    wait(std::chrono::seconds(29));
    EXPECT_FALSE(has_message_to_replica(0));
    EXPECT_LE(wake_at_, now_ + std::chrono::seconds(2));
    wait(std::chrono::seconds(2));
    for (const int each : {0, 1}) {
        const auto ends =
            next_to_replica<messages::EndConversations>(each, ReplicaSocket::kControl);
        EXPECT_EQ(ends.ids, std::vector{*request.conversation});
    }
    while (has_message("a")) next_to<messages::Outputs>("a");
    send("a", turn_of("t2", ids({5}), "t1"));
    EXPECT_NE(refusal("a").error.message.find("idle for 30 s"), std::string::npos);
}

TEST_F(ConversationsTest, AnIdleTimeBelowTheClocksResolutionIsRefusedByName) {
    start();
    for (const double idle : {1e-10, 0.0, -1.0, 1e6, std::numeric_limits<double>::quiet_NaN()}) {
        open("c", "a", idle);
        const std::string problem = refusal("a").error.message;
        EXPECT_NE(problem.find("idle_timeout_s is"), std::string::npos) << problem;
        EXPECT_NE(problem.find("accepted are 0.001 to 604800 seconds"), std::string::npos);
    }
    open_done("c", "a", 0.001);
    EXPECT_EQ(run(turn_of("t1", ids({5})), {}), ids({5}));
}

TEST(Conversations, ATurnKeepsItsConversationWhoseIdleTimeIsOver) {
    Conversations all(nullptr);
    const TimePoint now{};
    ASSERT_TRUE(all.open("a", {.id = "c", .idle_timeout_s = 1e-10}, now));  // over at once
    OpenRequest request{.peer = "a", .rid = "t1"};
    const messages::Turn turn{.conversation = "c"};
    Ids prompt = ids({5});
    const auto begun = all.begin(request, turn, prompt, now);
    ASSERT_TRUE(begun);
    ASSERT_EQ(all.size(), 1U);
    all.add(request, turn, *begun, prompt);
    messages::OutputChunk last;
    last.finish = messages::Finish{};
    all.take(request, last, now);
    EXPECT_EQ(all.size(), 1U);
    EXPECT_LE(all.next_deadline(), now);
    all.expire(now);
    EXPECT_EQ(all.size(), 0U);
}

TEST_F(ConversationsTest, TurnsStayWithTheReplicaThatHasTheirPages) {
    start(3);
    open_done("c");
    messages::Generate first = turn_of("t1", ids({5}));
    first.replica = 2;
    send("a", first);
    finish(next_request(2).key, ids({6}));
    for (const std::string rid : {"t2", "t3"}) {
        send("a", turn_of(rid, ids({7}), "t1"));
        finish(next_request(2).key, {});
    }
}

TEST_F(ConversationsTest, AClosedConversationAndThoseOfALostClientAreFreed) {
    start();
    open_done("c");
    run(turn_of("t1", ids({5})), ids({6}));
    close("c");
    EXPECT_EQ(next_to<messages::ConversationReply>("a").id, "c");
    next_to_replica<messages::EndConversations>(0, ReplicaSocket::kControl);
    close("c");
    EXPECT_NE(refusal("a").error.message.find("it was closed"), std::string::npos);
    open_done("c", "b");
    gone_.insert("b");
    for (int i = 0; i < 3; ++i) wait(std::chrono::seconds(3));  // an idle client is probed
    next_to_replica<messages::EndConversations>(0, ReplicaSocket::kControl);
}

// A turn that ends after its conversation would hold pages again. So the replica hears of the
// conversation's end once more, after the turn.
TEST_F(ConversationsTest, AConversationClosedDuringATurnIsFreedAfterIt) {
    start();
    open_done("c");
    send("a", turn_of("t1", ids({5})));
    const messages::TokenizedRequest request = next_request();
    close("c");
    next_to<messages::ConversationReply>("a");
    next_to_replica<messages::EndConversations>(0, ReplicaSocket::kControl);
    finish(request.key, ids({6}));
    EXPECT_EQ(next_to<messages::Outputs>("a").chunks.at(0).tokens, ids({6}));
    const auto ends = next_to_replica<messages::EndConversations>(0, ReplicaSocket::kControl);
    EXPECT_EQ(ends.ids, std::vector{*request.conversation});
}

// A conversation of turns with whole prompts: its name only groups them.
TEST_F(ConversationsTest, ATurnMayOpenItsConversationAndKeepNoTokens) {
    start(3);
    const auto opening = [](const std::string& rid, Ids prompt) {
        messages::Generate message = turn_of(rid, std::move(prompt));
        message.turn->opens = true;
        return message;
    };
    messages::Generate first = opening("t1", ids({5, 6}));
    first.replica = 2;
    send("a", first);
    const messages::TokenizedRequest one = next_request(2);
    EXPECT_EQ(one.prompt.values, ids({5, 6}));
    // Several turns may run at once, on the replica that has their pages.
    send("a", opening("t2", ids({7})));
    const messages::TokenizedRequest two = next_request(2);
    ASSERT_TRUE(one.conversation.has_value());
    EXPECT_EQ(two.conversation, one.conversation);
    finish(one.key, ids({8}));
    finish(two.key, ids({9}), messages::FinishReason::kError);
    for (int i = 0; i < 2; ++i) {
        messages::Outputs outputs = next_to<messages::Outputs>("a");
        while (outputs.chunks.empty()) outputs = next_to<messages::Outputs>("a");
    }
    send("a", turn_of("t3", ids({10}), "t1"));
    EXPECT_NE(refusal("a").error.message.find("no turn 't1'"), std::string::npos);
    close("c");
    EXPECT_EQ(next_to<messages::ConversationReply>("a").id, "c");
    EXPECT_EQ(
        next_to_replica<messages::EndConversations>(2, ReplicaSocket::kControl).ids,
        std::vector{*one.conversation}
    );
    // Another conversation with the same name.
    send("a", opening("t1", ids({5, 6})));
    for (int replica = 0; replica < 3; ++replica) {
        if (!has_message_to_replica(replica, ReplicaSocket::kRequests)) continue;
        EXPECT_NE(next_request(replica).conversation, one.conversation);
    }
}

TEST(Conversations, ATurnThatFindsNoRoomToOpenItsConversationRunsWithout) {
    Conversations all(nullptr);
    const auto begun = [&](const std::string& name) {
        OpenRequest request{.peer = "a", .rid = "of " + name};
        const messages::Turn turn{.conversation = name, .opens = true};
        Ids prompt = ids({5});
        auto begin = all.begin(request, turn, prompt, TimePoint{});
        EXPECT_TRUE(begin.has_value());
        EXPECT_EQ(prompt, ids({5}));
        all.add(request, turn, *begin, prompt);
        EXPECT_EQ(request.turn.has_value(), begin->id.has_value());
        return begin->id.has_value();
    };
    for (std::size_t i = 0; i < Conversations::kOpenMax; ++i)
        ASSERT_TRUE(begun("n" + std::to_string(i)));
    EXPECT_FALSE(begun("more"));
    EXPECT_TRUE(begun("n5"));
    EXPECT_EQ(all.size(), Conversations::kOpenMax);
}

// Many conversations that one client names evict no other client's tokens.
TEST_F(ConversationsTest, ConversationsThatTurnsOpenEndBeforeThoseWithTokens) {
    start();
    open_done("c");
    run(turn_of("t1", ids({5})), ids({6}));
    const auto opening = [](std::size_t number) {
        messages::Generate message = turn_of("r" + std::to_string(number), ids({7}));
        message.turn = messages::Turn{.conversation = "n" + std::to_string(number), .opens = true};
        return message;
    };
    for (std::size_t i = 0; i < Conversations::kOpenMax + 3; ++i) {
        now_ += std::chrono::milliseconds(1);
        run(opening(i), ids({8}), "b");
    }
    EXPECT_EQ(run(turn_of("t2", ids({7}), "t1"), {}), ids({5, 6, 7}));
    for (int i = 0; i < 3; ++i) open_done("d" + std::to_string(i));  // they have room, too
    EXPECT_EQ(run(turn_of("t3", ids({9}), "t2"), {}), ids({5, 6, 7, 9}));
}

// An empty conversation would take a place for an hour.
TEST_F(ConversationsTest, ARefusedTurnOpensNoConversation) {
    start();
    messages::Generate message = turn_of("t1", Ids(10'000, TokenId{5}));
    message.turn->opens = true;
    send("a", message);
    EXPECT_EQ(refusal("a").error.code, ErrorCode::kInvalidArgument);
    send("a", turn_of("t2", ids({5})));
    EXPECT_NE(refusal("a").error.message.find("no conversation 'c'"), std::string::npos);
}

TEST_F(ConversationsTest, TheLeastRecentlyUsedEndsWhenThereAreTooMany) {
    start();
    open_done("c");
    for (std::size_t i = 1; i < Conversations::kOpenMax; ++i) {
        now_ += std::chrono::milliseconds(1);
        open_done("n" + std::to_string(i));
    }
    now_ += std::chrono::milliseconds(1);
    run(turn_of("t1", ids({5})), ids({6}));  // it is used now
    open_done("one more");
    EXPECT_EQ(run(turn_of("t2", ids({7}), "t1"), {}), ids({5, 6, 7}));
    close("n1");
    EXPECT_NE(refusal("a").error.message.find("least recently used"), std::string::npos);
}

}  // namespace
}  // namespace pitstop::tokenizer
