#include "http_proc/sglang/output.h"

#include "base/time.h"
#include "http_proc/format/sampling_masks.h"
#include "http_proc/format/versions.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace pitstop::http {
namespace {

std::string list_of(const std::string& entries) { return "[" + entries + "]"; }

double unix_seconds() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
        .count();
}

}  // namespace

// Appends [logprob, id, text or null].
void SglangOutput::append_entry(List& list, std::optional<float> logprob, TokenId id) const {
    std::string& json = list.next();
    json += '[';
    if (logprob) {
        append_json_logprob(json, *logprob);
    } else {
        json += "null";
    }
    fmt::format_to(std::back_inserter(json), ",{},", raw(id));
    if (args_.texts != nullptr) {
        append_json_string(json, args_.texts->of(id));
    } else {
        json += "null";
    }
    json += ']';
}

// Appends one position, as a list of entries.
void SglangOutput::append_entries(
    List& list,
    const std::vector<float>& logprobs,
    const std::vector<TokenId>& ids,
    std::size_t begin,
    std::size_t count
) const {
    List entries;
    for (std::size_t k = 0; k < count; ++k) append_entry(entries, logprobs[begin + k], ids[k]);
    list.next() += list_of(entries.json);
}

void SglangOutput::append_prompt(const messages::PromptLogprobs& prompt) {
    const auto num_top = static_cast<std::size_t>(args_.logprobs.top);
    const std::size_t num_ids = args_.logprobs.ids.size();
    const auto first = static_cast<std::size_t>(args_.logprobs.prompt_start.value_or(0));
    const auto start = static_cast<std::size_t>(prompt.start);
    for (std::size_t i = first; i < args_.prompt_ids.size(); ++i) {
        if (i < start || i - start >= prompt.logprobs.size()) {  // token 0 has no logprob
            append_entry(input_logprobs_, std::nullopt, args_.prompt_ids[i]);
            if (num_top > 0) input_top_.next() += "null";
            if (num_ids > 0) input_of_ids_.next() += "null";
            continue;
        }
        const std::size_t at = i - start;
        append_entry(input_logprobs_, prompt.logprobs[at], args_.prompt_ids[i]);
        if (num_top > 0) {
            const auto begin = prompt.top_ids.begin() + static_cast<std::ptrdiff_t>(at * num_top);
            const std::vector<TokenId> ids(begin, begin + static_cast<std::ptrdiff_t>(num_top));
            append_entries(input_top_, prompt.top_logprobs, ids, at * num_top, num_top);
        }
        if (num_ids > 0) {
            append_entries(
                input_of_ids_, prompt.ids_logprobs, args_.logprobs.ids, at * num_ids, num_ids
            );
        }
    }
}

void SglangOutput::append(messages::OutputChunk chunk) {
    text_ += chunk.text;
    const auto num_top = static_cast<std::size_t>(args_.logprobs.top);
    const std::size_t num_ids = args_.logprobs.ids.size();
    for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
        fmt::format_to(std::back_inserter(ids_.next()), "{}", raw(chunk.tokens[i]));
        if (!args_.logprobs.enabled) continue;
        append_entry(logprobs_, chunk.logprobs[i], chunk.tokens[i]);
        if (num_top > 0) {
            const auto begin = chunk.top_ids.begin() + static_cast<std::ptrdiff_t>(i * num_top);
            const std::vector<TokenId> ids(begin, begin + static_cast<std::ptrdiff_t>(num_top));
            append_entries(top_, chunk.top_logprobs, ids, i * num_top, num_top);
        }
        if (num_ids > 0)
            append_entries(of_ids_, chunk.ids_logprobs, args_.logprobs.ids, i * num_ids, num_ids);
    }
    if (chunk.supports) {
        append_masks(masks_.json, *chunk.supports);
        for (const float logprob : chunk.supports->logprobs)
            append_json_logprob(mask_logprobs_.next(), logprob);
    }
    num_tokens_ += static_cast<std::int64_t>(chunk.tokens.size());
    // Only the tree knows the whole prompt of a session's turn.
    if (!chunk.prompt_ids.empty()) args_.prompt_ids = std::move(chunk.prompt_ids);
    if (chunk.prompt) append_prompt(*chunk.prompt);
    append_spans(spans_, std::move(chunk.spans));
    routes_.append(std::move(chunk.routes));
    if (!spans_.empty()) current_ = spans_.back();
    if (chunk.counts) counts_ = *chunk.counts;
    if (chunk.adapter) adapter_ = std::move(chunk.adapter);
    if (chunk.finish) finish_ = std::move(chunk.finish);
}

void SglangOutput::write_finish(JsonWriter& json) const {
    if (!finish_) {
        json.null();
        return;
    }
    json.begin_object();
    // SGLang checks the length first: a stop at the last possible token is reported as length.
    const bool is_full = num_tokens_ == args_.max_new_tokens;
    const bool is_stop = finish_->reason == messages::FinishReason::kStop;
    switch (is_stop && is_full ? messages::FinishReason::kLength : finish_->reason) {
        case messages::FinishReason::kLength:
            json.key("type").string("length").key("length").integer(num_tokens_);
            break;
        case messages::FinishReason::kStop:
            json.key("type").string("stop").key("matched");
            if (finish_->matched_token) {
                json.integer(raw(*finish_->matched_token));
            } else {
                json.string(finish_->matched_text);
            }
            break;
        case messages::FinishReason::kAbort:
            if (finish_->was_waiting) {  // only these two members, with these words, as in SGLang
                json.key("type").string("abort").key("message").string("Abort in waiting queue");
                break;
            }
            [[fallthrough]];
        case messages::FinishReason::kError:
            json.key("type").string("abort").key("message").string(finish_->verdict.message);
            json.key("status_code").null().key("err_type").null();
            break;
    }
    json.end_object();
}

