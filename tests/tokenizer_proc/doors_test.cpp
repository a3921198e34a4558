#include "tests/tokenizer_proc/doors_fixture.h"

#include <msgpack.hpp>

#include <cmath>
#include <limits>
#include <random>

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
    send("q", prompt("a"));  // an id is a client's own
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
    EXPECT_EQ(status().open_requests, 2);  // until its last chunk is here
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
    doors_->job_done(now_, done);
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
    doors_->tick(now_);
    EXPECT_EQ(
        next_to<messages::Outputs>("p").chunks[0].finish->reason, messages::FinishReason::kAbort
    );
    TextDone done;
    done.id = jobs_.at(0).id;
    done.ids = {TokenId{5}};
    doors_->job_done(now_, done);
    EXPECT_TRUE((to_replica_[{0, ReplicaSocket::kRequests}].empty()));
}

TEST_F(DoorsTest, ALongTextOverTheContextIsRefusedWhenItIsTokenized) {
    start();
    send("p", prompt("long", std::string(TextWorker::kInlineBytesMax + 1, 'a')));
    TextDone done;
    done.id = jobs_.at(0).id;
    done.ids.assign(kContextLen + 1, TokenId{5});
    doors_->job_done(now_, done);
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

// ---- bad input: each is answered, nothing else changes ----

class BadInput : public DoorsTest {
  protected:
    void SetUp() override {
        start();
        send("witness", prompt("w"));
        witness_ = next_request().key;
    }
    void TearDown() override {
        deliver({chunk(witness_, "fine", /*is_last=*/true)});
        EXPECT_EQ(next_to<messages::Outputs>("witness").chunks[0].text, "fine");
        send("p", prompt("still works"));
        next_request();
    }
    void expect_refused(const messages::Generate& message, const std::string& expected) {
        send("p", message);
        const messages::ErrorReply error = refusal("p");
        EXPECT_EQ(error.rid, "bad");
        EXPECT_EQ(error.error.code, ErrorCode::kInvalidArgument);
        EXPECT_NE(error.error.message.find(expected), std::string::npos) << error.error.message;
    }
    template <class Fill>
    static messages::Frames packed(std::uint32_t num_fields, Fill fill) {
        msgpack::sbuffer buffer;
        msgpack::packer<msgpack::sbuffer> packer(buffer);
        packer.pack_map(num_fields + 1);
        packer.pack(std::string("rid"));
        packer.pack(std::string("bad"));
        fill(packer);
        return {"generate", std::string(buffer.data(), buffer.size()), {}};
    }
    RequestKey witness_{};
};

TEST_F(BadInput, ParametersThatAreNegativeOrNoNumbers) {
    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    for (const double temperature : {-1.0, kNaN, HUGE_VAL}) {
        messages::Generate message = prompt("bad");
        message.sampling.temperature = temperature;
        expect_refused(message, "temperature");
    }
    messages::Generate message = prompt("bad");
    message.sampling.top_p = kNaN;
    expect_refused(message, "top_p");
    message = prompt("bad");
    message.sampling.max_new_tokens = -1;
    expect_refused(message, "max_new_tokens");
    message = prompt("bad");
    message.sampling.logit_bias[3] = kNaN;
    expect_refused(message, "logit_bias");
}

TEST_F(BadInput, TokenIdsOutOfRange) {
    for (const std::int32_t id : {-1, static_cast<std::int32_t>(kVocabSize)}) {
        messages::Generate message = prompt("bad");
        message.text.reset();
        message.input_ids = {TokenId{1}, TokenId{id}};
        expect_refused(message, std::to_string(id));
        message = prompt("bad");
        message.sampling.stop_token_ids = {TokenId{id}};
        expect_refused(message, std::to_string(id));
        message = prompt("bad");
        message.sampling.logit_bias[id] = 1.0;
        expect_refused(message, std::to_string(id));
        message = prompt("bad");
        message.logprobs.enabled = true;
        message.logprobs.ids = {TokenId{id}};
        expect_refused(message, std::to_string(id));
    }
}

TEST_F(BadInput, PromptsThatAreEmptyMissingOrTwo) {
    expect_refused(prompt("bad", ""), "empty");
    messages::Generate message = prompt("bad");
    message.input_ids = {TokenId{1}};
    expect_refused(message, "both");
    message.text.reset();
    message.input_ids->clear();
    // An empty array is left out on the wire, so it reads like no prompt at all.
    expect_refused(message, "");
}

TEST_F(BadInput, PromptsThatDoNotFitTheContext) {
    messages::Generate message = prompt("bad");
    message.text.reset();
    message.input_ids = std::vector<TokenId>(kContextLen - 7, TokenId{1});
    expect_refused(message, "1024");  // with its 8 output tokens
    message.sampling.max_new_tokens = 7;
    send("p", message);
    next_request();
}

TEST_F(BadInput, AReplicaThatIsNotThere) {
    messages::Generate message = prompt("bad");
    message.replica = 1;
    expect_refused(message, "replica");
}

TEST_F(BadInput, UnknownFields) {
    from_client("p", packed(2, [](auto& packer) {
                    packer.pack(std::string("text"));
                    packer.pack(std::string("x"));
                    packer.pack(std::string("wing"));
                    packer.pack(1);
                }));
    const messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.rid, "bad");
    EXPECT_NE(error.error.message.find("wing"), std::string::npos);
}

