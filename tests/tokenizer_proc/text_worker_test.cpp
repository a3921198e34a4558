#include "tokenizer_proc/text_worker.h"

#include "tests/source_dir.h"

#include <gtest/gtest.h>

#include <poll.h>

namespace pitstop {
namespace {

class TextWorkerTest : public testing::Test {
  protected:
    static std::shared_ptr<const Tokenizer> load() {
        auto loaded = Tokenizer::load(source_dir() + "/launch/models/stories");
        CHECK(loaded.has_value());
        return *loaded;
    }
    static TextJob encode_job(std::uint64_t id, std::string text) {
        TextJob job;
        job.id = JobId{id};
        job.text = std::move(text);
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
    std::shared_ptr<const Tokenizer> tokenizer_ = load();
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

TEST_F(TextWorkerTest, WhatWaitsIsBounded) {
    TextWorker worker(tokenizer_);
    const std::string text(8 << 20, 'a');
    std::size_t num_taken = 0;
    while (num_taken < 100 && worker.push(encode_job(num_taken + 1, text))) ++num_taken;
    EXPECT_LE(num_taken, 10u);  // 64 MiB wait, besides those already taken up
    EXPECT_GE(num_taken, 8u);
}

TEST_F(TextWorkerTest, DecodingAndBothWaysAreJobsToo) {
    TextJob both = encode_job(1, "Once upon a time");
    both.add_special = AddSpecial::kNo;
    both.wants_text = true;
    const TextDone encoded = run_job(*tokenizer_, both);
    EXPECT_EQ(encoded.text, "Once upon a time");
    TextJob decode;
    decode.ids = encoded.ids;
    EXPECT_EQ(run_job(*tokenizer_, decode).text, "Once upon a time");
}

}  // namespace
}  // namespace pitstop
