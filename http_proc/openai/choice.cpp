#include "http_proc/openai/choice.h"

#include "http_proc/format/versions.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace pitstop::http {
namespace {

// Returns part `i` of `values`, whose parts have `count` entries each.
template <class T>
std::span<const T> part_of(const std::vector<T>& values, std::size_t i, std::size_t count) {
    return std::span(values).subspan(i * count, count);
}

// Returns the rank; nothing if the tree does not report ranks.
std::optional<std::int64_t> rank_of(const std::vector<std::int32_t>& ranks, std::size_t i) {
    if (i >= ranks.size() || ranks[i] < 1) return std::nullopt;
    return ranks[i];
}

std::size_t num_shown(std::int64_t num_top, const messages::LogprobOptions& options) {
    return static_cast<std::size_t>(std::min(num_top, options.top));
}

}  // namespace

TokenLogprob output_logprob(
    const messages::OutputChunk& chunk, std::size_t i, const ShownLogprobs& shown
) {
    const messages::LogprobOptions& options = shown.asked;
    const std::size_t num = num_shown(shown.output_top, options);
    const auto num_top = static_cast<std::size_t>(options.top);
    const std::size_t num_ids = options.ids.size() - shown.num_hidden_ids;
    return {
        .id = chunk.tokens[i],
        .logprob = chunk.logprobs[i],
        .rank = rank_of(chunk.ranks, i),
        .top_ids = part_of(chunk.top_ids, i, num_top).first(num),
        .top_logprobs = part_of(chunk.top_logprobs, i, num_top).first(num),
        .asked_ids = std::span(options.ids).first(num_ids),
        .asked_logprobs = part_of(chunk.ids_logprobs, i, options.ids.size()).first(num_ids)};
}

TokenLogprob prompt_logprob(
    const messages::PromptLogprobs& prompt,
    std::span<const TokenId> ids,
    std::size_t i,
    const messages::LogprobOptions& options,
    std::int64_t num_top_shown
) {
    const auto start = static_cast<std::size_t>(prompt.start);
    TokenLogprob position{.id = ids[i]};
    if (i < start || i - start >= prompt.logprobs.size()) return position;
    const auto num_top = static_cast<std::size_t>(options.top);
    const std::size_t num = num_shown(num_top_shown, options);
    position.logprob = prompt.logprobs[i - start];
    position.rank = rank_of(prompt.ranks, i - start);
    position.top_ids = part_of(prompt.top_ids, i - start, num_top).first(num);
    position.top_logprobs = part_of(prompt.top_logprobs, i - start, num_top).first(num);
    position.asked_ids = options.ids;
    position.asked_logprobs = part_of(prompt.ids_logprobs, i - start, options.ids.size());
    return position;
}

std::string TokenNames::of(TokenId id) const {
    if (texts_ == nullptr) return fmt::format("token_id:{}", raw(id));
    return std::string(texts_->of(id));
}

std::string TokenNames::bytes_of(TokenId id) const {
    return texts_ == nullptr ? of(id) : std::string(texts_->bytes_of(id));
}

void CompletionLogprobs::add(const TokenLogprob& position, std::int64_t offset) {
    tokens_.string(names_.of(position.id));
    offsets_.integer(offset);
    if (!position.logprob) {
        logprobs_.null();
        top_.null();
        return;
    }
    logprobs_.logprob(*position.logprob);
    // The keys of the object are texts: of tokens with the same text, only the most probable is
    // shown.
    std::set<std::string> shown;
    std::string entries;
    const auto show = [&](TokenId id, float logprob) {
        const std::string text = names_.of(id);
        if (!shown.insert(text).second) return;
        if (!entries.empty()) entries += ',';
        append_json_string(entries, text);
        entries += ':';
        append_json_logprob(entries, logprob);
    };
    for (std::size_t k = 0; k < position.top_ids.size(); ++k)
        show(position.top_ids[k], position.top_logprobs[k]);
    show(position.id, *position.logprob);
    for (std::size_t k = 0; k < position.asked_ids.size(); ++k)
        show(position.asked_ids[k], position.asked_logprobs[k]);
    top_.raw("{" + entries + "}");
}

void CompletionLogprobs::write(JsonWriter& json) const {
    json.begin_object().key("text_offset").raw("[" + offsets_.text() + "]");
    json.key("token_logprobs").raw("[" + logprobs_.text() + "]");
    json.key("tokens").raw("[" + tokens_.text() + "]");
    json.key("top_logprobs").raw("[" + top_.text() + "]").end_object();
}

