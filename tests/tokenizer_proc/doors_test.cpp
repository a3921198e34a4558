// A request's path through the doors to a replica, and its output's way back.
#include "tests/tokenizer_proc/doors_fixture.h"

#include <map>

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

// ---- a request's way ----

TEST_F(DoorsTest, ATextIsTokenizedAndSentWithASeedAndItsTextOptions) {
    start();
    messages::Generate message = prompt("a");
    message.sampling.stop = {"end"};
    message.sampling.min_new_tokens = 2;
    send("p", message);
    const messages::TokenizedRequest request = next_request();
    EXPECT_EQ(
        request.prompt.values, *tokenizer_->encode("Once upon a time", text::AddSpecial::kYes)
    );
    EXPECT_EQ(request.key, RequestKey{1});
    EXPECT_TRUE(request.sampling.seed.has_value());
    EXPECT_TRUE(request.sampling.stop.empty());
    EXPECT_EQ(request.text.stop, std::vector<std::string>{"end"});
    EXPECT_EQ(request.text.min_new_tokens, 2);
    EXPECT_EQ(request.text.prompt_tail, request.prompt.values);  // short: all of it
}

TEST_F(DoorsTest, TheTokenizersEndTokenEndsAnOutputToo) {
    eos_ids_ = {TokenId{2045}};
    end_token_ = TokenId{2047};
    start();
    send("p", prompt("a"));
    EXPECT_EQ(next_request().sampling.stop_token_ids, std::vector<TokenId>{TokenId{2047}});
    messages::Generate named = prompt("b");
    named.sampling.stop_token_ids = {TokenId{5}, TokenId{2047}};
    send("p", named);
    EXPECT_EQ(next_request().sampling.stop_token_ids, named.sampling.stop_token_ids);
    messages::Generate ignoring = prompt("c");
    ignoring.sampling.ignore_eos = true;
    send("p", ignoring);
    EXPECT_TRUE(next_request().sampling.stop_token_ids.empty());
    messages::Generate full = prompt("d");
    full.sampling.stop_token_ids.assign(messages::kStopTokensMax, TokenId{5});
    send("p", full);
    EXPECT_NE(refusal("p").error.message.find("at most 1023"), std::string::npos);
    full.sampling.ignore_eos = true;
    send("p", full);
    EXPECT_EQ(next_request().sampling.stop_token_ids.size(), messages::kStopTokensMax);

    send("p", messages::Hello{.protocol = messages::kDoorProtocolVersion});
    EXPECT_EQ(
        next_to<messages::HelloReply>("p").eos_ids,
        (std::vector<TokenId>{TokenId{2045}, TokenId{2047}})
    );
}

TEST_F(DoorsTest, AnEndTokenThatTheModelHasItselfOrCannotDrawChangesNothing) {
    for (const std::int32_t id : {2045, static_cast<std::int32_t>(kVocabSize)}) {
        eos_ids_ = {TokenId{2045}};
        end_token_ = TokenId{id};
        start();
        send("p", prompt("a"));
        EXPECT_TRUE(next_request().sampling.stop_token_ids.empty());
        send("p", messages::Hello{.protocol = messages::kDoorProtocolVersion});
        EXPECT_EQ(next_to<messages::HelloReply>("p").eos_ids, std::vector<TokenId>{TokenId{2045}});
    }
}

TEST_F(DoorsTest, KeysAscendAndOutputsFindTheirClients) {
    start();
    send("p", prompt("a"));
    send("q", prompt("a"));  // an id belongs to its client
    const RequestKey first = next_request().key;
    const RequestKey second = next_request().key;
    EXPECT_LT(first, second);
    deliver({chunk(second, "two"), chunk(first, "one", /*is_last=*/true)});
    const messages::Outputs to_p = next_to<messages::Outputs>("p");
    ASSERT_EQ(to_p.chunks.size(), 1u);
    EXPECT_EQ(to_p.chunks[0].rid, "a");
    EXPECT_EQ(to_p.chunks[0].key, RequestKey{});
    EXPECT_EQ(to_p.chunks[0].text, "one");
    EXPECT_EQ(next_to<messages::Outputs>("q").chunks[0].text, "two");
    EXPECT_EQ(status().open_requests, 1);
}