// Writes the spans; a request that ended before its first token has one empty span.
void SglangOutput::write_versions(JsonWriter& json) const {
    std::vector<messages::Span> spans = spans_;
    if (spans.empty()) {
        spans.push_back(current_);
        spans.back().tokens = 0;
    }
    json.key("weight_versions");
    write_weight_versions(json, spans);
    json.key("weight_version_spans");
    write_version_spans(json, spans);
}

// Writes SGLang's members. SGLang verifies drafts in every pass; here plain passes count, too.
void SglangOutput::write_drafts(JsonWriter& json, const messages::DraftCounts& drafts) const {
    const auto ratio = [](std::int64_t a, std::int64_t b) {
        return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0.0;
    };
    json.key("spec_verify_ct").integer(drafts.passes);
    json.key("spec_accept_length").number(ratio(num_tokens_, drafts.passes));
    json.key("spec_accept_rate").number(ratio(drafts.accepted, drafts.drafted));
    json.key("spec_num_proposed_drafts").integer(drafts.drafted);
    json.key("spec_num_correct_drafts").integer(drafts.accepted);
}

// Writes how much of the previous turn was computed again: at least its last token and the part of
// a page before it.
void SglangOutput::write_turn(JsonWriter& json) const {
    const std::int64_t history = counts_.history_tokens;
    json.key("session_tokens").integer(history);
    json.key("recomputed_tokens")
        .integer(std::max<std::int64_t>(history - counts_.cached_tokens, 0));
    json.key("stale_tokens").integer(counts_.stale_tokens);
}

void SglangOutput::write_meta(JsonWriter& json) {
    json.begin_object().key("id").string(args_.rid);
    json.key("finish_reason");
    write_finish(json);
    json.key("prompt_tokens").integer(counts_.prompt_tokens);
    json.key("weight_version").string(version_name(current_.epoch, current_.label));
    json.key("num_retractions").integer(counts_.retractions);
    json.key("total_retractions").integer(counts_.retractions);
    if (args_.logprobs.enabled) {
        if (args_.shows_logprobs_mode)
            json.key("logprobs_mode").string(messages::name_of(args_.logprobs.mode));
        json.key("input_token_logprobs").raw_list(input_logprobs_.json);
        json.key("output_token_logprobs").raw_list(logprobs_.json);
        json.key("output_token_logprobs_length").integer(num_tokens_);
        if (args_.logprobs.top > 0) {
            json.key("input_top_logprobs").raw_list(input_top_.json);
            json.key("output_top_logprobs").raw_list(top_.json);
        }
        if (!args_.logprobs.ids.empty()) {
            json.key("input_token_ids_logprobs").raw_list(input_of_ids_.json);
            json.key("output_token_ids_logprobs").raw_list(of_ids_.json);
        }
    }
    if (args_.logprobs.support) {
        json.key("output_token_sampling_mask").raw_list(masks_.json);
        json.key("output_token_sampling_logprobs").raw_list(mask_logprobs_.json);
        json.key("output_token_sampling_mask_length").integer(num_tokens_);
    }
    json.key("completion_tokens").integer(num_tokens_);
    json.key("cached_tokens").integer(counts_.cached_tokens).key("cached_tokens_details").null();
    if (args_.is_turn) write_turn(json);
    if (counts_.replayed_tokens > 0) json.key("replayed_tokens").integer(counts_.replayed_tokens);
    if (counts_.drafts) write_drafts(json, *counts_.drafts);
    json.key("reasoning_tokens").integer(0);
    json.key("dp_rank").integer(counts_.replica);
    if (adapter_) {
        json.key("adapter");
        write_adapter_version(json, *adapter_);
    }
    if (is_done()) write_versions(json);
    if (routes_.has_part(is_done()))
        routes_.write(json, counts_.prompt_tokens + num_tokens_, is_done());
    if (is_done()) {
        json.key("e2e_latency").number(seconds(Clock::now() - args_.start));
        json.key("response_sent_to_client_ts").number(unix_seconds());
    }
    json.end_object();
}

void SglangOutput::write(JsonWriter& json) {
    json.begin_object().key("text").string(text_);
    json.key("output_ids").raw_list(ids_.json);
    if (args_.shows_prompt_ids) {
        json.key("prompt_token_ids").ids(args_.prompt_ids);
    }
    json.key("meta_info");
    write_meta(json);
    if (args_.index) json.key("index").integer(static_cast<std::int64_t>(*args_.index));
    json.end_object();
    if (!args_.is_incremental) return;
    text_.clear();
    for (List* list : {&ids_, &logprobs_, &top_, &of_ids_, &masks_, &mask_logprobs_})
        list->json.clear();
}

}  // namespace pitstop::http
