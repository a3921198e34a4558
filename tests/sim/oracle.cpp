#include "tests/sim/oracle.h"

#include "tests/sim/random.h"

#include <fmt/format.h>

#include <algorithm>

namespace pitstop::sim {

TokenId token_at(
    std::uint64_t seed,
    std::int64_t output_index,
    WeightsId weights,
    bool may_stop,
    const std::vector<TokenId>& stop_ids
) {
    const std::uint64_t h = hash_of(seed, output_index, static_cast<std::uint64_t>(weights));
    for (std::uint64_t i = 0;; ++i) {  // at most one turn around the vocabulary
        const auto id = static_cast<TokenId>(1 + (h + i) % (kVocab - 1));
        const bool is_stop = std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end();
        if (may_stop || !is_stop || i > kVocab) return id;
    }
}

float logprob_at(std::uint64_t seed, std::int64_t output_index, WeightsId weights) {
    return -static_cast<float>(
               hash_of(seed, output_index, static_cast<std::uint64_t>(weights), 7) % 100'000
           ) /
           1024.f;
}

float score_at(TokenId target, std::int64_t position, WeightsId weights, const Epochs& kv) {
    const std::uint64_t h = hash_of(
        raw(target), position, static_cast<std::uint64_t>(weights), hash_of(kv.min, kv.max), 9
    );
    return -static_cast<float>(h % 100'000) / 1024.f;
}

void Oracle::submitted(const messages::TokenizedRequest& request) {
    requests_.emplace(request.key, request);
}

void Oracle::announced(RequestKey key) {
    if (!requests_.contains(key))
        return fail(fmt::format("request {} was announced and never sent", raw(key)));
    if (!announced_.insert(key).second)
        fail(fmt::format("request {} was announced twice", raw(key)));
}

void Oracle::dropped(RequestKey key) {
    if (!silenced_.contains(key))
        fail(fmt::format("request {} was dropped though somebody waits for it (P4)", raw(key)));
}

void Oracle::emitted(const messages::OutputChunk& chunk) {
    const RequestKey key = chunk.key;
    if (auto problem = problem_of_turn(key)) return fail(*problem);
    const messages::TokenizedRequest& request = requests_.at(key);
    if (auto problem = problem_of_lengths(chunk, request)) return fail(*problem);

    std::size_t at = 0;
    for (const messages::Span& span : chunk.spans) {
        if (auto problem = problem_of_epochs(key, span)) return fail(*problem);
    }
    if (auto problem = problem_of_scores(chunk, request)) return fail(*problem);
    for (const messages::Span& span : chunk.spans) {
        count_epochs(key, span);
        for (std::int64_t k = 0; k < span.tokens; ++k, ++at) {
            if (auto problem = problem_of_output(chunk, at, span, request)) return fail(*problem);
            outputs_[key].push_back(chunk.tokens[at]);
            ++num_tokens_checked;
        }
    }
    if (auto problem = problem_of_routes(chunk)) return fail(*problem);
    if (chunk.counts) {
        if (auto problem = problem_of_counts(key, *chunk.counts)) return fail(*problem);
        if (chunk.counts->cached_tokens > 0) ++num_cache_hits;
        num_retractions_[key] = chunk.counts->retractions;
    }
    if (chunk.finish) {
        finished_.insert(key);
        check_finish(chunk, *chunk.finish);
    }
}

std::optional<std::string> Oracle::problem_of_turn(RequestKey key) const {
    if (!requests_.contains(key))
        return fmt::format("a chunk for request {}, which was never sent", raw(key));
    if (!announced_.contains(key))
        return fmt::format("a chunk for request {} before its start", raw(key));
    if (finished_.contains(key))
        return fmt::format("request {} got a chunk after its last (P4)", raw(key));
    return std::nullopt;
}

std::optional<std::string> Oracle::problem_of_lengths(
    const messages::OutputChunk& chunk, const messages::TokenizedRequest& request
) {
    std::int64_t num_in_spans = 0;
    for (const messages::Span& span : chunk.spans) num_in_spans += span.tokens;
    const auto num_tokens = static_cast<std::int64_t>(chunk.tokens.size());
    if (num_in_spans != num_tokens) {
        return fmt::format(
            "request {}: spans of {} tokens for {} tokens (P3)",
            raw(chunk.key),
            num_in_spans,
            num_tokens
        );
    }
    const std::size_t num_logprobs = request.logprobs.enabled ? chunk.tokens.size() : 0;
    if (chunk.logprobs.size() != num_logprobs) {
        return fmt::format(
            "request {}: {} logprobs for {} tokens (P3)",
            raw(chunk.key),
            chunk.logprobs.size(),
            num_tokens
        );
    }
    return std::nullopt;
}

std::optional<std::string> Oracle::problem_of_epochs(RequestKey key, const messages::Span& span)
    const {
    if (span.kv_min_epoch > span.kv_max_epoch || span.kv_max_epoch > span.epoch) {
        return fmt::format(
            "request {}: a span of epoch {} over KV [{}, {}]",
            raw(key),
            raw(span.epoch),
            raw(span.kv_min_epoch),
            raw(span.kv_max_epoch)
        );
    }
    if (!weights_.contains(span.epoch)) {
        return fmt::format(
            "request {}: a span of epoch {}, which was never live", raw(key), raw(span.epoch)
        );
    }
    const auto last = last_epoch_.find(key);
    if (last != last_epoch_.end() && span.epoch < last->second) {
        return fmt::format(
            "request {}: epoch {} after {}", raw(key), raw(span.epoch), raw(last->second)
        );
    }
    return std::nullopt;
}

std::optional<std::string> Oracle::problem_of_scores(
    const messages::OutputChunk& chunk, const messages::TokenizedRequest& request
) {
    const RequestKey key = chunk.key;
    const bool is_full = chunk.finish && chunk.finish->reason == messages::FinishReason::kLength;
    const bool is_first = outputs_[key].empty() && (!chunk.tokens.empty() || is_full);
    const bool is_due = is_first && request.logprobs.prompt_start.has_value();
    if (chunk.prompt.has_value() != is_due) {
        return fmt::format(
            "request {}: {} scores of its prompt", raw(key), is_due ? "no" : "unasked or late"
        );
    }
    if (!is_due) return std::nullopt;
    const auto prompt_len = static_cast<std::int64_t>(request.prompt.values.size());
    const std::int64_t start =
        std::min(std::max<std::int64_t>(*request.logprobs.prompt_start, 1), prompt_len);
    const auto num_scores = std::ssize(chunk.prompt->logprobs);
    if (chunk.prompt->start != start || num_scores != prompt_len - start ||
        std::ssize(chunk.prompt->ranks) != num_scores) {
        return fmt::format(
            "request {}: {} scores from {} on, for a prompt of {} scored from {} on",
            raw(key),
            num_scores,
            chunk.prompt->start,
            prompt_len,
            start
        );
    }
    if (chunk.spans.empty()) return fmt::format("request {}: scores of no version", raw(key));
    const Epoch epoch = chunk.spans.front().epoch;
    for (std::int64_t i = 0; i < num_scores; ++i) {
        const TokenId target = request.prompt.values[static_cast<std::size_t>(start + i)];
        const WeightsId weights = adapters_.with(weights_.at(epoch), chunk.spans.front().adapter);
        const float want = score_at(target, start + i - 1, weights, {raw(epoch), raw(epoch)});
        if (auto p = NotFiniteBook::problem_of_score(request, start + i, weights_.at(epoch)))
            return p;
        if (chunk.prompt->logprobs[static_cast<std::size_t>(i)] == want) continue;
        return fmt::format(
            "request {}: the score of prompt token {} is not epoch {}'s, over its KV alone (P3)",
            raw(key),
            start + i,
            raw(epoch)
        );
    }
    num_scores_checked += num_scores;
    if (scoring_epochs_[key].size() > 1) ++num_scorings_cut;
    return std::nullopt;
}

std::optional<std::string> Oracle::problem_of_no_output(const messages::OutputChunk& chunk) const {
    const RequestKey key = chunk.key;
    if (chunk.spans.size() != 1 || chunk.spans.front().tokens != 0)
        return fmt::format("request {}: no output, and {} spans", raw(key), chunk.spans.size());
    const messages::Span& span = chunk.spans.front();
    const auto kv = kv_of_prompt_.find(key);
    if (kv != kv_of_prompt_.end() &&
        kv->second == Epochs{raw(span.kv_min_epoch), raw(span.kv_max_epoch)})
        return std::nullopt;
    return fmt::format(
        "request {}: its prompt attended to other KV than of epochs [{}, {}] (P3)",
        raw(key),
        raw(span.kv_min_epoch),
        raw(span.kv_max_epoch)
    );
}

void Oracle::count_epochs(RequestKey key, const messages::Span& span) {
    const auto [last, is_first] = last_epoch_.try_emplace(key, span.epoch);
    if (!is_first && span.epoch != last->second) ++num_requests_split;
    last->second = span.epoch;
    if (span.kv_min_epoch != span.kv_max_epoch) ++num_spans_mixed;
}

std::optional<std::string> Oracle::problem_of_output(
    const messages::OutputChunk& chunk,
    std::size_t at,
    const messages::Span& span,
    const messages::TokenizedRequest& request
) {
    const RequestKey key = chunk.key;
    const std::size_t index = outputs_[key].size();
    const auto output_index = static_cast<std::int64_t>(index);
    const WeightsId weights = adapters_.with(weights_.at(span.epoch), span.adapter);
    const std::uint64_t seed = *request.sampling.seed;
    std::vector<TokenId> stop_ids = request.sampling.stop_token_ids;
    if (!request.sampling.ignore_eos) stop_ids.push_back(kEos);
    const bool may_stop = output_index >= request.sampling.min_new_tokens;
    const TokenId want = token_at(seed, output_index, weights, may_stop, stop_ids);
    if (chunk.tokens[at] != want) {
        return fmt::format(
            "request {}: output {} is {}, under epoch {} it must be {} (P3)",
            raw(key),
            index,
            raw(chunk.tokens[at]),
            raw(span.epoch),
            raw(want)
        );
    }
    if (request.logprobs.enabled && chunk.logprobs[at] != logprob_at(seed, output_index, weights)) {
        return fmt::format(
            "request {}: output {} has a logprob of another pass (P3)", raw(key), index
        );
    }
    if (auto problem = adapters_.problem_of(request, output_index, span)) return problem;
    const std::vector<Sampled>& passes = sampled_[key];
    if (index >= passes.size())
        return fmt::format("request {}: output {} was never sampled", raw(key), index);
    if (passes[index].token != want)
        return fmt::format("request {}: output {} is of a pass that gave none", raw(key), index);
    const Epochs kv = passes[index].kv;
    if (kv != Epochs{raw(span.kv_min_epoch), raw(span.kv_max_epoch)}) {
        return fmt::format(
            "request {}: output {} attended to KV of epochs [{}, {}], its span says [{}, {}] (P3)",
            raw(key),
            index,
            kv.min,
            kv.max,
            raw(span.kv_min_epoch),
            raw(span.kv_max_epoch)
        );
    }
    return std::nullopt;
}

std::optional<std::string> Oracle::problem_of_routes(const messages::OutputChunk& chunk) {
    const messages::TokenizedRequest& request = requests_.at(chunk.key);
    std::vector<TokenId> context = request.prompt.values;
    const std::vector<TokenId>& outputs = outputs_[chunk.key];
    context.insert(context.end(), outputs.begin(), outputs.end());
    const auto weights_at_epoch = [this](Epoch epoch) {
        const auto place = weights_.find(epoch);
        return place == weights_.end() ? WeightsId{} : place->second;
    };
    return routes_.problem_of(request, chunk, context, weights_at_epoch);
}

std::optional<std::string> Oracle::problem_of_counts(
    RequestKey key, const messages::RequestCounts& counts
) {
    const std::size_t num_outputs = outputs_[key].size();
    if (counts.completion_tokens != static_cast<std::int64_t>(num_outputs)) {
        return fmt::format(
            "request {}: completion_tokens is {} after {} tokens",
            raw(key),
            counts.completion_tokens,
            num_outputs
        );
    }
    if (counts.retractions < num_retractions_[key])
        return fmt::format("request {}: retractions went back", raw(key));
    return std::nullopt;
}

void Oracle::check_finish(const messages::OutputChunk& chunk, const messages::Finish& finish) {
    const RequestKey key = chunk.key;
    const messages::TokenizedRequest& request = requests_.at(key);
    const std::vector<TokenId>& outputs = outputs_[key];
    if (!chunk.counts) fail(fmt::format("request {}: no counts in the last chunk", raw(key)));
    switch (finish.reason) {
        case messages::FinishReason::kAbort:
            if (!abort_asked_.contains(key) && !is_mass_abort_allowed_) {
                fail(fmt::format("request {} was aborted and nobody asked for it (P4)", raw(key)));
            }
            break;
        case messages::FinishReason::kLength:
            if (outputs.empty()) {
                if (auto problem = problem_of_no_output(chunk)) fail(*problem);
            }
            if (request.sampling.max_new_tokens &&
                static_cast<std::int64_t>(outputs.size()) != *request.sampling.max_new_tokens) {
                fail(fmt::format(
                    "request {}: length after {} of {} tokens",
                    raw(key),
                    outputs.size(),
                    *request.sampling.max_new_tokens
                ));
            }
            break;
        case messages::FinishReason::kStop:
            if (outputs.empty() || !finish.matched_token ||
                *finish.matched_token != outputs.back()) {
                fail(fmt::format("request {}: stopped by what is not its last token", raw(key)));
            }
            break;
        case messages::FinishReason::kError:
            return check_error(key, finish.verdict);
    }
    const bool is_whole = finish.reason != messages::FinishReason::kAbort;
    if (auto p = not_finite_.problem_of_end(request, std::ssize(outputs)); p && is_whole) fail(*p);
}

void Oracle::check_error(RequestKey key, const messages::Verdict& verdict) {
    if (verdict.is_done() || verdict.message.empty())
        return fail(fmt::format("request {}: an error without words", raw(key)));
    const std::vector<TokenId>& outputs = outputs_[key];
    if (verdict.code != ErrorCode::kNotFinite) {
        if (outputs.empty() && !is_at_rest_) return;
        if (outputs.empty()) {
            if (auto p = adapters_.problem_of_refusal(requests_.at(key).adapter, verdict)) fail(*p);
            return;
        }
        return fail(fmt::format(
            "request {}: an error after {} tokens: {}", raw(key), outputs.size(), verdict.message
        ));
    }
    const auto weights_at = [this](Epoch epoch) -> std::optional<WeightsId> {
        const auto place = weights_.find(epoch);
        return place == weights_.end() ? std::nullopt : std::optional(place->second);
    };
    if (auto p =
            not_finite_.problem_of_error(requests_.at(key), outputs, verdict.message, weights_at))
        fail(*p);
}

std::vector<RequestKey> Oracle::unanswered() const {
    std::vector<RequestKey> keys;
    for (const auto& [key, request] : requests_) {
        if (!is_over(key)) keys.push_back(key);
    }
    return keys;
}

void Oracle::committed(Epoch epoch, WeightsId weights) {
    const auto [place, is_new] = weights_.try_emplace(epoch, weights);
    if (!is_new && place->second != weights)
        fail(fmt::format("epoch {} has two sets of weights (P2)", raw(epoch)));
}

void Oracle::voted(std::uint64_t update, int replica, int rank, bool is_ok) {
    if (is_ok) votes_[update].emplace(replica, rank);
}

void Oracle::commit_ordered(std::uint64_t update, int num_replicas, int tp) {
    const std::size_t num_votes = votes_[update].size();
    if (num_votes != static_cast<std::size_t>(num_replicas * tp)) {
        fail(fmt::format(
            "update {} is committed with {} of {} votes (P2)", update, num_votes, num_replicas * tp
        ));
    }
}

void Oracle::ran(
    int replica, int rank, StepId step, Epoch plan_epoch, Epoch live_epoch, WeightsId live
) {
    if (plan_epoch != live_epoch) {
        return fail(fmt::format(
            "replica {} rank {}: step {} was planned for epoch {}, live is {} (P1)",
            replica,
            rank,
            raw(step),
            raw(plan_epoch),
            raw(live_epoch)
        ));
    }
    const auto [place, is_new] = passes_.try_emplace({replica, step}, live_epoch, live);
    if (!is_new && place->second != std::pair(live_epoch, live)) {
        fail(
            fmt::format("replica {}: ranks ran step {} under two versions (P1)", replica, raw(step))
        );
    }
}

void Oracle::sampled(RequestKey key, std::int64_t index, TokenId token, Epochs kv) {
    std::vector<Sampled>& all = sampled_[key];
    if (index > static_cast<std::int64_t>(all.size()))
        return fail(
            fmt::format("request {}: output {} sampled after {}", raw(key), index, all.size())
        );
    if (index == static_cast<std::int64_t>(all.size())) all.emplace_back();
    all[static_cast<std::size_t>(index)] = {token, kv};
}

std::optional<TokenId> Oracle::context_token(RequestKey key, std::int64_t position) const {
    const messages::TokenizedRequest& request = requests_.at(key);
    const auto prompt_len = static_cast<std::int64_t>(request.prompt.values.size());
    if (position < prompt_len) return request.prompt.values[static_cast<std::size_t>(position)];
    const auto found = sampled_.find(key);
    const std::int64_t index = position - prompt_len;
    if (found == sampled_.end() || index >= static_cast<std::int64_t>(found->second.size()))
        return std::nullopt;
    return found->second[static_cast<std::size_t>(index)].token;
}

}  // namespace pitstop::sim
