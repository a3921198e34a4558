#include "detokenizer_proc/detokenizer.h"

#include "tests/source_dir.h"

#include <gtest/gtest.h>

#include <numeric>

namespace pitstop::detokenizer {
namespace {

constexpr std::string_view kStory = "Once upon a time, a little café stood by the sea. It was red.";

class DetokenizerTest : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        auto loaded = text::Tokenizer::load(source_dir() + "/launch/models/stories");
        CHECK(loaded.has_value());
        tokenizer_ = *loaded;
    }

    static std::vector<TokenId> encode(std::string_view text) {
        return *tokenizer_->encode(text, text::AddSpecial::kNo);
    }

    // Makes a token with a logprob and a span, as the scheduler sends it.
    static messages::OutputChunk chunk_of(RequestKey key, std::span<const TokenId> tokens) {
        messages::OutputChunk chunk;
        chunk.key = key;
        for (const TokenId token : tokens) {
            chunk.tokens.push_back(token);
            chunk.logprobs.push_back(-0.5f * static_cast<float>(raw(token)));
            chunk.top_ids.insert(chunk.top_ids.end(), {token, TokenId{1}});
            chunk.top_logprobs.insert(chunk.top_logprobs.end(), {-0.5f, -1.5f});
        }
        if (!tokens.empty()) {
            chunk.spans = {messages::Span{
                .epoch = Epoch{3}, .tokens = static_cast<std::int64_t>(tokens.size())}};
        }
        return chunk;
    }

    static messages::TokenBatch batch_of(messages::OutputChunk chunk) {
        messages::TokenBatch batch;
        batch.chunks.push_back(std::move(chunk));
        return batch;
    }

    // Runs the request: one token per batch, the last with a finish. Returns every chunk.
    std::vector<messages::OutputChunk> run(
        messages::TextOptions options,
        const std::vector<TokenId>& tokens,
        messages::Finish finish = {.reason = messages::FinishReason::kLength}
    ) {
        std::vector<messages::OutputChunk> out;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            messages::TokenBatch batch =
                batch_of(chunk_of(RequestKey{7}, std::span(tokens).subspan(i, 1)));
            if (i == 0) {
                batch.starts.push_back({RequestKey{7}, options});
                batch.chunks[0].counts =
                    messages::RequestCounts{.prompt_tokens = 5, .completion_tokens = 1};
            }
            if (i + 1 == tokens.size()) batch.chunks[0].finish = finish;
            messages::TextBatch text = detokenizer_.turn(std::move(batch));
            for (messages::OutputChunk& chunk : text.chunks) out.push_back(std::move(chunk));
            stopped_.insert(stopped_.end(), text.stopped.begin(), text.stopped.end());
        }
        return out;
    }

    static std::string text_of(const std::vector<messages::OutputChunk>& chunks) {
        std::string text;
        for (const messages::OutputChunk& chunk : chunks) text += chunk.text;
        return text;
    }
    static std::size_t tokens_of(const std::vector<messages::OutputChunk>& chunks) {
        std::size_t num = 0;
        for (const messages::OutputChunk& chunk : chunks) num += chunk.tokens.size();
        return num;
    }

    static void expect_in_step(const std::vector<messages::OutputChunk>& chunks) {
        for (const messages::OutputChunk& chunk : chunks) {
            EXPECT_EQ(chunk.logprobs.size(), chunk.tokens.size());
            EXPECT_EQ(chunk.top_ids.size(), 2 * chunk.tokens.size());
            EXPECT_EQ(chunk.top_logprobs.size(), 2 * chunk.tokens.size());
            std::int64_t num = 0;
            for (const messages::Span& span : chunk.spans) num += span.tokens;
            EXPECT_EQ(num, static_cast<std::int64_t>(chunk.tokens.size()));
        }
    }

    inline static std::shared_ptr<const text::Tokenizer> tokenizer_;
    Detokenizer detokenizer_{tokenizer_};
    std::vector<RequestKey> stopped_;
};

TEST_F(DetokenizerTest, TheTextIsThatOfTheWholeOutput) {
    const std::vector<messages::OutputChunk> chunks = run({}, encode(kStory));
    EXPECT_EQ(text_of(chunks), kStory);
    EXPECT_EQ(chunks.size(), encode(kStory).size());
    EXPECT_EQ(chunks.back().finish->reason, messages::FinishReason::kLength);
    EXPECT_TRUE(stopped_.empty());
    EXPECT_EQ(detokenizer_.num_open(), 0u);
}