TEST_F(DoorsTest, AStepIsOneMessagePerClient) {
    start();
    for (const char* rid : {"a", "b", "c"}) send("p", prompt(rid));
    std::vector<messages::OutputChunk> chunks;
    for (int i = 0; i < 3; ++i) chunks.push_back(chunk(next_request().key, "x"));
    deliver(chunks);
    EXPECT_EQ(next_to<messages::Outputs>("p").chunks.size(), 3u);
    EXPECT_FALSE(has_message("p"));
}

TEST_F(DoorsTest, WithoutAnIdOneIsAssigned) {
    start();
    send("p", prompt(""));
    deliver({chunk(next_request().key, "x")});
    EXPECT_EQ(next_to<messages::Outputs>("p").chunks[0].rid.size(), 32u);
}

TEST_F(DoorsTest, AnIdIsFreeAgainAfterItsRequest) {
    start();
    send("p", prompt("a"));
    send("p", prompt("a"));
    EXPECT_EQ(refusal("p").error.code, ErrorCode::kAlreadyExists);
    deliver({chunk(next_request().key, "x", /*is_last=*/true)});
    send("p", prompt("a"));
    next_request();
}

TEST_F(DoorsTest, AStopTextEndsTheRequestAtItsReplica) {
    start();
    send("p", prompt("a"));
    const RequestKey key = next_request().key;
    deliver({chunk(key, "x", /*is_last=*/true)}, {key});
    const messages::EndRequests end = next_end();
    EXPECT_EQ(end.keys, std::vector<RequestKey>{key});
    EXPECT_EQ(end.cause, messages::EndCause::kStopText);
}

TEST_F(DoorsTest, CancelIsByExactIdAndOnlyForTheClientsOwn) {
    start();
    send("p", prompt("a"));
    send("p", prompt("aa"));
    const RequestKey key = next_request().key;
    messages::Cancel cancel;
    cancel.rids = {"a", "a", "nobody"};
    send("q", cancel);
    EXPECT_TRUE((to_replica_[{0, ReplicaSocket::kControl}].empty()));
    send("p", cancel);
    const messages::EndRequests end = next_end();
    EXPECT_EQ(end.keys, std::vector<RequestKey>{key});
    EXPECT_EQ(end.cause, messages::EndCause::kAbort);
    EXPECT_EQ(status().open_requests, 2);  // until its last chunk has arrived
}

TEST_F(DoorsTest, ALongTextIsTokenizedElsewhereAndHoldsUpNobody) {
    start();
    std::string text;
    while (text.size() <= TextWorker::kInlineBytesMax) text += "once upon a time ";
    messages::Generate long_one = prompt("long", text);
    long_one.sampling.max_new_tokens = 1;
    send("p", long_one);
    ASSERT_EQ(jobs_.size(), 1u);
    send("p", prompt("short"));
    EXPECT_EQ(next_request().key, RequestKey{1});
    TextDone done;
    done.id = jobs_[0].id;
    done.ids = {TokenId{5}, TokenId{6}};
    finish_job(done);
    const messages::TokenizedRequest request = next_request();
    EXPECT_EQ(request.key, RequestKey{2});
    EXPECT_EQ(request.prompt.values, done.ids);
}

TEST_F(DoorsTest, ACancelledRequestWhoseTextIsBeingTokenizedEndsAtOnce) {
    start();
    send("p", prompt("long", std::string(TextWorker::kInlineBytesMax + 1, 'a')));
    messages::Cancel cancel;
    cancel.rids = {"long"};
    send("p", cancel);
    turn();
    EXPECT_EQ(
        next_to<messages::Outputs>("p").chunks[0].finish->reason, messages::FinishReason::kAbort
    );
    TextDone done;
    done.id = jobs_.at(0).id;
    done.ids = {TokenId{5}};
    finish_job(done);
    EXPECT_TRUE((to_replica_[{0, ReplicaSocket::kRequests}].empty()));
}

