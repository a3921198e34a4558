#include "tokenizer_proc/text_worker.h"

#include "tests/source_dir.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <poll.h>
#include <string>
#include <utility>
#include <vector>

namespace pitstop::tokenizer {
namespace {

class TextWorkerTest : public testing::Test {
  protected:
    static std::shared_ptr<const text::Tokenizer> load() {
        auto loaded = text::Tokenizer::load(source_dir() + "/launch/models/stories");
        CHECK(loaded.has_value());
        return *loaded;
    }
    static TextJob encode_job(
        std::uint64_t id, std::string text, std::vector<std::string> client = {}
    ) {
        TextJob job;
        job.id = JobId{id};
        job.text = std::move(text);
        job.client = std::move(client);
        return job;
    }
    std::vector<TextDone> wait_for(TextWorker& worker, std::size_t num) {
        std::vector<TextDone> all;
        while (all.size() < num) {
            pollfd ready{worker.fd(), POLLIN, 0};
            CHECK(::poll(&ready, 1, 60'000) == 1);
            for (TextDone& done : worker.take_done()) all.push_back(std::move(done));
        }
        return all;
    }
    std::shared_ptr<const text::Tokenizer> tokenizer_ = load();
};

TEST_F(TextWorkerTest, JobsAreDoneInOrderAndAsTheLoopWould) {
    TextWorker worker(tokenizer_);
    for (std::uint64_t i = 1; i <= 20; ++i) {
        ASSERT_TRUE(worker.push(encode_job(i, "Once upon a time " + std::to_string(i))));
    }
    const std::vector<TextDone> all = wait_for(worker, 20);
    for (std::uint64_t i = 1; i <= 20; ++i) {
        EXPECT_EQ(all[i - 1].id, JobId{i});
        EXPECT_EQ(
            all[i - 1].ids,
            run_job(*tokenizer_, encode_job(i, "Once upon a time " + std::to_string(i))).ids
        );
    }
}

TEST_F(TextWorkerTest, EachTokenIsToldByItself) {
    TextJob job;
    job.ids = *tokenizer_->encode(" a<|im_end|>日", text::AddSpecial::kNo);
    job.wants_texts = true;
    const TextDone done = run_job(*tokenizer_, job);
    ASSERT_EQ(done.ids.size(), 5u);  // the character has three tokens
    EXPECT_EQ(done.texts[0], " a");
    EXPECT_EQ(done.texts[1], "<|im_end|>");
    EXPECT_EQ(done.texts[2], "\xef\xbf\xbd");
    EXPECT_EQ(done.bytes, (std::vector<std::string>{"", "", "e6", "97", "a5"}));
    EXPECT_EQ(done.special, std::vector{done.ids[1]});
    job.skip_special = text::SkipSpecial::kYes;
    EXPECT_EQ(run_job(*tokenizer_, job).texts[1], "");
    EXPECT_EQ(run_job(*tokenizer_, job).bytes[1], "");
}

TEST_F(TextWorkerTest, TheWaitingTextsOfOneClientAreBounded) {
    TextWorker worker(tokenizer_);
    const std::string text(8 << 20, 'a');
    std::size_t num_taken = 0;
    Result<> pushed = Ok{};
    while (num_taken < 100) {
        pushed = worker.push(encode_job(num_taken + 1, text, {"a"}));
        if (!pushed) break;
        ++num_taken;
    }
    EXPECT_GE(num_taken, 3u);  // 32 MiB, including the jobs' own memory
    ASSERT_FALSE(pushed);
    EXPECT_EQ(pushed.error().code, ErrorCode::kResourceExhausted);
    EXPECT_TRUE(worker.push(encode_job(1000, text, {"b"})));
}

// A client fills the queue under many names: its newest job is refused to make room for another
// client.
TEST_F(TextWorkerTest, AFullQueuePushesOutTheNewestJobOfTheClientWithTheMost) {
    TextWorker worker(tokenizer_);
    const std::string text(8 << 20, 'a');
    std::size_t num_taken = 0;
    while (num_taken < 100 &&
           worker.push(encode_job(num_taken + 1, text, {"a", std::to_string(num_taken)}))) {
        ++num_taken;
    }
    ASSERT_LT(num_taken, 100u);
    EXPECT_TRUE(worker.push(encode_job(1000, text, {"b"})));
    bool was_pushed_out = false;
    for (const TextDone& done : wait_for(worker, 1)) {
        if (!done.error) continue;
        was_pushed_out = true;
        EXPECT_NE(done.id, JobId{1000});
        EXPECT_EQ(done.error->code, ErrorCode::kResourceExhausted);
    }
    EXPECT_TRUE(was_pushed_out);
}

// One client has twelve renderings queued. Another client's text waits for the current rendering,
// and for at most one more.
TEST_F(TextWorkerTest, OneClientsRenderingsDoNotHoldUpAnother) {
    const auto no_template = ChatTemplate::load("/nowhere");
    TextWorker worker(tokenizer_);
    const auto chat_of = [&](std::uint64_t id) {
        TextJob job;
        job.id = JobId{id};
        job.client = {"a"};
        job.chat = ChatJob{
            no_template,
            {.variables = R"({"messages": [{"role": "user", "content": "hi"}]})",
             .chat_template = "{% for a in range(100) %}{% for b in range(400) %}{% endfor %}"
                              "{% endfor %}{{ 'a'.center(999999999) }}"}};
        return job;
    };
    for (std::uint64_t i = 1; i <= 12; ++i) ASSERT_TRUE(worker.push(chat_of(i)));
    ASSERT_TRUE(worker.push(encode_job(100, std::string(20 << 10, 'a'), {"b"})));
    // Finds the jobs that were done before the text.
    std::vector<TextDone> all = worker.take_done();
    const auto num_before = static_cast<std::ptrdiff_t>(all.size());
    for (TextDone& done : wait_for(worker, 13 - all.size())) all.push_back(std::move(done));
    const auto place =
        std::ranges::find_if(all, [](const TextDone& done) { return done.id == JobId{100}; });
    EXPECT_LE(place - all.begin(), num_before + 2);
    EXPECT_FALSE(place->error);
    for (const TextDone& done : all) {
        if (done.id == JobId{100}) continue;
        ASSERT_TRUE(done.error);
        EXPECT_EQ(done.error->code, ErrorCode::kTooLarge);
    }
}

TEST_F(TextWorkerTest, FirstComeFirstServedIsThereForTheAsking) {
    TextWorker worker(tokenizer_, Fairness::kFcfs);
    for (std::uint64_t i = 1; i <= 40; ++i) {
        ASSERT_TRUE(worker.push(encode_job(i, "Once upon a time", {i % 2 == 0 ? "a" : "b"})));
    }
    const std::vector<TextDone> all = wait_for(worker, 40);
    for (std::uint64_t i = 1; i <= 40; ++i) EXPECT_EQ(all[i - 1].id, JobId{i});
}

// A cancelled job, queued or running, gives no result, and the next job starts.
TEST_F(TextWorkerTest, ACancelledJobIsNotFinished) {
    TextWorker worker(tokenizer_);
    std::string words;
    while (words.size() < (std::size_t{12} << 20)) words += "once upon a time ";
    for (const std::uint64_t id : {1u, 2u}) ASSERT_TRUE(worker.push(encode_job(id, words)));
    for (const std::uint64_t id : {1u, 2u}) worker.cancel(JobId{id});
    ASSERT_TRUE(worker.push(encode_job(3, "Once upon a time")));
    const std::vector<TextDone> all = wait_for(worker, 1);
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].id, JobId{3});
    worker.cancel(JobId{3});  // done already
    worker.cancel(JobId{99});
}

TEST_F(TextWorkerTest, AnInterruptEndsAnEncodingBetweenPieces) {
    std::string words;
    while (words.size() < (std::size_t{1} << 20)) words += "once upon a time ";
    int num_asked = 0;
    const Interrupt interrupt = [&]() -> std::optional<Error> {
        if (++num_asked < 5) return std::nullopt;
        return Error{ErrorCode::kAborted, "no client waits for it"};
    };
    const TextDone done = run_job(*tokenizer_, encode_job(1, words), interrupt);
    ASSERT_TRUE(done.error);
    EXPECT_EQ(done.error->code, ErrorCode::kAborted);
    EXPECT_EQ(num_asked, 5);
}

TEST_F(TextWorkerTest, DecodingAndBothWaysAreJobsToo) {
    TextJob both = encode_job(1, "Once upon a time");
    both.add_special = text::AddSpecial::kNo;
    both.wants_text = true;
    const TextDone encoded = run_job(*tokenizer_, both);
    EXPECT_EQ(encoded.text, "Once upon a time");
    TextJob decode;
    decode.ids = encoded.ids;
    EXPECT_EQ(run_job(*tokenizer_, decode).text, "Once upon a time");
}

}  // namespace
}  // namespace pitstop::tokenizer
