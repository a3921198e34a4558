// Evaluates a finished step: tokens, scores, ends, pages; and makes the batch for the detokenizer.
#include "base/check.h"
#include "scheduler_proc/runner.h"

#include <utility>

namespace pitstop::scheduler {
namespace {

template <class T>
void append(std::vector<T>& to, std::span<const T> from) {
    to.insert(to.end(), from.begin(), from.end());
}

// Run-length encodes: equal neighbours become one span.
void append_span(std::vector<messages::Span>& spans, messages::Span span) {
    if (!spans.empty()) {
        messages::Span& last = spans.back();
        const std::int64_t tokens = std::exchange(span.tokens, last.tokens);
        if (last == span) {
            last.tokens += tokens;
            return;
        }
        span.tokens = tokens;
    }
    spans.push_back(std::move(span));
}

messages::Span span_of(const InFlightStep& step, const StepRow& row, std::int64_t tokens) {
    messages::Span span{
        .epoch = step.version.epoch,
        .label = step.version.label,
        .digest = step.version.digest,
        .tokens = tokens,
        .kv_min_epoch = row.kv.min,
        .kv_max_epoch = row.kv.max,
    };
    if (row.adapter) {
        span.adapter = step.adapters.at(*row.adapter);
        span.kv_min_adapter = row.kv_min_adapter;
    }
    return span;
}

void collect_scores(Request& request, const StepRow& row, const RowScores& scores) {
    if (row.num_scored == 0) return;
    // After the prompt's last position there is no token to score.
    const bool has_extra = row.end == request.progress.prompt_len();
    const auto num = static_cast<std::size_t>(row.num_scored - (has_extra ? 1 : 0));
    append(request.scores.logprobs, scores.logprobs.first(num));
    append(request.scores.ranks, scores.ranks.first(num));
    append(request.scores.top_ids, scores.top_ids.first(num * row.num_top));
    append(request.scores.top_logprobs, scores.top_logprobs.first(num * row.num_top));
    append(request.scores.ids_logprobs, scores.ids_logprobs.first(num * row.num_ids));
}

// Moves the request's routes that no chunk has reported yet into the chunk.
void tell_routes(Request& request, messages::OutputChunk& chunk) {
    if (request.routes.num_rows() == 0) return;
    messages::Routes rows{.start = request.routed, .shape = request.routes.shape};
    std::swap(rows, request.routes);
    messages::append_routes(chunk.routes, std::move(rows));
}

// Moves the prompt's scores into the chunk of the row that reaches the prompt's end. The scores
// belong to this step's version, and to KV of that version alone (P3).
messages::PromptLogprobs scores_of(Request& request, const InFlightStep& step, const StepRow& row) {
    const EpochRange own{step.version.epoch, step.version.epoch};
    CHECK(request.scores.logprobs.empty() || row.kv == own);
    return std::move(request.scores);
}

// The end of a request whose numbers were infinite or NaN. The text names the position and the
// weights.
enum class Where { kThere, kThereOrBefore };
messages::Finish end_of_not_finite(
    const InFlightStep& step, const Request& request, const messages::NotFiniteRow& bad, Where where
) {
    using Kind = messages::NotFiniteKind;
    const std::string_view what =
        bad.kind == Kind::kState ? "the hidden state was not finite"
        : bad.kind == Kind::kLogits
            ? "the logits were not finite"
            : "the request's penalties, bias and temperature made its scores not finite";
    // Logits belong to the token after their position.
    const std::int64_t token = bad.position + (bad.kind == Kind::kState ? 0 : 1);
    const std::int64_t prompt_len = request.progress.prompt_len();
    const bool is_output = token >= prompt_len;
    return {
        .reason = messages::FinishReason::kError,
        .verdict = make_error(
            ErrorCode::kNotFinite,
            "{} {} {} token {}, in step {} under weight epoch {}",
            what,
            where == Where::kThere ? "for" : "at or before",
            is_output ? "output" : "prompt",
            is_output ? token - prompt_len : token,
            raw(step.step),
            raw(step.version.epoch)
        ),
    };
}

// Returns how many bytes of a row's routes belong to its drafts.
std::size_t routes_of_drafts(const InFlightStep& step, const StepRow& row) {
    if (row.num_routed == 0) return 0;
    return row.drafts.size() * static_cast<std::size_t>(step.routes.row_bytes());
}

// REQUIRES: sampled.token.
void append_token(
    messages::OutputChunk& chunk,
    const SampledToken& sampled,
    const messages::LogprobOptions& options
) {
    chunk.tokens.push_back(*sampled.token);
    if (sampled.support != nullptr) {
        if (!chunk.supports) chunk.supports.emplace();
        chunk.supports->append(*sampled.support);
    }
    if (!options.enabled) return;
    chunk.logprobs.push_back(sampled.logprob);
    chunk.ranks.push_back(sampled.rank);
    append(chunk.top_ids, sampled.top_ids);
    append(chunk.top_logprobs, sampled.top_logprobs);
    append(chunk.ids_logprobs, sampled.ids_logprobs);
}

// Returns the end of a request whose token was drawn among more tokens than a mask can report, or
// nothing. A truncated mask would be wrong.
std::optional<messages::Finish> problem_of_support(
    const messages::DrawSupport* support, std::int64_t output_index
) {
    if (support == nullptr || support->num_ids <= messages::kSupportMax) return std::nullopt;
    return messages::Finish{
        .reason = messages::FinishReason::kError,
        .verdict = make_error(
            ErrorCode::kInvalidArgument,
            "output {} was drawn among {} tokens; a sampling mask has at most {}: set top_k, or "
            "request none",
            output_index,
            support->num_ids,
            messages::kSupportMax
        ),
    };
}

// Returns the end of a request that cannot continue with this token, or nothing.
std::optional<messages::Finish> problem_of_token(
    const InFlightStep& step,
    std::int64_t output_index,
    const SampledToken& sampled,
    std::int64_t vocab_size
) {
    if (!sampled.token) {
        return messages::Finish{
            .reason = messages::FinishReason::kError,
            .verdict = make_error(
                ErrorCode::kInvalidArgument,
                "output {} has no allowed token: allowed_token_ids, bad_words, bad_tokens, "
                "min_new_tokens and the grammar exclude all, or the grammar takes too long to "
                "follow",
                output_index
            ),
        };
    }
    const TokenId token = *sampled.token;
    if (raw(token) >= 0 && raw(token) < vocab_size)
        return problem_of_support(sampled.support, output_index);
    return messages::Finish{
        .reason = messages::FinishReason::kError,
        .verdict = make_error(
            ErrorCode::kInternal,
            "{} is outside the vocabulary, for output token {}, in step {} under weight epoch {}",
            raw(token),
            output_index,
            raw(step.step),
            raw(step.version.epoch)
        ),
    };
}

}  // namespace

bool Runner::collect_result(messages::StepResult result, TurnOutput& out) {
    const Result<bool> counts = steps_.record(std::move(result));
    if (!counts) {
        out.fatal = counts.error();
        return true;
    }
    while (const auto step = steps_.take_done()) finish_step(*step, out);
    return *counts;
}

void Runner::finish_step(const InFlightStep& step, TurnOutput& out) {
    pool_.end_step(step.step);
    ++tallies_.num_steps;
    const Duration took = tallies_.step_times.add(step.sent_at, now_);
    if (budget_) {
        budget_->note_pass({
            .num_tokens = step.num_tokens(),
            .num_rows = std::ssize(step.rows),
            .num_drafts = step.num_drafts(),
            .is_alone = step.is_alone,
            .took = took,
        });
    }
    if (const auto& load = step.numbers.expert_load.values; !load.empty()) {
        tallies_.expert_load = messages::ExpertLoad{
            .layers = step.routes.layers, .num_experts = step.routes.num_experts, .tokens = {load}};
    }
    ResultReader reader(step);
    for (const StepRow& row : step.rows) collect_row(step, row, reader, out);
    pool_.release_ended();
}

void Runner::collect_row(
    const InFlightStep& step, const StepRow& row, ResultReader& reader, TurnOutput& out
) {
    const RowScores scores = reader.scores(row);
    const std::span<const std::uint8_t> routes = reader.routes(row);
    const std::span<const SampledToken> sampled = reader.sampled(row);
    const messages::NotFiniteRow* const bad = reader.not_finite();
    // The step may have put its pages into the prefix cache, even if the request has ended since.
    if (bad != nullptr) forget_pages(row, bad->position);
    Request* const found = requests_.find(row.key);
    if (found == nullptr) {
        ++tallies_.num_rows_dropped;  // the request has ended: its token is not emitted or cached
        return;
    }
    Request& request = *found;
    if (row.run != request.run) return;  // this row belongs to a prefill that was abandoned
    if (drafter_ && row.samples) count_drafts(request, row, sampled.size());
    const RowPart first{
        .end = row.end - std::ssize(row.drafts),
        .output_index = row.output_index,
        .sampled = sampled.empty() ? nullptr : &sampled.front(),
        .routes = routes.first(routes.size() - routes_of_drafts(step, row)),
        .bad = bad,
    };
    if (row.drafts.empty()) return collect_part(request, step, row, first, scores, out);
    collect_drafted(step, row, first, sampled, routes, out);
}

// Evaluates a row with drafts as one row per accepted token.
void Runner::collect_drafted(
    const InFlightStep& step,
    const StepRow& row,
    RowPart part,
    std::span<const SampledToken> sampled,
    std::span<const std::uint8_t> routes,
    TurnOutput& out
) {
    const std::size_t route_bytes = routes_of_drafts(step, row) / row.drafts.size();
    for (std::size_t i = 0;;) {
        collect_part(*requests_.find(row.key), step, row, part, {}, out);
        if (requests_.find(row.key) == nullptr) return;  // it has ended: later tokens do not count
        if (++i == sampled.size()) break;
        const std::size_t routes_begin = routes.size() - (row.drafts.size() + 1 - i) * route_bytes;
        ++part.end;
        ++part.output_index;
        part.sampled = &sampled[i];
        part.routes = routes.subspan(routes_begin, route_bytes);
    }
    Request& request = *requests_.find(row.key);
    request.progress.end_drafts();
    if (request.is_running()) pool_.shrink(request.lease, part.end);
}

void Runner::collect_part(
    Request& request,
    const InFlightStep& step,
    const StepRow& row,
    const RowPart& part,
    const RowScores& scores,
    TurnOutput& out
) {
    if (part.bad != nullptr && part.bad->position < part.end) {
        const messages::NotFiniteRow& bad = *part.bad;
        tallies_.count_not_finite(bad.kind);
        const bool is_lent = bad.position == row.begin && pool_.has_forgotten(row.borrowed) &&
                             bad.kind != messages::NotFiniteKind::kScores;
        const Where where = is_lent ? Where::kThereOrBefore : Where::kThere;
        return finish(request, end_of_not_finite(step, request, bad, where), out);
    }
    if (request.is_running()) request.progress.finish_step(part.end);
    if (request.is_running() && !request.has_brought()) {
        const auto num_tokens = std::min(part.end, request.progress.known());
        const auto tokens = std::span(request.tokens).first(static_cast<std::size_t>(num_tokens));
        pool_.share(request.lease, tokens, step.step, KvPool::Duplicates::kReplace);
        pool_.keep_saved(request.lease, step.step, part.end);
    }
    collect_scores(request, row, scores);
    request.add_routes(part.routes, part.end, step.version.epoch);
    if (part.sampled != nullptr) return collect_token(request, step, row, part, out);
    if (request.progress.output_len_max() == 0 && row.end == request.progress.prompt_len()) {
        messages::OutputChunk& chunk = chunk_of(request, out);
        append_span(chunk.spans, span_of(step, row, /*tokens=*/0));
        note_version(request, step, row);
        if (request.wants_scores()) chunk.prompt = scores_of(request, step, row);
        tell_routes(request, chunk);
        finish(request, {.reason = messages::FinishReason::kLength}, out);
    }
}

// Records the versions of weights and adapter that computed the request's latest token.
void Runner::note_version(Request& request, const InFlightStep& step, const StepRow& row) {
    const bool is_of_another =
        request.version_serial != 0 &&
        (request.version_serial != step.version.serial || request.latest_adapter_id != row.adapter);
    if (is_of_another && !std::exchange(request.is_spanning, true))
        ++tallies_.num_spanning_requests;
    request.version_serial = step.version.serial;
    if (request.latest_adapter_id == row.adapter) return;
    request.latest_adapter_id = row.adapter;
    request.latest_adapter = step.adapters.at(*row.adapter);
}

void Runner::count_drafts(Request& request, const StepRow& row, std::size_t num_sampled) {
    for (messages::DraftCounts* counts : {&tallies_.drafts, &*request.drafts}) {
        ++counts->passes;
        if (row.drafts.empty()) continue;
        ++counts->rows;
        counts->drafted += std::ssize(row.drafts);
        counts->accepted += static_cast<std::int64_t>(num_sampled) - 1;
    }
}

// Removes the row's pages from the prefix cache, starting with the page that has `position`.
void Runner::forget_pages(const StepRow& row, std::int64_t position) {
    if (row.pages.empty()) return;
    const std::int64_t first = position / pool_.page_size() - row.first_page;
    pool_.forget(std::span(row.pages).subspan(static_cast<std::size_t>(first)));
}

void Runner::collect_token(
    Request& request,
    const InFlightStep& step,
    const StepRow& row,
    const RowPart& part,
    TurnOutput& out
) {
    const std::int64_t output_index = part.output_index;
    CHECK(request.progress.pending() > 0 && request.progress.outputs() == output_index);
    if (auto how = problem_of_token(step, output_index, *part.sampled, limits_.vocab_size))
        return finish(request, *std::move(how), out);
    const TokenId token = *part.sampled->token;
    request.progress.learn_token();
    request.tokens.push_back(token);
    if (output_index == 0) request.first_token_at = now_;
    request.last_token_at = now_;
    ++tallies_.num_output_tokens;
    if (request.adapter) adapters_.count_token(request.adapter->id);
    tallies_.output_rate.add(now_, 1);
    note_version(request, step, row);

    messages::OutputChunk& chunk = chunk_of(request, out);
    append_token(chunk, *part.sampled, request.logprobs);
    append_span(chunk.spans, span_of(step, row, /*tokens=*/1));
    tell_routes(request, chunk);
    // Two steps may have ended since the last turn: counts cover the whole chunk. Drafts and a
    // retraction are reported at once, because a stop text may end the request where only the
    // detokenizer sees it.
    if (output_index == 0 || chunk.counts || !row.drafts.empty() ||
        request.told_retractions != request.num_retractions) {
        request.told_retractions = request.num_retractions;
        tell_counts(request, chunk);
    }
    if (output_index == 0 && request.wants_scores()) chunk.prompt = scores_of(request, step, row);
    if (auto how = request.finish_of(token, output_index)) {
        finish(request, *std::move(how), out);
    }
}

void Runner::tell_counts(const Request& request, messages::OutputChunk& chunk) const {
    chunk.counts = request.counts(config_.replica);
    if (!request.adapter) return;
    chunk.adapter = request.latest_adapter ? *request.latest_adapter : request.adapter->version;
}

messages::TokenBatch& Runner::batch_of(TurnOutput& out) const {
    if (!out.batch) out.batch = messages::TokenBatch{.replica = config_.replica};
    return *out.batch;
}

// Returns the request's chunk in this turn's batch. The first chunk announces the request to the
// detokenizer.
messages::OutputChunk& Runner::chunk_of(Request& request, TurnOutput& out) {
    messages::TokenBatch& batch = batch_of(out);
    if (request.chunk_turn == turn_) return batch.chunks[request.chunk_index];
    if (!request.is_announced) {
        request.is_announced = true;
        batch.starts.push_back({.key = request.key, .text = std::move(request.text)});
    }
    if (batch.chunks.empty())
        batch.chunks.reserve(requests_.running().size() + 1);  // chunks are large
    request.chunk_turn = turn_;
    request.chunk_index = batch.chunks.size();
    return batch.chunks.emplace_back(messages::OutputChunk{.key = request.key});
}

// Answers a request that is refused with `how`.
void Runner::refuse(messages::TokenizedRequest& arrived, messages::Finish how, TurnOutput& out) {
    tallies_.count_finish(how.reason);
    messages::TokenBatch& batch = batch_of(out);
    batch.starts.push_back({.key = arrived.key, .text = std::move(arrived.text)});
    const auto prompt_len = static_cast<std::int64_t>(arrived.prompt.values.size());
    batch.chunks.push_back({
        .key = arrived.key,
        .counts =
            messages::RequestCounts{.prompt_tokens = prompt_len, .replica = raw(config_.replica)},
        .finish = std::move(how),
    });
}

}  // namespace pitstop::scheduler
