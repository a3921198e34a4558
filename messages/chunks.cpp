#include "messages/chunks.h"

#include "base/check.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace pitstop::messages {
namespace {

template <class T>
void append(std::vector<T>& whole, std::vector<T>&& next) {
    if (whole.empty()) {
        whole = std::move(next);
    } else {
        whole.insert(
            whole.end(), std::make_move_iterator(next.begin()), std::make_move_iterator(next.end())
        );
    }
}

// Keeps the spans run-length encoded: a span that continues the last one extends that one.
void append_spans(std::vector<Span>& whole, std::vector<Span>&& next) {
    for (Span& span : next) {
        if (!whole.empty()) {
            Span like_last = whole.back();
            like_last.tokens = span.tokens;
            if (like_last == span) {
                whole.back().tokens += span.tokens;
                continue;
            }
        }
        whole.push_back(std::move(span));
    }
}

// Keeps the entries of the first num_kept of num_tokens tokens. All tokens have the same number of
// entries.
template <class T>
void keep_share(std::vector<T>& values, std::size_t num_kept, std::size_t num_tokens) {
    if (num_tokens > 0) values.resize(values.size() / num_tokens * num_kept);
}

constexpr std::size_t kNumberBytes = 5;   // the bytes of an int32 or a float32 in msgpack
constexpr std::size_t kChunkBytes = 512;  // for field names, counts, headers of strings and arrays
constexpr std::size_t kSpanBytes = 128;

std::size_t bytes_of(const std::optional<AdapterVersion>& adapter) {
    if (!adapter) return 0;
    return kSpanBytes + adapter->name.size() + adapter->label.size() + adapter->digest.size();
}

}  // namespace

void append_chunk(OutputChunk& whole, OutputChunk next) {
    whole.text += next.text;
    append(whole.tokens, std::move(next.tokens));
    append(whole.logprobs, std::move(next.logprobs));
    append(whole.ranks, std::move(next.ranks));
    append(whole.top_ids, std::move(next.top_ids));
    append(whole.top_logprobs, std::move(next.top_logprobs));
    append(whole.ids_logprobs, std::move(next.ids_logprobs));
    append_spans(whole.spans, std::move(next.spans));
    if (next.prompt && !whole.prompt) {
        whole.prompt = std::move(next.prompt);
    } else if (next.prompt) {
        append(whole.prompt->logprobs, std::move(next.prompt->logprobs));
        append(whole.prompt->ranks, std::move(next.prompt->ranks));
        append(whole.prompt->top_ids, std::move(next.prompt->top_ids));
        append(whole.prompt->top_logprobs, std::move(next.prompt->top_logprobs));
        append(whole.prompt->ids_logprobs, std::move(next.prompt->ids_logprobs));
    }
    append_routes(whole.routes, std::move(next.routes));
    append_supports(whole.supports, std::move(next.supports));
    append(whole.prompt_ids, std::move(next.prompt_ids));
    if (next.counts) whole.counts = next.counts;
    if (next.adapter) whole.adapter = std::move(next.adapter);
    if (next.finish) whole.finish = std::move(next.finish);
}

void keep_tokens(OutputChunk& chunk, std::size_t num_tokens) {
    const std::size_t num_before = chunk.tokens.size();
    CHECK(num_tokens <= num_before);
    chunk.tokens.resize(num_tokens);
    keep_share(chunk.logprobs, num_tokens, num_before);
    keep_share(chunk.ranks, num_tokens, num_before);
    keep_share(chunk.top_ids, num_tokens, num_before);
    keep_share(chunk.top_logprobs, num_tokens, num_before);
    keep_share(chunk.ids_logprobs, num_tokens, num_before);
    if (chunk.routes) {  // the last rows belong to the removed tokens
        const auto num_cut = static_cast<std::int64_t>(num_before - num_tokens);
        chunk.routes->keep(std::max<std::int64_t>(chunk.routes->num_rows() - num_cut, 0));
    }
    if (chunk.supports) chunk.supports->keep(num_tokens);
    auto left = static_cast<std::int64_t>(num_tokens);
    std::size_t num_spans = 0;
    for (Span& span : chunk.spans) {
        if (left <= 0) break;
        span.tokens = std::min(span.tokens, left);
        left -= span.tokens;
        ++num_spans;
    }
    chunk.spans.resize(num_spans);
}

std::size_t bytes_bound(const OutputChunk& chunk) {
    std::size_t num_numbers = chunk.tokens.size() + chunk.logprobs.size() + chunk.ranks.size() +
                              chunk.top_ids.size() + chunk.top_logprobs.size() +
                              chunk.ids_logprobs.size();
    if (chunk.prompt) {
        num_numbers += chunk.prompt->logprobs.size() + chunk.prompt->ranks.size() +
                       chunk.prompt->top_ids.size() + chunk.prompt->top_logprobs.size() +
                       chunk.prompt->ids_logprobs.size();
    }
    if (chunk.supports) num_numbers += chunk.supports->ids.size() + 2 * chunk.tokens.size();
    num_numbers += chunk.prompt_ids.size();
    std::size_t num_bytes =
        kChunkBytes + chunk.rid.size() + chunk.text.size() + num_numbers * kNumberBytes;
    if (chunk.routes) {
        num_bytes += chunk.routes->experts.values.size() + chunk.routes->spans.size() * kSpanBytes;
    }
    for (const Span& span : chunk.spans) {
        num_bytes += kSpanBytes + span.label.size() + span.digest.size() + bytes_of(span.adapter);
    }
    num_bytes += bytes_of(chunk.adapter);
    if (chunk.finish) {
        num_bytes += chunk.finish->matched_text.size() + chunk.finish->verdict.message.size();
    }
    return num_bytes;
}

}  // namespace pitstop::messages
