// Clients that do not read, and clients that are gone.
#include "tests/tokenizer_proc/doors_fixture.h"

#include <map>
#include <string>

namespace pitstop::tokenizer {
namespace {

using namespace std::chrono_literals;

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
    deliver({chunk(second, "late", /*is_last=*/true)});  // of a client that is gone
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
    deliver({chunk(done, "x")});  // held back, as the client's queue is full
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

}  // namespace
}  // namespace pitstop::tokenizer