TEST_F(BadInput, WrongTypes) {
    from_client("p", packed(1, [](auto& packer) {
                    packer.pack(std::string("text"));
                    packer.pack(5);
                }));
    EXPECT_EQ(refusal("p").error.message, "generate: text: expected a string, got an integer");
}

TEST_F(BadInput, TextThatIsNotUtf8) {
    from_client("p", packed(1, [](auto& packer) {
                    packer.pack(std::string("text"));
                    packer.pack(std::string("ok\xff"));
                }));
    const messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.rid, "bad");
    EXPECT_NE(error.error.message.find("UTF-8"), std::string::npos);
}

TEST_F(BadInput, BodiesCutAtEveryByte) {
    const messages::Frames whole = encode(prompt("bad"));
    for (std::size_t size = 0; size < whole.body.size(); ++size) {
        from_client("p", {whole.type, whole.body.substr(0, size), {}});
        EXPECT_EQ(refusal("p").error.code, ErrorCode::kMalformed) << size;
    }
}

TEST_F(BadInput, RandomBytesOfEveryTypeAtBothDoors) {
    std::mt19937 random(1);
    const std::vector<std::string> types{
        "generate",
        "cancel",
        "tokenize",
        "hello",
        "status",
        "pause_generation",
        "abort",
        "update_weights",
        "outputs",
        "text_batch",
        "step_plan",
        "",
        "\xff\xfe"};
    for (int i = 0; i < 20'000; ++i) {
        messages::Frames frames;
        frames.type = types[random() % types.size()];
        frames.body.resize(random() % 40);
        for (char& c : frames.body) c = static_cast<char>(random());
        const messages::Door door =
            random() % 2 == 0 ? messages::Door::kData : messages::Door::kAdmin;
        from_client("p", frames, door);
    }
    EXPECT_GT(to_client_[(std::pair{messages::Door::kData, std::string("p")})].size(), 9000u);
    to_client_.erase({messages::Door::kData, "p"});
}

TEST_F(BadInput, RandomBytesFromTheTree) {
    std::mt19937 random(2);
    const std::vector<std::string> types{
        "text_batch",
        "scheduler_hello",
        "replica_status",
        "pause_part",
        "update_part",
        "worker_tensor",
        "worker_digests",
        "generate",
        ""};
    for (int i = 0; i < 20'000; ++i) {
        messages::Frames frames;
        frames.type = types[random() % types.size()];
        frames.body.resize(random() % 40);
        for (char& c : frames.body) c = static_cast<char>(random());
        doors_->from_tree(now_, bus::Received{.frames = frames});
    }
}