TEST_F(DetokenizerTest, NoChunkHasHalfACodePoint) {
    // The tokens are the bytes of an emoji, one token each, as the model has no token for it.
    const std::vector<TokenId> tokens = encode("a\U0001F600b");
    const std::vector<messages::OutputChunk> chunks = run({}, tokens);
    EXPECT_EQ(text_of(chunks), "a\U0001F600b");
    for (const messages::OutputChunk& chunk : chunks) {
        EXPECT_EQ(chunk.text.find("\xef\xbf\xbd"), std::string::npos);
        if (chunk.text.empty()) continue;
        EXPECT_NE(static_cast<unsigned char>(chunk.text[0]) & 0xc0, 0x80);
    }
}

TEST_F(DetokenizerTest, AnUnfinishedCodePointComesOutAtTheEnd) {
    std::vector<TokenId> tokens = encode("a\U0001F600");
    ASSERT_GT(tokens.size(), 2u);
    tokens.pop_back();
    EXPECT_EQ(text_of(run({}, tokens)), *tokenizer_->decode(tokens, text::SkipSpecial::kYes));
}

TEST_F(DetokenizerTest, AStopTextOverSeveralTokensEndsTheOutputBeforeIt) {
    const std::vector<messages::OutputChunk> chunks =
        run({.stop = {"nowhere", "stood by the"}}, encode(kStory));
    EXPECT_EQ(text_of(chunks), "Once upon a time, a little café ");
    ASSERT_TRUE(chunks.back().finish);
    EXPECT_EQ(chunks.back().finish->reason, messages::FinishReason::kStop);
    EXPECT_EQ(chunks.back().finish->matched_text, "stood by the");
    EXPECT_EQ(stopped_, std::vector<RequestKey>{RequestKey{7}});
    // Counts the tokens up to and including the token that completed the match.
    const std::size_t num = tokens_of(chunks);
    const std::vector<TokenId> all = encode(kStory);
    const std::string kept =
        *tokenizer_->decode(std::span(all).first(num), text::SkipSpecial::kYes);
    EXPECT_NE(kept.find("stood by the"), std::string::npos);
    const std::string one_less =
        *tokenizer_->decode(std::span(all).first(num - 1), text::SkipSpecial::kYes);
    EXPECT_EQ(one_less.find("stood by the"), std::string::npos);
    EXPECT_EQ(chunks.back().counts->completion_tokens, static_cast<std::int64_t>(num));
    EXPECT_EQ(chunks.back().counts->prompt_tokens, 5);
    expect_in_step(chunks);
    EXPECT_EQ(detokenizer_.num_open(), 0u);
}

// The scheduler reports a retraction when it happens. Clients see counts only in the first and the
// last chunk.
TEST_F(DetokenizerTest, AStopTextEndsARequestWithTheRetractionsItHadByThen) {
    const std::vector<TokenId> tokens = encode(kStory);
    std::vector<messages::OutputChunk> chunks;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        messages::TokenBatch batch =
            batch_of(chunk_of(RequestKey{7}, std::span(tokens).subspan(i, 1)));
        if (i == 0) batch.starts.push_back({RequestKey{7}, {.stop = {"stood by the"}}});
        if (i == 0 || i == 2) {
            batch.chunks[0].counts =
                messages::RequestCounts{.prompt_tokens = 5, .retractions = i == 2};
        }
        messages::TextBatch text = detokenizer_.turn(std::move(batch));
        for (messages::OutputChunk& chunk : text.chunks) chunks.push_back(std::move(chunk));
    }
    EXPECT_EQ(chunks.front().counts->retractions, 0);
    EXPECT_FALSE(chunks[2].counts);
    ASSERT_TRUE(chunks.back().finish && chunks.back().counts);
    EXPECT_EQ(chunks.back().finish->matched_text, "stood by the");
    EXPECT_EQ(chunks.back().counts->retractions, 1);
}

