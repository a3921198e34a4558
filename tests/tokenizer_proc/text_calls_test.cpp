// Texts that are encoded, decoded and rendered for callers, on another thread.
#include "tests/tokenizer_proc/doors_fixture.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace pitstop::tokenizer {
namespace {

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

// A token outside the vocabulary is refused: callers would trust an empty text.
TEST_F(DoorsTest, WhatIsNoTokenIsNotDecoded) {
    start();
    messages::Tokenize call;
    const auto end = std::max(static_cast<std::int32_t>(kVocabSize), tokenizer_->vocab_size());
    std::uint64_t number = 1;
    for (const std::int32_t id : {-1, end, std::numeric_limits<std::int32_t>::max()}) {
        call.call = CallId{number++};
        call.ids = {TokenId{0}, TokenId{id}};
        send("p", call);
        finish_jobs();
        const messages::ErrorReply error = refusal("p");
        EXPECT_EQ(error.error.code, ErrorCode::kInvalidArgument);
        EXPECT_EQ(
            error.error.message,
            fmt::format("ids[1] is token {}; the model has tokens [0, {})", id, end)
        );
    }
    call.call = CallId{number};
    call.ids = {TokenId{end - 1}};  // the model's head may be wider than the vocabulary
    send("p", call);
    finish_jobs();
    EXPECT_EQ(next_to<messages::TokenizeReply>("p").ids, *call.ids);
}

// A template's cost is not known in advance, so even the shortest chat is rendered on the other
// thread.
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

TEST_F(DoorsTest, AClientThatGoesAwayHasItsTextsStopped) {
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

}  // namespace
}  // namespace pitstop::tokenizer