TEST_F(BadInput, WhatTheSocketRefused) {
    doors_->from_client(
        now_,
        messages::Door::kData,
        bus::Received{
            .peer = "p", .refused = Error{ErrorCode::kTooLarge, "more than 16777216 bytes"}}
    );
    EXPECT_EQ(refusal("p").error.code, ErrorCode::kTooLarge);
}

TEST_F(BadInput, UnknownTypesAndTheOtherDoorsTypes) {
    from_client("p", {"genrate", "\x80", {}});
    const messages::ErrorReply unknown = refusal("p");
    EXPECT_EQ(unknown.error.code, ErrorCode::kUnknownMessage);
    EXPECT_NE(unknown.error.message.find("generate"), std::string::npos);
    messages::Status call;
    call.call = CallId{9};
    send("p", call);
    const messages::ErrorReply wrong_door = refusal("p");
    EXPECT_EQ(wrong_door.error.code, ErrorCode::kPermissionDenied);
    EXPECT_EQ(wrong_door.call, CallId{9});
    send("p", prompt("bad"), messages::Door::kAdmin);
    EXPECT_EQ(refusal("p", messages::Door::kAdmin).error.code, ErrorCode::kPermissionDenied);
}

TEST_F(BadInput, ASchedulersSecondHelloChangesNothing) {
    messages::SchedulerHello hello;
    hello.replica = ReplicaId{0};
    hello.vocab_size = 5;
    hello.context_len = hello.page_size = 1;
    from_tree(hello);
    messages::Hello greeting;
    greeting.protocol = messages::kDoorProtocolVersion;
    send("p", greeting);
    EXPECT_EQ(next_to<messages::HelloReply>("p").vocab_size, kVocabSize);
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

// A client that starts with the tree asks until all is up: nothing is wrong with that.
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

TEST_F(DoorsTest, TokenizeEncodesAndDecodes) {
    start();
    messages::Tokenize call;
    call.call = CallId{4};
    call.text = "Once upon a time";
    call.add_special_tokens = false;
    send("p", call);
    finish_jobs();
    const messages::TokenizeReply encoded = next_to<messages::TokenizeReply>("p");
    EXPECT_EQ(encoded.call, CallId{4});
    EXPECT_EQ(encoded.ids, *tokenizer_->encode("Once upon a time", text::AddSpecial::kNo));
    call.text.reset();
    call.ids = encoded.ids;
    send("p", call);
    finish_jobs();
    EXPECT_EQ(next_to<messages::TokenizeReply>("p").text, "Once upon a time");
}

// What a template costs is not known before: also the model's own, of the shortest chat.
TEST_F(DoorsTest, TheLoopRendersNoChat) {
    chat_template_ = ChatTemplate::load("/nowhere");
    start();
    messages::RenderChat call;
    call.call = CallId{4};
    call.variables = R"({"messages": [{"role": "user", "content": "hi"}]})";
    call.client = {"someone"};
    send("p", call);
    ASSERT_EQ(jobs_.size(), 1u);
    EXPECT_FALSE(has_message("p"));
    EXPECT_EQ(jobs_[0].client, (std::vector<std::string>{"70", "someone"}));  // 'p' and the name
    finish_jobs();
    EXPECT_EQ(refusal("p").error.code, ErrorCode::kUnsupported);  // there is no template
}

TEST_F(DoorsTest, ACancelledCallIsAnsweredAndItsTextIsStopped) {
    start();
    messages::Tokenize call;
    call.text = "Once upon a time";
    for (const std::uint64_t id : {7u, 8u}) {
        call.call = CallId{id};
        send("p", call);
    }
    messages::Cancel cancel;
    cancel.calls = {CallId{7}, CallId{7}, CallId{99}};
    send("q", cancel);  // another client's
    EXPECT_TRUE(cancelled_jobs_.empty());
    send("p", cancel);
    EXPECT_EQ(cancelled_jobs_, std::vector<JobId>{jobs_.at(0).id});
    const messages::ErrorReply error = refusal("p");
    EXPECT_EQ(error.call, CallId{7});
    EXPECT_EQ(error.error.code, ErrorCode::kAborted);
    finish_jobs();
    EXPECT_EQ(next_to<messages::TokenizeReply>("p").call, CallId{8});
    EXPECT_FALSE(has_message("p"));
}

TEST_F(DoorsTest, WhoGoesAwayHasItsTextsStopped) {
    start();
    send("p", prompt("long", std::string(TextWorker::kInlineBytesMax + 1, 'a')));
    messages::Tokenize call;
    call.call = CallId{7};
    call.text = "Once upon a time";
    send("p", call);
    send("only-calls", call);
    gone_ = {"p", "only-calls"};
    for (int i = 0; i < 4; ++i) wait(std::chrono::seconds(2));
    std::ranges::sort(cancelled_jobs_);
    std::vector<JobId> all;
    for (const TextJob& job : jobs_) all.push_back(job.id);
    EXPECT_EQ(cancelled_jobs_, all);
    EXPECT_EQ(all.size(), 3u);
    gone_.clear();
    finish_jobs();  // harmless, though it comes late
    EXPECT_FALSE(has_message("only-calls"));
}

TEST_F(DoorsTest, AnAbortedRequestHasItsTextStopped) {
    start();
    send("p", prompt("long", std::string(TextWorker::kInlineBytesMax + 1, 'a')));
    messages::Cancel cancel;
    cancel.rids = {"long"};
    send("p", cancel);
    EXPECT_EQ(cancelled_jobs_, std::vector<JobId>{jobs_.at(0).id});
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

// ---- clients that do not read, and clients that are gone ----

TEST_F(DoorsTest, AVanishedClientsRequestsAreFreed) {
    start(2);
    send("p", prompt("a"));
    send("p", prompt("b"));
    const RequestKey first = next_request(0).key;
    const RequestKey second = next_request(1).key;
    gone_.insert("p");
    deliver({chunk(first, "x")});
    const messages::EndRequests end = next_end(0);
    EXPECT_EQ(end.cause, messages::EndCause::kPeerGone);
    EXPECT_EQ(end.keys, std::vector<RequestKey>{first});
    EXPECT_EQ(next_end(1).keys, std::vector<RequestKey>{second});
    EXPECT_EQ(status().open_requests, 0);
    deliver({chunk(second, "late", /*is_last=*/true)});  // of nobody any more
}

TEST_F(DoorsTest, AVanishedClientIsFoundEvenIfItIsSentNothing) {
    start();
    send("p", prompt("a"));
    const RequestKey key = next_request().key;
    wait(1s);
    gone_.insert("p");
    for (int i = 0; i < 5; ++i) wait(1s);
    EXPECT_EQ(next_end().keys, std::vector<RequestKey>{key});
}

TEST_F(DoorsTest, AProbeIsAnEmptyOutputs) {
    start();
    send("p", prompt("a"));
    for (int i = 0; i < 5; ++i) wait(1s);
    EXPECT_TRUE(next_to<messages::Outputs>("p").chunks.empty());
}

TEST_F(DoorsTest, ASlowClientGetsEverythingJoinedWhenItReads) {
    start();
    send("slow", prompt("a"));
    send("slow", prompt("b"));
    send("quick", prompt("c"));
    const RequestKey a = next_request().key;
    const RequestKey b = next_request().key;
    const RequestKey c = next_request().key;
    full_.insert("slow");
    for (int i = 0; i < 100; ++i) deliver({chunk(a, "x"), chunk(b, "y"), chunk(c, "z")});
    deliver({chunk(a, "!", /*is_last=*/true)});
    EXPECT_EQ(to_client_[(std::pair{messages::Door::kData, std::string("quick")})].size(), 100u);
    full_.clear();
    wait(5ms);
    std::string text_a;
    std::string text_b;
    bool is_a_done = false;
    std::size_t num_tokens = 0;
    while (has_message("slow")) {
        for (const messages::OutputChunk& chunk : next_to<messages::Outputs>("slow").chunks) {
            (chunk.rid == "a" ? text_a : text_b) += chunk.text;
            num_tokens += chunk.tokens.size();
            is_a_done |= chunk.rid == "a" && chunk.finish;
        }
    }
    EXPECT_EQ(text_a, std::string(100, 'x') + "!");
    EXPECT_EQ(text_b, std::string(100, 'y'));
    EXPECT_EQ(num_tokens, 201u);
    EXPECT_TRUE(is_a_done);
}

TEST_F(DoorsTest, AnIdUsedAgainWhileItsEndStillWaitsIsNotJoinedWithIt) {
    start();
    send("slow", prompt("a"));
    full_.insert("slow");
    deliver({chunk(next_request().key, "first")});
    send("slow", prompt("b"));
    deliver({chunk(next_request().key, "b", /*is_last=*/true)});
    send("slow", prompt("b"));
    deliver({chunk(next_request().key, "again")});
    full_.clear();
    wait(5ms);
    std::vector<std::string> texts;
    while (has_message("slow")) {
        for (const messages::OutputChunk& chunk : next_to<messages::Outputs>("slow").chunks)
            texts.push_back(chunk.text);
    }
    EXPECT_EQ(texts, (std::vector<std::string>{"first", "b", "again"}));
}

TEST_F(DoorsTest, ATooSlowClientsRequestsEndWithAnErrorAndOthersGoOn) {
    start();
    send("slow", prompt("done"));
    send("slow", prompt("open"));
    send("quick", prompt("c"));
    const RequestKey done = next_request().key;
    const RequestKey open = next_request().key;
    const RequestKey c = next_request().key;
    full_.insert("slow");
    deliver({chunk(done, "x")});  // the head, which found the queue full
    deliver({chunk(done, "complete", /*is_last=*/true)});
    const std::string large(1 << 20, 'x');
    int num_sent = 0;
    while (to_replica_[{0, ReplicaSocket::kControl}].empty() && num_sent < 100) {
        deliver({chunk(open, large), chunk(c, "z")});
        ++num_sent;
    }
    EXPECT_LE(num_sent, 18);
    const messages::EndRequests end = next_end();
    EXPECT_EQ(end.cause, messages::EndCause::kPeerGone);
    EXPECT_EQ(end.keys, std::vector<RequestKey>{open});
    EXPECT_EQ(
        to_client_[(std::pair{messages::Door::kData, std::string("quick")})].size(),
        static_cast<std::size_t>(num_sent)
    );
    send("slow", prompt("more"));  // refused until it has read
    full_.clear();
    wait(5ms);
    std::map<std::string, std::string> ended;
    EXPECT_EQ(refusal("slow").error.code, ErrorCode::kResourceExhausted);
    for (const messages::OutputChunk& chunk : next_to<messages::Outputs>("slow").chunks) {
        ASSERT_TRUE(chunk.finish);
        ended[chunk.rid] = std::string(chunk.finish->verdict.code_name());
    }
    EXPECT_EQ(
        ended,
        (std::map<std::string, std::string>{
            {"done", "resource_exhausted"}, {"open", "resource_exhausted"}})
    );
    send("slow", prompt("more"));
    next_request();
}

// ---- the end ----

TEST_F(DoorsTest, WhenTheTreeGoesDownEverythingOpenIsAnsweredWithWhy) {
    start();
    send("p", prompt("a"));
    send("p", prompt("long", std::string(TextWorker::kInlineBytesMax + 1, 'a')));
    messages::Status call;
    call.call = CallId{3};
    send("admin", call, messages::Door::kAdmin);
    doors_->shut_down(now_, "tp_worker[0.1] died (signal 9)");
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
