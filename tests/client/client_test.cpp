#include "client/client.h"

#include "tests/client/client_fixture.h"

#include <gtest/gtest.h>

#include <future>
#include <poll.h>

namespace pitstop {
namespace {

using namespace std::chrono_literals;

TEST_F(ClientTest, AStreamYieldsItsChunksInOrderAndEnds) {
    const auto client = connect();
    Stream stream = client->generate(prompt("hello"));
    const auto [peer, request] = door_->take<messages::Generate>();
    EXPECT_EQ(request.text, "hello");
    EXPECT_EQ(request.rid, stream.rid());
    EXPECT_EQ(request.rid.size(), 32u);
    door_->send_chunk(peer, text_chunk(request.rid, "a", 1));
    EXPECT_EQ(stream.next(kLong)->text, "a");
    door_->send_chunk(peer, text_chunk(request.rid, "b", 2));
    EXPECT_EQ(stream.next(kLong)->text, "b");
    EXPECT_FALSE(stream.is_done());
    door_->send_chunk(peer, last_chunk(request.rid, messages::FinishReason::kLength));
    EXPECT_EQ(stream.next(kLong)->finish->reason, messages::FinishReason::kLength);
    EXPECT_TRUE(stream.is_done());
    EXPECT_FALSE(stream.next(kLong).has_value());
}

TEST_F(ClientTest, ChunksThatNobodyTookAreJoined) {
    const auto client = connect();
    Stream stream = client->generate(prompt("hello"));
    const auto [peer, request] = door_->take<messages::Generate>();
    for (int i = 0; i < 1000; ++i) {
        door_->send_chunk(peer, text_chunk(request.rid, "x", i % 100));
    }
    door_->send_chunk(peer, last_chunk(request.rid, messages::FinishReason::kStop));
    const Result<messages::OutputChunk> whole = stream.wait(kLong);
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    EXPECT_EQ(whole->text, std::string(1000, 'x'));
    EXPECT_EQ(whole->tokens.size(), 1000u);
    ASSERT_EQ(whole->spans.size(), 1u);
    EXPECT_EQ(whole->spans[0].tokens, 1000);
}

TEST_F(ClientTest, AWaitWhoseTimeRanOutLosesNothing) {
    const auto client = connect();
    Stream stream = client->generate(prompt("hello"));
    const auto [peer, request] = door_->take<messages::Generate>();
    door_->send_chunk(peer, text_chunk(request.rid, "a", 1));
    EXPECT_EQ(stream.wait(50ms).error().code, ErrorCode::kDeadlineExceeded);
    door_->send_chunk(peer, text_chunk(request.rid, "b", 2));
    door_->send_chunk(peer, last_chunk(request.rid, messages::FinishReason::kStop));
    EXPECT_EQ(stream.wait(kLong)->text, "ab");
}

TEST_F(ClientTest, RequestsOfOneClientAreNotMixedUp) {
    const auto client = connect();
    std::vector<Stream> streams;
    for (int i = 0; i < 256; ++i) streams.push_back(client->generate(prompt(std::to_string(i))));
    for (int i = 0; i < 256; ++i) {
        const auto [peer, request] = door_->take<messages::Generate>();
        door_->send_chunk(peer, text_chunk(request.rid, "<" + *request.text, 1));
        messages::OutputChunk last = last_chunk(request.rid, messages::FinishReason::kStop);
        last.text = ">";
        door_->send_chunk(peer, last);
    }
    for (int i = 0; i < 256; ++i) {
        EXPECT_EQ(streams[static_cast<std::size_t>(i)].wait(kLong)->text, fmt::format("<{}>", i));
    }
}

TEST_F(ClientTest, ALostConnectionEndsEveryOpenRequestAndCall) {
    const auto client = connect();
    Stream stream = client->generate(prompt("hello"));
    Stream other = client->generate(prompt("hello"));
    const auto [peer, request] = door_->take<messages::Generate>();
    door_->send_chunk(peer, text_chunk(request.rid, "so far", 1));
    EXPECT_EQ(stream.next(kLong)->text, "so far");
    std::promise<Result<messages::StatusReply>> status;
    client->call<messages::Status>(
        {}, [&](Result<messages::StatusReply> reply) { status.set_value(reply); }, 60s
    );
    door_->take<messages::Status>();
    door_.reset();
    const std::optional<messages::OutputChunk> last = stream.next(kLong);
    ASSERT_TRUE(last && last->finish);
    EXPECT_EQ(last->finish->reason, messages::FinishReason::kError);
    EXPECT_EQ(last->finish->verdict.code, ErrorCode::kUnavailable);
    EXPECT_EQ(other.wait(kLong).error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(status.get_future().get().error().code, ErrorCode::kUnavailable);
    EXPECT_FALSE(client->is_connected());
    EXPECT_EQ(client->generate_blocking(prompt("x"), kLong).error().code, ErrorCode::kUnavailable);
}

TEST_F(ClientTest, TheLastMessagesOfADyingTreeAreHeard) {
    const auto client = connect();
    Stream stream = client->generate(prompt("hello"));
    const auto [peer, request] = door_->take<messages::Generate>();
    messages::OutputChunk last = last_chunk(request.rid, messages::FinishReason::kError);
    last.finish->verdict = Error{ErrorCode::kUnavailable, "tp_worker[0.1] died"};
    door_->send_chunk(peer, last);
    door_.reset();
    EXPECT_EQ(stream.wait(kLong).error().message, "tp_worker[0.1] died");
}

TEST_F(ClientTest, ATreeThatComesBackServesAgainAndGetsNothingOld) {
    const auto client = connect();
    Stream old = client->generate(prompt("old"));
    door_->take<messages::Generate>();
    door_.reset();
    EXPECT_EQ(old.wait(kLong).error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(client->generate_blocking(prompt("lost")).error().code, ErrorCode::kUnavailable);
    door_.emplace(dir_.path());
    const TimePoint deadline = Clock::now() + kLong;
    while (!client->is_connected() && Clock::now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(client->is_connected());
    Stream stream = client->generate(prompt("new"));
    const auto [peer, request] = door_->take<messages::Generate>();
    EXPECT_EQ(request.text, "new");
    door_->send_chunk(peer, last_chunk(request.rid, messages::FinishReason::kStop));
    EXPECT_TRUE(stream.wait(kLong).has_value());
}

TEST_F(ClientTest, ARefusedRequestEndsWithTheDoorsError) {
    const auto client = connect();
    Stream stream = client->generate(prompt("hello"));
    const auto [peer, request] = door_->take<messages::Generate>();
    messages::ErrorReply error;
    error.rid = request.rid;
    error.error.code = ErrorCode::kResourceExhausted;
    error.error.message = "the queue is full";
    door_->send(messages::Door::kData, peer, encode(error));
    const Result<messages::OutputChunk> whole = stream.wait(kLong);
    EXPECT_EQ(whole.error().code, ErrorCode::kResourceExhausted);
    EXPECT_EQ(whole.error().message, "the queue is full");
}

// A door that refuses a message for its size has not read its rid, so its answer could not name the
// request.
TEST_F(ClientTest, P5_ACallThatIsTooLargeIsRefusedBeforeItIsSent) {
    messages::Tokenize call;
    call.text = std::string(std::size_t{17} << 20, 'a');
    const auto reply = connect()->call(call, kLong);
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code, ErrorCode::kTooLarge);
    EXPECT_NE(reply.error().message.find("tokenize: the message takes 178"), std::string::npos)
        << reply.error().message;
}

TEST_F(ClientTest, BadParametersAreRefusedBeforeTheyAreSent) {
    const auto client = connect();
    messages::Generate request = prompt("hello");
    request.sampling.temperature = -1;
    EXPECT_EQ(
        client->generate_blocking(std::move(request), kLong).error().code,
        ErrorCode::kInvalidArgument
    );
    EXPECT_EQ(
        client->generate_blocking(prompt(std::string(17 << 20, 'a')), kLong).error().code,
        ErrorCode::kTooLarge
    );
}

TEST_F(ClientTest, ADuplicateRidLeavesTheFirstRequestAlone) {
    const auto client = connect();
    messages::Generate request = prompt("hello");
    request.rid = "mine";
    Stream first = client->generate(request);
    EXPECT_EQ(client->generate_blocking(request, kLong).error().code, ErrorCode::kAlreadyExists);
    const auto [peer, received] = door_->take<messages::Generate>();
    door_->send_chunk(peer, last_chunk("mine", messages::FinishReason::kStop));
    EXPECT_TRUE(first.wait(kLong).has_value());
}

TEST_F(ClientTest, AStreamOfARefusedDuplicateThatNobodyReadsLeavesTheFirstAlone) {
    const auto client = connect();
    messages::Generate request = prompt("hello");
    request.rid = "mine";
    Stream first = client->generate(request);
    { const Stream refused = client->generate(request); }
    const auto [peer, received] = door_->take<messages::Generate>();
    Stream other = client->generate(prompt("other"));  // after the refusal's message
    const auto [other_peer, other_request] = door_->take<messages::Generate>();
    EXPECT_EQ(other_request.text, "other");
    door_->send_chunk(peer, last_chunk("mine", messages::FinishReason::kStop));
    EXPECT_TRUE(first.wait(kLong).has_value());
}

TEST_F(ClientTest, AStreamThatWasNotReadToItsEndLeavesTheNextOfItsRidAlone) {
    const auto client = connect();
    messages::Generate request = prompt("hello");
    request.rid = "mine";
    Stream stream = client->generate(request);
    const auto [peer, received] = door_->take<messages::Generate>();
    door_->send_chunk(peer, last_chunk("mine", messages::FinishReason::kStop));
    // After a round trip on the same socket, the end above has arrived.
    Stream marker = client->generate(prompt("marker"));
    const auto [marker_peer, marker_request] = door_->take<messages::Generate>();
    door_->send_chunk(marker_peer, last_chunk(marker_request.rid, messages::FinishReason::kStop));
    ASSERT_TRUE(marker.wait(kLong).has_value());

    stream = client->generate(request);  // the old connection closes after the new one is open
    door_->take<messages::Generate>();
    door_->send_chunk(peer, text_chunk("mine", "again", 1));
    door_->send_chunk(peer, last_chunk("mine", messages::FinishReason::kStop));
    const Result<messages::OutputChunk> whole = stream.wait(kLong);
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    EXPECT_EQ(whole->text, "again");
}

TEST_F(ClientTest, TheLongestTimeoutIsNotOverAtOnce) {
    const auto client = connect();
    Stream stream = client->generate(prompt("hello"));
    std::future<Result<messages::OutputChunk>> whole = std::async(std::launch::async, [&] {
        return stream.wait(std::chrono::milliseconds::max());
    });
    const auto [peer, request] = door_->take<messages::Generate>();
    EXPECT_EQ(whole.wait_for(50ms), std::future_status::timeout);
    door_->send_chunk(peer, last_chunk(request.rid, messages::FinishReason::kStop));
    EXPECT_TRUE(whole.get().has_value());
}

TEST_F(ClientTest, ALateRequestIsCancelledAndEndsWithDeadlineExceeded) {
    const auto client = connect();
    Stream stream = client->generate(prompt("hello"), 30ms);
    const auto [peer, request] = door_->take<messages::Generate>();
    EXPECT_EQ(stream.wait(kLong).error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(door_->take<messages::Cancel>().second.rids, std::vector<std::string>{request.rid});
    // An answer after the time-out reaches no call, and later requests work.
    door_->send_chunk(peer, last_chunk(request.rid, messages::FinishReason::kAbort));
    Stream other = client->generate(prompt("other"));
    const auto [other_peer, other_request] = door_->take<messages::Generate>();
    door_->send_chunk(other_peer, last_chunk(other_request.rid, messages::FinishReason::kStop));
    EXPECT_TRUE(other.wait(kLong).has_value());
}

TEST_F(ClientTest, CancelAndTheEndOfAStreamTellTheDoor) {
    const auto client = connect();
    std::string abandoned;
    {
        const Stream stream = client->generate(prompt("hello"));
        abandoned = stream.rid();
    }
    EXPECT_EQ(door_->take<messages::Cancel>().second.rids, std::vector<std::string>{abandoned});
    Stream stream = client->generate(prompt("hello"));
    stream.cancel();
    EXPECT_EQ(door_->take<messages::Cancel>().second.rids, std::vector<std::string>{stream.rid()});
}

TEST_F(ClientTest, ClosingTheClientEndsItsStreams) {
    auto client = connect();
    Stream stream = client->generate(prompt("hello"));
    door_->take<messages::Generate>();
    client.reset();
    EXPECT_EQ(stream.wait(kLong).error().code, ErrorCode::kAborted);
    stream.cancel();  // harmless
}

TEST_F(ClientTest, CallbacksRunOnTheCallersThreadWhenAskedTo) {
    const auto client = connect(CallbackThread::kCaller);
    const auto this_thread = std::this_thread::get_id();
    std::string text;
    bool is_done = false;
    const std::string rid =
        client->generate(prompt("hello"), [&](const messages::OutputChunk& chunk) {
            EXPECT_EQ(std::this_thread::get_id(), this_thread);
            text += chunk.text;
            is_done |= chunk.finish.has_value();
        });
    bool has_status = false;
    client->call<messages::Status>({}, [&](const Result<messages::StatusReply>& reply) {
        EXPECT_EQ(std::this_thread::get_id(), this_thread);
        has_status = reply.has_value();
    });
    const auto [peer, request] = door_->take<messages::Generate>();
    EXPECT_EQ(request.rid, rid);
    for (int i = 0; i < 100; ++i) door_->send_chunk(peer, text_chunk(rid, "x", 1));
    door_->send_chunk(peer, last_chunk(rid, messages::FinishReason::kStop));
    const auto [admin_peer, status] = door_->take<messages::Status>();
    messages::StatusReply reply;
    reply.call = status.call;
    door_->send(messages::Door::kAdmin, admin_peer, encode(reply));
    while (!is_done || !has_status) {
        pollfd ready{client->ready_fd(), POLLIN, 0};
        ASSERT_EQ(::poll(&ready, 1, 20'000), 1);
        client->run_callbacks();
    }
    EXPECT_EQ(text, std::string(100, 'x'));
    pollfd ready{client->ready_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ready, 1, 0), 0);
}

TEST_F(ClientTest, ACallbackMayStartTheNextRequestButNotWait) {
    const auto client = connect();
    std::promise<std::string> second;
    std::promise<ErrorCode> wait_error;
    std::promise<ErrorCode> stream_error;
    client->generate(prompt("first"), [&](const messages::OutputChunk&) {
        wait_error.set_value(client->status().error().code);
        Stream stream = client->generate({});  // an empty request: refused on this thread
        EXPECT_FALSE(stream.next(kLong).has_value());
        stream_error.set_value(stream.wait(kLong).error().code);
        client->generate(prompt("second"), [&](const messages::OutputChunk& chunk) {
            second.set_value(chunk.text);
        });
    });
    const auto [peer, request] = door_->take<messages::Generate>();
    door_->send_chunk(peer, last_chunk(request.rid, messages::FinishReason::kStop));
    EXPECT_EQ(wait_error.get_future().get(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(stream_error.get_future().get(), ErrorCode::kFailedPrecondition);
    const auto [second_peer, second_request] = door_->take<messages::Generate>();
    messages::OutputChunk last = last_chunk(second_request.rid, messages::FinishReason::kStop);
    last.text = "done";
    door_->send_chunk(second_peer, last);
    EXPECT_EQ(second.get_future().get(), "done");
}

TEST_F(ClientTest, ALateReplyIsNotTakenForAnother) {
    const auto client = connect();
    EXPECT_EQ(client->status(1ms).error().code, ErrorCode::kDeadlineExceeded);
    const auto [peer, late] = door_->take<messages::Status>();
    std::promise<Result<messages::StatusReply>> second;
    client->call<messages::Status>({}, [&](Result<messages::StatusReply> r) {
        second.set_value(std::move(r));
    });
    const auto [second_peer, status] = door_->take<messages::Status>();
    EXPECT_NE(late.call, status.call);
    messages::StatusReply reply;
    reply.call = late.call;
    reply.model = "late";
    door_->send(messages::Door::kAdmin, peer, encode(reply));
    reply.call = status.call;
    reply.model = "in time";
    door_->send(messages::Door::kAdmin, second_peer, encode(reply));
    EXPECT_EQ(second.get_future().get()->model, "in time");
}

TEST_F(ClientTest, AnAbortIsSentWhenTheDataDoorHasReadTheRequestsBeforeIt) {
    const auto client = connect();
    const Stream stream = client->generate(prompt("hello"));
    std::promise<Result<messages::AbortReply>> aborted;
    messages::Abort abort;
    abort.rids = {stream.rid()};
    client->call<messages::Abort>(abort, [&](Result<messages::AbortReply> reply) {
        aborted.set_value(std::move(reply));
    });
    client->call<messages::Status>(messages::Status{}, [](const Result<messages::StatusReply>&) {});
    const auto [peer, fence] = door_->take<messages::Fence>();
    door_->take<messages::Status>();  // asked after the abort, at the same door
    EXPECT_FALSE(door_->has<messages::Abort>());
    messages::ErrorReply any_answer;  // even a refusal shows that the door read the requests
    any_answer.call = fence.call;
    any_answer.error.code = ErrorCode::kResourceExhausted;
    door_->send(messages::Door::kData, peer, encode(any_answer));
    const auto [admin_peer, call] = door_->take<messages::Abort>();
    EXPECT_EQ(call.rids, std::vector{stream.rid()});
    messages::AbortReply reply;
    reply.call = call.call;
    reply.ok = true;
    door_->send(messages::Door::kAdmin, admin_peer, encode(reply));
    EXPECT_TRUE(aborted.get_future().get().has_value());
}

TEST_F(ClientTest, AnAbortThatTheDataDoorHoldsUpIsSentAtItsDeadline) {
    const auto client = connect();
    const Stream stream = client->generate(prompt("hello"));
    messages::Abort abort;
    abort.rids = {stream.rid()};
    const Result<messages::AbortReply> reply = client->call(abort, 10ms);
    EXPECT_EQ(reply.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(door_->take<messages::Abort>().second.rids, std::vector{stream.rid()});
}

TEST_F(ClientTest, UnreadableOutputsEndTheRequestsTheyMayBelongTo) {
    const auto client = connect();
    Stream stream = client->generate(prompt("hello"));
    const auto [peer, request] = door_->take<messages::Generate>();
    door_->send(
        messages::Door::kData, peer, messages::Frames{"outputs", "\xff\xff not msgpack", {}}
    );
    EXPECT_EQ(stream.wait(kLong).error().code, ErrorCode::kMalformed);
}

TEST_F(ClientTest, TokenizeIsACallOnTheDataDoor) {
    const auto client = connect();
    std::promise<Result<messages::TokenizeReply>> done;
    std::thread caller([&] { done.set_value(client->tokenize("hi")); });
    const auto [peer, request] = door_->take<messages::Tokenize>();
    EXPECT_EQ(request.text, "hi");
    messages::TokenizeReply reply;
    reply.call = request.call;
    reply.ids = {TokenId{7}};
    door_->send(messages::Door::kData, peer, encode(reply));
    EXPECT_EQ(done.get_future().get()->ids, std::vector<TokenId>{TokenId{7}});
    caller.join();
}

TEST(ClientConnect, WaitsForATreeThatIsStillStarting) {
    const TempDir dir;
    const FakeDoor door(dir.path(), Error{ErrorCode::kUnavailable, "starting"});
    const auto client = Client::connect({.run_dir = dir.path(), .connect_timeout = kLong});
    ASSERT_TRUE(client.has_value()) << client.error().message;
    EXPECT_EQ((*client)->hello().model, "fake");
}

TEST(ClientConnect, SaysWhenNobodyAnswers) {
    const TempDir dir;
    const auto client = Client::connect({.run_dir = dir.path(), .connect_timeout = 20ms});
    EXPECT_EQ(client.error().code, ErrorCode::kUnavailable);
}

TEST(ClientConnect, SaysWhenTheProtocolIsAnother) {
    const TempDir dir;
    const FakeDoor door(dir.path(), Error{ErrorCode::kInvalidArgument, "protocol 1 is not spoken"});
    const auto client = Client::connect({.run_dir = dir.path(), .connect_timeout = kLong});
    EXPECT_EQ(client.error().code, ErrorCode::kInvalidArgument);
}

TEST(ClientConnect, RefusesARunDirectoryOpenToOthers) {
    const TempDir dir;
    std::filesystem::permissions(dir.path(), std::filesystem::perms::all);
    EXPECT_EQ(Client::connect({.run_dir = dir.path()}).error().code, ErrorCode::kPermissionDenied);
}

}  // namespace
}  // namespace pitstop
