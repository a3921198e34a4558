#include "messages/chunks.h"

#include <gtest/gtest.h>

namespace pitstop::messages {
namespace {

Span span(std::int64_t epoch, std::int64_t tokens, std::int64_t kv_min_epoch = 1) {
    return {.epoch = Epoch{epoch}, .tokens = tokens, .kv_min_epoch = Epoch{kv_min_epoch}};
}

// n tokens with two entries per token in the top arrays and three in ids_logprobs.
OutputChunk chunk_of(int first, int num_tokens, std::vector<Span> spans) {
    OutputChunk chunk;
    for (int i = first; i < first + num_tokens; ++i) {
        chunk.text += static_cast<char>('a' + i);
        chunk.tokens.push_back(TokenId{i});
        chunk.logprobs.push_back(static_cast<float>(-i));
        for (int k = 0; k < 2; ++k) {
            chunk.top_ids.push_back(TokenId{10 * i + k});
            chunk.top_logprobs.push_back(static_cast<float>(-10 * i - k));
        }
        for (int k = 0; k < 3; ++k) chunk.ids_logprobs.push_back(static_cast<float>(100 * i + k));
        DrawSupport support{.num_ids = i, .logprob = static_cast<float>(-i)};
        for (int k = 0; k < i; ++k) support.ids.push_back(TokenId{k});
        if (!chunk.supports) chunk.supports.emplace();
        chunk.supports->append(support);
    }
    chunk.spans = std::move(spans);
    return chunk;
}

TEST(Chunks, P3_JoinedChunksAreWhatOneChunkWouldHaveBeen) {
    OutputChunk whole = chunk_of(0, 2, {span(1, 2)});
    append_chunk(whole, chunk_of(2, 3, {span(1, 1), span(2, 2)}));
    append_chunk(whole, chunk_of(5, 1, {span(2, 1)}));
    EXPECT_EQ(whole, chunk_of(0, 6, {span(1, 3), span(2, 3)}));
}

TEST(Chunks, P3_SpansOfDifferentKvAreNotJoined) {
    OutputChunk whole = chunk_of(0, 1, {span(2, 1, /*kv_min_epoch=*/1)});
    append_chunk(whole, chunk_of(1, 1, {span(2, 1, /*kv_min_epoch=*/2)}));
    EXPECT_EQ(whole.spans.size(), 2u);
}

TEST(Chunks, TheIdStaysAndCountsAndFinishAreTheLast) {
    OutputChunk whole;
    whole.rid = "mine";
    whole.counts = RequestCounts{.prompt_tokens = 3, .completion_tokens = 1};
    append_chunk(whole, chunk_of(0, 1, {span(1, 1)}));
    EXPECT_EQ(whole.counts->completion_tokens, 1);
    OutputChunk last;
    last.counts = RequestCounts{.prompt_tokens = 3, .completion_tokens = 2};
    last.finish = Finish{.reason = FinishReason::kLength};
    append_chunk(whole, last);
    EXPECT_EQ(whole.rid, "mine");
    EXPECT_EQ(whole.counts->completion_tokens, 2);
    EXPECT_EQ(whole.finish->reason, FinishReason::kLength);
}

TEST(Chunks, PromptLogprobsInPiecesAreJoined) {
    OutputChunk whole;
    whole.prompt = PromptLogprobs{.start = 4, .logprobs = {-1.f}};
    OutputChunk next;
    next.prompt = PromptLogprobs{.start = 5, .logprobs = {-2.f, -3.f}};
    append_chunk(whole, next);
    EXPECT_EQ(whole.prompt->start, 4);
    EXPECT_EQ(whole.prompt->logprobs, (std::vector<float>{-1.f, -2.f, -3.f}));
}

TEST(Chunks, P3_KeepingTokensKeepsAllThatBelongsToThemAndNoMore) {
    for (int num_kept = 0; num_kept <= 5; ++num_kept) {
        SCOPED_TRACE(num_kept);
        OutputChunk chunk = chunk_of(0, 5, {span(1, 2), span(2, 3)});
        keep_tokens(chunk, static_cast<std::size_t>(num_kept));
        OutputChunk expected = chunk_of(0, num_kept, {});
        if (!expected.supports) expected.supports.emplace();
        if (num_kept > 0) expected.spans.push_back(span(1, std::min(num_kept, 2)));
        if (num_kept > 2) expected.spans.push_back(span(2, num_kept - 2));
        expected.text = chunk.text;  // unchanged
        EXPECT_EQ(chunk, expected);
    }
}

// Rows of two bytes each: token i has {i, 2i}.
Routes routes_of(std::int64_t start, std::int64_t num, std::vector<RouteSpan> spans) {
    Routes routes{.start = start, .shape = {.layers = 2, .per_token = 1, .num_experts = 256}};
    for (std::int64_t i = start; i < start + num; ++i) {
        routes.experts.values.push_back(static_cast<std::uint8_t>(i));
        routes.experts.values.push_back(static_cast<std::uint8_t>(2 * i));
    }
    routes.spans = std::move(spans);
    return routes;
}

TEST(Chunks, P3_RoutesAreJoinedAndGoWithTheirTokens) {
    OutputChunk whole = chunk_of(0, 1, {span(1, 1)});
    whole.routes = routes_of(4, 3, {{Epoch{1}, 3}});  // rows of the prompt and of the first token
    OutputChunk next = chunk_of(1, 2, {span(1, 1), span(2, 1)});
    next.routes = routes_of(7, 2, {{Epoch{1}, 1}, {Epoch{2}, 1}});
    append_chunk(whole, next);
    EXPECT_EQ(whole.routes, routes_of(4, 5, {{Epoch{1}, 4}, {Epoch{2}, 1}}));
    EXPECT_GE(bytes_bound(whole), bytes_bound(chunk_of(0, 3, {span(1, 2), span(2, 1)})) + 10);
    OutputChunk cut = whole;
    keep_tokens(cut, 2);
    EXPECT_EQ(cut.routes, routes_of(4, 4, {{Epoch{1}, 4}}));
    keep_tokens(whole, 0);
    EXPECT_EQ(whole.routes, routes_of(4, 2, {{Epoch{1}, 2}}));
    // The rows start after the prompt: the first token has no row.
    OutputChunk late = chunk_of(0, 2, {span(1, 2)});
    late.routes = routes_of(9, 1, {{Epoch{1}, 1}});
    keep_tokens(late, 0);
    EXPECT_EQ(late.routes->num_rows(), 0);
}

}  // namespace
}  // namespace pitstop::messages