TEST_F(DetokenizerTest, AStopTextInsideAChunkOfManyTokensCutsIt) {
    const std::vector<TokenId> all = encode(kStory);
    messages::TokenBatch batch = batch_of(chunk_of(RequestKey{7}, all));
    batch.chunks[0].counts = messages::RequestCounts{.prompt_tokens = 5};
    batch.starts.push_back({RequestKey{7}, {.stop = {" sea"}}});
    const messages::TextBatch text = detokenizer_.turn(std::move(batch));
    ASSERT_EQ(text.chunks.size(), 1u);
    EXPECT_EQ(text.chunks[0].text, "Once upon a time, a little café stood by the");
    EXPECT_LT(text.chunks[0].tokens.size(), all.size());
    expect_in_step(text.chunks);
}

TEST_F(DetokenizerTest, NoStopTrimKeepsTheStopText) {
    EXPECT_EQ(
        text_of(run({.stop = {"stood by the"}, .no_stop_trim = true}, encode(kStory))),
        "Once upon a time, a little café stood by the"
    );
}

TEST_F(DetokenizerTest, TheBeginningOfAStopTextIsHeldBackAndComesOutIfItIsNone) {
    const std::vector<messages::OutputChunk> chunks =
        run({.stop = {"It was redder"}}, encode(kStory));
    EXPECT_EQ(text_of(chunks), kStory);
    EXPECT_EQ(chunks.back().finish->reason, messages::FinishReason::kLength);
}

TEST_F(DetokenizerTest, BeforeMinNewTokensNoStopTextCounts) {
    const std::string twice = "one two one two one two";
    const std::vector<TokenId> tokens = encode(twice);
    const auto min_new_tokens = static_cast<std::int64_t>(tokens.size()) / 2 + 1;
    const std::vector<messages::OutputChunk> chunks =
        run({.stop = {" two"}, .min_new_tokens = min_new_tokens}, tokens);
    EXPECT_GE(static_cast<std::int64_t>(tokens_of(chunks)), min_new_tokens);
    EXPECT_EQ(chunks.back().finish->reason, messages::FinishReason::kStop);
    EXPECT_NE(text_of(chunks).find(" two"), std::string::npos);
}

TEST_F(DetokenizerTest, AfterAStopTextLaterChunksAreDroppedUntilTheSchedulerForgets) {
    messages::TokenBatch first = batch_of(chunk_of(RequestKey{7}, encode("stop")));
    first.starts.push_back({RequestKey{7}, {.stop = {"stop"}}});
    EXPECT_EQ(detokenizer_.turn(std::move(first)).stopped.size(), 1u);
    EXPECT_EQ(detokenizer_.num_open(), 1u);
    const messages::TextBatch late =
        detokenizer_.turn(batch_of(chunk_of(RequestKey{7}, encode("more"))));
    EXPECT_TRUE(late.chunks.empty());
    EXPECT_TRUE(late.stopped.empty());
    messages::TokenBatch drop;
    drop.drops = {RequestKey{7}};
    EXPECT_TRUE(detokenizer_.turn(std::move(drop)).chunks.empty());
    EXPECT_EQ(detokenizer_.num_open(), 0u);
}

TEST_F(DetokenizerTest, AStopTextInTheLastChunkIsTheReasonAndTheSchedulerNeedNotBeTold) {
    const std::vector<messages::OutputChunk> chunks = run({.stop = {"red."}}, encode(kStory));
    EXPECT_EQ(chunks.back().finish->reason, messages::FinishReason::kStop);
    EXPECT_EQ(chunks.back().finish->matched_text, "red.");
    EXPECT_TRUE(stopped_.empty());
    EXPECT_EQ(detokenizer_.num_open(), 0u);
}

TEST_F(DetokenizerTest, TheStopTokensTextIsTrimmedUnlessAskedFor) {
    const std::vector<TokenId> tokens = encode("One day. The");
    const messages::Finish stop{
        .reason = messages::FinishReason::kStop, .matched_token = tokens.back()};
    const std::string without =
        *tokenizer_->decode(std::span(tokens).first(tokens.size() - 1), text::SkipSpecial::kYes);
    const std::vector<messages::OutputChunk> trimmed = run({}, tokens, stop);
    EXPECT_EQ(text_of(trimmed), without);
    EXPECT_EQ(tokens_of(trimmed), tokens.size());
    EXPECT_EQ(text_of(run({.no_stop_trim = true}, tokens, stop)), "One day. The");
}