TEST_F(DoorsTest, ALongTextOverTheContextIsRefusedWhenItIsTokenized) {
    start();
    send("p", prompt("long", std::string(TextWorker::kInlineBytesMax + 1, 'a')));
    TextDone done;
    done.id = jobs_.at(0).id;
    done.ids.assign(kContextLen + 1, TokenId{5});
    finish_job(done);
    const messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.rid, "long");
    EXPECT_EQ(error.error.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(status().open_requests, 0);
}

TEST_F(DoorsTest, MoreLongTextThanMayWaitIsRefused) {
    start();
    job_queue_is_full_ = true;
    send("p", prompt("long", std::string(TextWorker::kInlineBytesMax + 1, 'a')));
    EXPECT_EQ(refusal("p").error.code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(status().open_requests, 0);
}

TEST_F(DoorsTest, AFullReplicaIsAnErrorNotALoss) {
    start();
    replica_is_full_ = true;
    send("p", prompt("a"));
    EXPECT_EQ(refusal("p").error.code, ErrorCode::kResourceExhausted);
    replica_is_full_ = false;
    EXPECT_EQ(status().open_requests, 0);
}

TEST_F(DoorsTest, AnEndThatFindsAFullReplicaIsSentLater) {
    start();
    send("p", prompt("a"));
    const RequestKey key = next_request().key;
    replica_is_full_ = true;
    messages::Cancel cancel;
    cancel.rids = {"a"};
    send("p", cancel);
    replica_is_full_ = false;
    wait(5ms);
    EXPECT_EQ(next_end().keys, std::vector<RequestKey>{key});
}

TEST_F(DoorsTest, PromptLogprobsThatNoReplyHoldsAreRefused) {
    context_len_ = 1 << 20;
    start();
    messages::Generate message = prompt("a");
    message.text.reset();
    message.input_ids = std::vector<TokenId>(200'000, TokenId{1});
    message.logprobs.enabled = true;
    message.logprobs.prompt_start = 0;
    message.logprobs.top = 20;  // 200,000 * 41 * 5 bytes: over 32 MiB
    send("p", message);
    const messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.error.code, ErrorCode::kTooLarge);
    EXPECT_EQ(error.rid, "a");
    message.logprobs.top = 10;
    send("p", message);
    next_request();
}

// A fence is answered at once, in order with its client's other messages.
TEST_F(DoorsTest, AFenceIsAnsweredWhenWhatCameBeforeItHasBeenRead) {
    start();
    send("p", prompt("a"));
    send("p", messages::Fence{CallId{7}});
    EXPECT_EQ(next_to<messages::FenceReply>("p").call, CallId{7});
    messages::Abort abort;
    abort.call = CallId{8};
    abort.rids = {"a"};
    send("c", abort, messages::Door::kAdmin);
    EXPECT_EQ(next_end().cause, messages::EndCause::kAbort) << "the request is known";
    send("p", messages::Fence{});
    EXPECT_EQ(refusal("p").error.code, ErrorCode::kInvalidArgument) << "a call without a number";
}

// ---- greetings ----

TEST_F(DoorsTest, AGreetingIsAnsweredWithWhatIsServed) {
    start(2);
    messages::Hello hello;
    hello.protocol = messages::kDoorProtocolVersion;
    send("p", hello);
    const messages::HelloReply reply = next_to<messages::HelloReply>("p");
    EXPECT_EQ(reply.model, "stories");
    EXPECT_EQ(reply.context_len, kContextLen);
    EXPECT_EQ(reply.replicas, 2);
    hello.protocol = 99;
    send("p", hello);
    EXPECT_NE(refusal("p").error.message.find("99"), std::string::npos);
}

// ---- which tree ----

TEST_F(DoorsTest, AMessageForAnotherTreeIsRefusedAndDoesNothing) {
    start();
    messages::Hello hello;
    hello.protocol = messages::kDoorProtocolVersion;
    send("p", hello);
    EXPECT_EQ(next_to<messages::HelloReply>("p").protocol, messages::kDoorProtocolVersion);
    EXPECT_EQ(tree_of_last_, identity_.id());
    send_for("another", "p", prompt("a"));
    messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.error.code, ErrorCode::kUnavailable);
    EXPECT_EQ(error.rid, "a");
    EXPECT_EQ(tree_of_last_, identity_.id()) << "who is here";
    EXPECT_NE(error.error.message.find("'another'"), std::string::npos) << error.error.message;
    messages::PauseGeneration pause;
    pause.call = CallId{9};
    send_for("another", "p", pause, messages::Door::kAdmin);
    error = refusal("p", messages::Door::kAdmin);
    EXPECT_EQ(error.error.code, ErrorCode::kUnavailable);
    EXPECT_EQ(error.call, CallId{9});
    EXPECT_EQ(tree_of_last_, identity_.id());
    EXPECT_TRUE((to_replica_[{0, ReplicaSocket::kRequests}].empty()));
    EXPECT_TRUE((to_replica_[{0, ReplicaSocket::kControl}].empty()));
    EXPECT_EQ(status().open_requests, 0);
}