void write_logprob_entries(
    JsonWriter& json,
    const messages::OutputChunk& chunk,
    const ShownLogprobs& shown,
    const TokenNames& names
) {
    const auto begin_entry = [&](TokenId id, float logprob) {
        json.begin_object().key("token").string(names.of(id)).key("logprob").logprob(logprob);
        json.key("bytes").begin_array();
        for (const char c : names.bytes_of(id)) json.integer(static_cast<unsigned char>(c));
        json.end_array();
    };
    for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
        const TokenLogprob position = output_logprob(chunk, i, shown);
        begin_entry(position.id, *position.logprob);
        json.key("top_logprobs").begin_array();
        const auto show = [&](TokenId id, float logprob) {
            begin_entry(id, logprob);
            json.end_object();
        };
        if (!position.asked_ids.empty()) show(position.id, *position.logprob);
        for (std::size_t k = 0; k < position.asked_ids.size(); ++k)
            if (position.asked_ids[k] != position.id)
                show(position.asked_ids[k], position.asked_logprobs[k]);
        for (std::size_t k = 0; k < position.top_ids.size() && position.asked_ids.empty(); ++k)
            show(position.top_ids[k], position.top_logprobs[k]);
        json.end_array().end_object();
    }
}

void write_logprobs_mode(JsonWriter& json, const OpenAiOptions& options, bool has_grammar) {
    if (options.names_logprobs_mode || has_grammar)
        json.key("logprobs_mode").string(messages::name_of(options.logprobs_mode));
}

void write_prompt_logprobs(
    JsonWriter& json,
    const messages::PromptLogprobs& prompt,
    std::span<const TokenId> ids,
    const ShownLogprobs& shown,
    const TokenNames& names
) {
    json.begin_array();
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const TokenLogprob position = prompt_logprob(prompt, ids, i, shown.asked, shown.prompt_top);
        if (!position.logprob) {
            json.null();
            continue;
        }
        json.begin_object();
        const auto show = [&](TokenId id, float logprob, std::optional<std::int64_t> rank) {
            json.key(fmt::format("{}", raw(id))).begin_object();
            json.key("logprob").logprob(logprob).key("rank");
            rank ? json.integer(*rank) : json.null();
            json.key("decoded_token").string(names.of(id)).end_object();
        };
        const bool is_top =
            std::ranges::find(position.top_ids, position.id) != position.top_ids.end();
        if (!is_top) show(position.id, *position.logprob, position.rank);
        for (std::size_t k = 0; k < position.top_ids.size(); ++k) {
            show(position.top_ids[k], position.top_logprobs[k], static_cast<std::int64_t>(k) + 1);
        }
        json.end_object();
    }
    json.end_array();
}

void write_finish(
    JsonWriter& json,
    const messages::Finish* finish,
    std::span<const TokenId> eos_ids,
    std::string_view stop
) {
    json.key("finish_reason");
    if (finish == nullptr) {
        json.null().key("stop_reason").null();
        return;
    }
    const bool is_stop = finish->reason == messages::FinishReason::kStop;
    json.string(is_stop ? stop : name_of(finish->reason));
    json.key("stop_reason");  // vLLM's; null for the end token
    if (is_stop && !finish->matched_text.empty()) {
        json.string(finish->matched_text);
    } else if (is_stop && finish->matched_token && std::ranges::count(eos_ids, *finish->matched_token) == 0) {
        json.integer(raw(*finish->matched_token));
    } else {
        json.null();
    }
    json.key("matched_stop");  // SGLang's
    if (is_stop && finish->matched_token) {
        json.integer(raw(*finish->matched_token));
    } else if (is_stop) {
        json.string(finish->matched_text);
    } else {
        json.null();
    }
}

void write_event_usage(JsonWriter& json, const OpenAiOptions& options, const Usage& usage) {
    if (options.wants_usage_always) {
        json.key("usage");
        write_usage(json, usage);
    } else if (options.wants_usage) {
        json.key("usage").null();
    }
}

void write_last_usage(JsonWriter& json, const Usage& usage) {
    json.key("choices").begin_array().end_array().key("usage");
    write_usage(json, usage);
    json.end_object();
}

void write_versions(JsonWriter& json, std::span<const messages::Span> spans) {
    json.key("metadata").begin_object();
    const messages::Span last = spans.empty() ? messages::Span{} : spans.back();
    json.key("weight_version").string(version_name(last.epoch, last.label));
    json.end_object();
    write_version_members(json, spans);
}

void write_usage(JsonWriter& json, const Usage& usage) {
    json.begin_object().key("prompt_tokens").integer(usage.prompt_tokens);
    json.key("completion_tokens").integer(usage.completion_tokens);
    json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens);
    json.key("prompt_tokens_details").begin_object();
    json.key("cached_tokens").integer(usage.cached_tokens);
    if (usage.replayed_tokens > 0) json.key("replayed_tokens").integer(usage.replayed_tokens);
    json.end_object();
    if (usage.thinking_tokens) {
        json.key("completion_tokens_details").begin_object();
        json.key("reasoning_tokens").integer(*usage.thinking_tokens).end_object();
        json.key("reasoning_tokens").integer(*usage.thinking_tokens);  // SGLang's name of the count
    }
    json.end_object();
}

}  // namespace pitstop::http