TEST_F(DetokenizerTest, ARequestThatDoesNotStreamGetsOneChunk) {
    const std::vector<TokenId> tokens = encode(kStory);
    const std::vector<messages::OutputChunk> chunks = run({.stream = false}, tokens);
    ASSERT_EQ(chunks.size(), 1u);
    EXPECT_EQ(chunks[0].text, kStory);
    EXPECT_EQ(chunks[0].tokens, tokens);
    ASSERT_EQ(chunks[0].spans.size(), 1u);
    EXPECT_EQ(chunks[0].spans[0].tokens, static_cast<std::int64_t>(tokens.size()));
    expect_in_step(chunks);
}

TEST_F(DetokenizerTest, ARequestThatDoesNotStreamAndIsAbortedGetsWhatThereIs) {
    const std::vector<messages::OutputChunk> chunks =
        run({.stream = false}, encode("One day"), {.reason = messages::FinishReason::kAbort});
    ASSERT_EQ(chunks.size(), 1u);
    EXPECT_EQ(chunks[0].text, "One day");
    EXPECT_EQ(chunks[0].finish->reason, messages::FinishReason::kAbort);
}

TEST_F(DetokenizerTest, WithoutTextOutputTokensPassThrough) {
    const std::vector<messages::OutputChunk> chunks = run({.text_output = false}, encode(kStory));
    EXPECT_EQ(text_of(chunks), "");
    EXPECT_EQ(tokens_of(chunks), encode(kStory).size());
}

TEST_F(DetokenizerTest, ACodePointThatBeginsInThePromptIsCompletedByTheOutput) {
    const std::vector<TokenId> tokens = encode("a\U0001F600b");
    ASSERT_GT(tokens.size(), 4u);
    messages::TextOptions options;
    options.prompt_tail.assign(tokens.begin(), tokens.begin() + 2);
    const std::vector<TokenId> output(tokens.begin() + 2, tokens.end());
    EXPECT_EQ(text_of(run(options, output)), "\U0001F600b");
}

TEST_F(DetokenizerTest, AChunkWhoseStartWasLostIsAnErrorNotAHang) {
    const messages::TextBatch text =
        detokenizer_.turn(batch_of(chunk_of(RequestKey{9}, encode("x"))));
    ASSERT_EQ(text.chunks.size(), 1u);
    EXPECT_EQ(text.chunks[0].finish->reason, messages::FinishReason::kError);
    EXPECT_EQ(text.stopped, std::vector<RequestKey>{RequestKey{9}});
}

TEST_F(DetokenizerTest, HeldOutputIsBounded) {
    messages::TokenBatch start;
    start.starts.push_back({RequestKey{7}, {.stream = false}});
    EXPECT_TRUE(detokenizer_.turn(std::move(start)).chunks.empty());
    const std::vector<TokenId> many(1 << 16, encode("a").front());
    std::size_t num_chunks = 0;
    for (int i = 0; i < 16; ++i) {
        num_chunks += detokenizer_.turn(batch_of(chunk_of(RequestKey{7}, many))).chunks.size();
    }
    EXPECT_GT(num_chunks, 1u);
}

TEST_F(DetokenizerTest, RequestsAreNotMixedUp) {
    messages::TokenBatch batch;
    const std::vector<TokenId> tokens = encode(kStory);
    for (std::uint64_t key = 1; key <= 3; ++key) {
        batch.starts.push_back({RequestKey{key}, {}});
        batch.chunks.push_back(chunk_of(RequestKey{key}, std::span(tokens).subspan(key, 2)));
    }
    const messages::TextBatch text = detokenizer_.turn(std::move(batch));
    ASSERT_EQ(text.chunks.size(), 3u);
    for (std::uint64_t key = 1; key <= 3; ++key) {
        const messages::OutputChunk& chunk = text.chunks[key - 1];
        EXPECT_EQ(chunk.key, RequestKey{key});
        EXPECT_EQ(
            chunk.text,
            *tokenizer_->decode(std::span(tokens).subspan(key, 2), text::SkipSpecial::kYes)
        );
    }
}

}  // namespace
}  // namespace pitstop::detokenizer