TEST_F(DoorsTest, AMessageThatNamesNoTreeIsRefused) {
    start();
    from_client("p", encode(prompt("a")));
    messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.error.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.rid, "a");
    EXPECT_EQ(tree_of_last_, "") << "nothing says that it was for another one";
    EXPECT_NE(error.error.message.find("hello_reply"), std::string::npos) << error.error.message;
    messages::Status call;
    call.call = CallId{9};
    from_client("p", encode(call), messages::Door::kAdmin);
    error = refusal("p", messages::Door::kAdmin);
    EXPECT_EQ(error.error.code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.call, CallId{9});
}

TEST_F(DoorsTest, BeforeAllReplicasAreThereNoCallIsTaken) {
    make(2);
    say_hello(0);
    messages::PauseGeneration pause;
    pause.call = CallId{9};
    send("p", pause, messages::Door::kAdmin);
    EXPECT_EQ(refusal("p", messages::Door::kAdmin).error.code, ErrorCode::kUnavailable);
    EXPECT_TRUE((to_replica_[{0, ReplicaSocket::kControl}].empty()));
}

TEST_F(DoorsTest, AHelloWithoutSizesIsRefused) {
    make(1);
    messages::SchedulerHello hello;
    hello.replica = ReplicaId{0};
    hello.context_len = hello.page_size = 1;
    hello.routes = {.layers = 0, .per_token = 2, .num_experts = 4};
    from_tree(hello);
    hello.vocab_size = 5;
    from_tree(hello);
    EXPECT_FALSE(doors_->is_ready()) << "a row of routes without layers has no bytes";
    hello.routes->layers = 1;
    from_tree(hello);
    EXPECT_TRUE(doors_->is_ready());
}

TEST_F(DoorsTest, BeforeAllReplicasAreThereRequestsAreUnavailableAndSaySoWhy) {
    make(2);
    say_hello(0);
    EXPECT_FALSE(doors_->is_ready());
    send("p", prompt("a"));
    const messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.error.code, ErrorCode::kUnavailable);
    EXPECT_NE(error.error.message.find("scheduler_proc[1]"), std::string::npos);
    say_hello(1);
    EXPECT_TRUE(doors_->is_ready());
    send("p", prompt("a"));
    next_request();
    EXPECT_EQ(status().refused_total, 1);
}

// A client that starts together with the tree greets until the tree is ready: that is no error.
TEST_F(DoorsTest, AHelloBeforeTheTreeIsReadyIsAnsweredAndNotCountedAsRefused) {
    make(2);
    messages::Hello hello;
    hello.protocol = messages::kDoorProtocolVersion;
    send("p", hello);
    const messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.error.code, ErrorCode::kUnavailable);
    EXPECT_NE(error.error.message.find("scheduler_proc[1]"), std::string::npos);
    say_hello(0);
    say_hello(1);
    send("p", hello);
    EXPECT_EQ(next_to<messages::HelloReply>("p").replicas, 2);
    EXPECT_EQ(status().refused_total, 0);
}

TEST_F(DoorsTest, ARequestSaysWhoseItIs) {
    start();
    messages::Generate message = prompt("a");
    message.client = {"team", "someone"};
    send("p", message);
    EXPECT_EQ(next_request().client, (std::vector<std::string>{"70", "team", "someone"}));
    message.rid = "b";
    message.client.assign(messages::kClientLevelsMax + 1, "x");
    send("p", message);
    EXPECT_EQ(refusal("p").error.code, ErrorCode::kInvalidArgument);
}

// ---- replicas ----

TEST_F(DoorsTest, RequestsGoToTheLeastLoadedReplica) {
    start(2);
    std::map<int, int> num;
    for (int i = 0; i < 10; ++i) {
        messages::Generate message = prompt(std::to_string(i));
        message.text.reset();
        message.input_ids = std::vector<TokenId>(100, TokenId{i + 1});
        send("p", message);
    }
    EXPECT_EQ((to_replica_[{0, ReplicaSocket::kRequests}].size()), 5u);
    EXPECT_EQ((to_replica_[{1, ReplicaSocket::kRequests}].size()), 5u);
}

TEST_F(DoorsTest, ASharedBeginningStaysOnItsReplicaWithinABound) {
    start(2);
    const auto send_shared = [&](int i) {
        messages::Generate message = prompt(std::to_string(i));
        message.text.reset();
        message.input_ids = std::vector<TokenId>(400, TokenId{7});
        message.input_ids->push_back(TokenId{i + 1});
        message.sampling.max_new_tokens = 600;  // a load of about 1000
        send("p", message);
    };
    for (int i = 0; i < 8; ++i) send_shared(i);
    EXPECT_EQ((to_replica_[{0, ReplicaSocket::kRequests}].size()), 8u);
    for (int i = 8; i < 40; ++i) send_shared(i);
    const std::size_t on_first = to_replica_[{0, ReplicaSocket::kRequests}].size();
    EXPECT_LT(on_first, 40u);
    EXPECT_GT(on_first, 8u);
}

TEST_F(DoorsTest, ANamedReplicaIsTaken) {
    start(2);
    for (int i = 0; i < 5; ++i) {
        messages::Generate message = prompt(std::to_string(i));
        message.replica = 1;
        send("p", message);
    }
    EXPECT_EQ((to_replica_[{1, ReplicaSocket::kRequests}].size()), 5u);
}

// ---- the end ----

TEST_F(DoorsTest, WhenTheTreeGoesDownEverythingOpenIsAnsweredWithWhy) {
    start();
    send("p", prompt("a"));
    send("p", prompt("long", std::string(TextWorker::kInlineBytesMax + 1, 'a')));
    messages::Status call;
    call.call = CallId{3};
    send("admin", call, messages::Door::kAdmin);
    turn({.down_why = "tp_worker[0.1] died (signal 9)"});
    const messages::Outputs outputs = next_to<messages::Outputs>("p");
    ASSERT_EQ(outputs.chunks.size(), 2u);
    for (const messages::OutputChunk& chunk : outputs.chunks) {
        EXPECT_EQ(chunk.finish->verdict.code, ErrorCode::kUnavailable);
        EXPECT_EQ(chunk.finish->verdict.message, "tp_worker[0.1] died (signal 9)");
    }
    const messages::ErrorReply error = refusal("admin", messages::Door::kAdmin);
    EXPECT_EQ(error.call, CallId{3});
    EXPECT_EQ(error.error.code, ErrorCode::kUnavailable);
    send("p", prompt("late"));
    EXPECT_EQ(refusal("p").rid, "late");
}

}  // namespace
}  // namespace pitstop::tokenizer
