#include "tp_worker/model/step_batch.h"

#include "tp_worker/model/step_padding.h"

#include <algorithm>

namespace pitstop::tp_worker {
namespace {

bool is_token(TokenId id, std::int64_t vocab_len) { return raw(id) >= 0 && raw(id) < vocab_len; }

Error row_error(
    std::size_t index, const messages::PlanRow& row, std::string_view what, std::int64_t value
) {
    return make_error(
        ErrorCode::kInvalidArgument, "row {} (slot {}): {} {}", index, raw(row.slot), what, value
    );
}

// Checks that the model has the row's positions, outputs and drafts.
Result<> check_lengths(std::size_t index, const messages::PlanRow& row, const StepLimits& limits) {
    const auto bad = [&](std::string_view what, std::int64_t value) {
        return row_error(index, row, what, value);
    };
    // invalid(plan) has bounded all of them: no sum overflows.
    if (row.begin + row.num_new > limits.num_positions)
        return bad("more positions than the model has:", limits.num_positions);
    if (row.output_index.value_or(0) + row.num_drafted.value_or(0) >= limits.num_positions)
        return bad("more outputs than the model has positions:", row.output_index.value_or(0));
    if (row.num_drafted <= limits.drafted_max) return Ok{};
    return bad(
        fmt::format("at most {} drafts are verified here, not", limits.drafted_max),
        *row.num_drafted
    );
}

// Checks that draws have supports here, if the request wants them.
Result<> check_support(
    std::size_t index,
    const messages::PlanRow& row,
    const RequestState& request,
    const StepLimits& limits
) {
    if (!row.output_index || !request.logprobs().support || limits.no_supports.empty()) return Ok{};
    return row_error(
        index,
        row,
        fmt::format("no support of a draw ({}); output", limits.no_supports),
        *row.output_index
    );
}

}  // namespace

RowOutputs outputs_of(const LogitRow& row, messages::StepResult* result) {
    if (row.kind == LogitRow::Kind::kScore) {
        messages::StepScores& scores = result->scores;
        return {
            scores.logprobs.values.data() + row.entry,
            scores.ranks.values.data() + row.entry,
            scores.top_ids.values.data() + row.top_begin,
            scores.top_logprobs.values.data() + row.top_begin,
            scores.ids_logprobs.values.data() + row.ids_begin};
    }
    return {
        result->logprobs.values.data() + row.entry,
        result->ranks.values.data() + row.entry,
        result->top_ids.values.data() + row.top_begin,
        result->top_logprobs.values.data() + row.top_begin,
        result->ids_logprobs.values.data() + row.ids_begin};
}

void report_draw(const LogitRow& row, TokenId id, messages::StepResult* result) {
    if (raw(id) >= 0) {
        result->sampled.values[row.entry] = id;
    } else {
        result->undrawn.push_back(static_cast<std::int64_t>(row.entry));
    }
}

Result<> set_up_requests(
    const messages::StepPlan& plan, std::int64_t vocab_len, RequestSlots* slots, Grammars* grammars
) {
    if (grammars != nullptr && grammars->take_forgotten()) {
        for (std::optional<RequestState>& request : *slots)
            if (request) request->free_forgotten(*grammars);
    }
    for (const messages::RequestSetup& setup : plan.setups) {
        const std::int64_t slot = raw(setup.slot);
        if (slot < 0 || slot >= static_cast<std::int64_t>(slots->size())) {
            return make_error(
                ErrorCode::kInvalidArgument,
                "setup of slot {}; slots are 0 to {}",
                slot,
                slots->size() - 1
            );
        }
        const auto check_ids = [&](std::span<const TokenId> ids,
                                   std::string_view what) -> Result<> {
            for (const TokenId id : ids) {
                if (is_token(id, vocab_len)) continue;
                return make_error(
                    ErrorCode::kInvalidArgument,
                    "setup of slot {}: {} has token {}; the vocabulary has {}",
                    slot,
                    what,
                    raw(id),
                    vocab_len
                );
            }
            return Ok{};
        };
        RETURN_IF_ERROR(check_ids(setup.stop_ids, "stop_ids"));
        RETURN_IF_ERROR(check_ids(setup.history, "history"));
        RETURN_IF_ERROR(check_ids(setup.logprobs.ids, "logprobs.ids"));
        RETURN_IF_ERROR(check_ids(setup.sampling.allowed_token_ids, "allowed_token_ids"));
        for (const std::vector<TokenId>& sequence : setup.sampling.bad_tokens)
            RETURN_IF_ERROR(check_ids(sequence, "bad_tokens"));
        std::optional<std::string> problem = messages::invalid(setup.sampling);
        if (!problem) problem = messages::invalid(setup.logprobs);
        const auto& bias = setup.sampling.logit_bias;
        if (!problem && !bias.empty() && bias.rbegin()->first >= vocab_len) {
            problem = fmt::format("logit_bias has token {}", bias.rbegin()->first);
        }
        if (!problem && (setup.prompt_len < 0 || setup.prompt_len > messages::kPromptTokensMax)) {
            problem = fmt::format("prompt_len is {}", setup.prompt_len);
        }
        if (!problem && (setup.sampling.num_output_in_prompt < 0 ||
                         setup.sampling.num_output_in_prompt > setup.prompt_len)) {
            problem =
                fmt::format("num_output_in_prompt is {}", setup.sampling.num_output_in_prompt);
        }
        Grammars::Shared grammar;
        std::shared_ptr<grammar::CpuAllowance> allowance;
        if (setup.grammar && grammars != nullptr) {
            grammar = grammars->find(*setup.grammar);
            allowance = grammars->allowance_of(setup.key);
            if (!grammar)
                problem = fmt::format(
                    "grammar {} is not compiled here", static_cast<std::uint64_t>(*setup.grammar)
                );
        }
        if (problem) {
            return make_error(ErrorCode::kInvalidArgument, "setup of slot {}: {}", slot, *problem);
        }
        (*slots)[static_cast<std::size_t>(slot)].emplace(setup, vocab_len, grammar, allowance);
    }
    return Ok{};
}

bool has_drafts(const messages::StepPlan& plan) {
    return std::ranges::any_of(plan.rows, [](const messages::PlanRow& row) {
        return row.num_drafted.has_value();
    });
}

void note_draws(std::span<const LogitRow> rows, RequestSlots* slots) {
    for (const LogitRow& row : rows) {
        if (row.kind != LogitRow::Kind::kSample) continue;
        RequestState& request = *(*slots)[static_cast<std::size_t>(raw(row.slot))];
        row.has_drafts ? request.note_drafts() : request.note_draw();
    }
}

Result<> PlannedStep::prepare(
    const messages::StepPlan& plan, const RequestSlots& slots, const StepLimits& limits
) {
    if (static_cast<std::int64_t>(plan.tokens.values.size()) > limits.tokens_max) {
        return make_error(
            ErrorCode::kInvalidArgument,
            "a plan of {} tokens; this worker has room for {} (--tokens-per-step-max)",
            plan.tokens.values.size(),
            limits.tokens_max
        );
    }
    tokens_.clear();
    positions_.clear();
    kv_slots_.clear();
    q_starts_.assign(1, 0);
    kv_lens_.clear();
    page_starts_.clear();
    slots_.clear();
    token_rows_.clear();
    routed_rows_.clear();
    brought_rows_.clear();
    logit_rows_.clear();
    ahead_.clear();
    samples_.assign(slots.size(), false);
    kv_len_max_ = 0;
    q_len_max_ = 0;
    sampled_ = {};
    scored_ = {};
    token_at_ = page_at_ = target_at_ = 0;
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
        RETURN_IF_ERROR(add_row(plan, i, slots, limits));
    }
    RETURN_IF_ERROR(check_brought(plan, limits));
    num_padded_ = 0;
    // A graph cannot use given routes, and cannot keep the inputs of drafts for a replay.
    if (!brought_rows_.empty() || (limits.has_states && has_drafts())) return Ok{};
    num_padded_ = is_of_decodes() ? padded_rows(static_cast<std::int64_t>(kv_lens_.size())) : 0;
    if (num_padded_ > limits.padded_rows_max) num_padded_ = 0;
    if (num_padded_ == 0 && is_small(limits)) pad_prompts(limits);
    return Ok{};
}

Result<> PlannedStep::check_brought(const messages::StepPlan& plan, const StepLimits& limits) {
    const auto bad = [](std::string_view what) {
        return make_error(ErrorCode::kInvalidArgument, "routes of the plan: {}", what);
    };
    if (brought_rows_.empty()) return Ok{};
    if (!limits.routes) return bad("the model has no experts");
    const std::vector<std::uint8_t>& rows = plan.routes.values;
    brought_row_bytes_ = limits.routes->row_bytes();
    if (std::ssize(rows) != std::ssize(brought_rows_) * brought_row_bytes_) {
        return bad(fmt::format(
            "{} bytes for {} tokens of {} each",
            rows.size(),
            brought_rows_.size(),
            brought_row_bytes_
        ));
    }
    const auto problem = messages::problem_of_rows(*limits.routes, limits.dense_layers, rows);
    if (problem) return bad(*problem);
    return Ok{};
}

bool PlannedStep::only_samples() const {
    return !logit_rows_.empty() && std::ranges::all_of(logit_rows_, [](const LogitRow& row) {
        return row.kind == LogitRow::Kind::kSample;
    });
}

// Whether every row has one token, and samples after it.
bool PlannedStep::is_of_decodes() const {
    return q_len_max_ == 1 && tokens_.size() == kv_lens_.size() &&
           logit_rows_.size() == tokens_.size() && only_samples();
}

// Whether the step has few tokens.
bool PlannedStep::is_small(const StepLimits& limits) const {
    return padded_tokens(static_cast<std::int64_t>(tokens_.size())) <= limits.padded_tokens_max &&
           padded_small_rows() <= limits.padded_rows_max && only_samples();
}

// Returns the larger of the numbers of rows and of rows of logits, padded. In a step that only
// samples, only drafts make the rows of logits the larger number.
std::int64_t PlannedStep::padded_small_rows() const {
    return padded_prompt_rows(
        static_cast<std::int64_t>(std::max(kv_lens_.size(), logit_rows_.size()))
    );
}

// Adds a row with the tokens of padding, in scratch pages, and rows without tokens after it.
void PlannedStep::pad_prompts(const StepLimits& limits) {
    const auto T = static_cast<std::int64_t>(tokens_.size());
    const std::int64_t num_tokens = padded_tokens(T);
    const std::int64_t num_rows = padded_small_rows();
    for (const LogitRow& row : logit_rows_) token_rows_.push_back(row.token_row);
    token_rows_.resize(static_cast<std::size_t>(num_rows), 0);
    for (std::int64_t i = 0; i < num_tokens - T; ++i) {
        tokens_.push_back(TokenId{-1});
        positions_.push_back(static_cast<std::int32_t>(i));
        kv_slots_.push_back(limits.num_pages * limits.page_size + i);
    }
    const auto num_with_padding = static_cast<std::size_t>(num_rows) + 1;
    q_starts_.resize(num_with_padding + 1, static_cast<std::int32_t>(num_tokens));
    kv_lens_.push_back(static_cast<std::int32_t>(num_tokens - T));
    kv_lens_.resize(num_with_padding, 0);
    page_starts_.resize(num_with_padding, 0);  // the device's are in StepUpdates
    q_len_max_ = 0;  // unknown: a launch that depended on it would not depend only on the shape
}

Result<> PlannedStep::add_row(
    const messages::StepPlan& plan,
    std::size_t index,
    const RequestSlots& slots,
    const StepLimits& limits
) {
    const messages::PlanRow& row = plan.rows[index];
    const auto bad = [&](std::string_view what, std::int64_t value) {
        return row_error(index, row, what, value);
    };
    const auto slot = static_cast<std::size_t>(raw(row.slot));
    if (slot >= slots.size() || !slots[slot])
        return bad("no request was set up in slot", raw(row.slot));
    const RequestState& request = *slots[slot];
    RETURN_IF_ERROR(check_lengths(index, row, limits));
    RETURN_IF_ERROR(check_support(index, row, request, limits));
    const std::int64_t kv_len = row.begin + row.num_new;
    // Both rows would store their token where the request's next row reads it.
    if (row.output_index && samples_[slot])
        return bad("another row samples for the same request; its output is", *row.output_index);
    if (row.num_pages * limits.page_size < kv_len) return bad("too few pages for length", kv_len);
    for (std::int64_t i = 0; i < row.num_pages; ++i) {
        const PageId page = plan.pages.values[page_at_ + static_cast<std::size_t>(i)];
        if (raw(page) < 0 || raw(page) >= limits.num_pages) return bad("no such page:", raw(page));
    }
    for (const auto& id : {row.state_from, row.save_to})
        if (id && raw(*id) >= limits.num_checkpoints) return bad("no such checkpoint:", raw(*id));
    for (std::int64_t i = 0; i < row.num_new; ++i) {
        TokenId token = plan.tokens.values[token_at_ + static_cast<std::size_t>(i)];
        if (!is_token(token, limits.vocab_len)) return bad("no such token:", raw(token));
        // The sampled token is -1 if the logits were not finite, and -1 embeds as zeros. The
        // scheduler then ends the request, and drops the request's result of this step.
        if (row.takes_sampled) {
            const bool is_on_device = limits.has_drawn_on_device && request.has_drawn();
            token = is_on_device ? kernels::sampled_in(raw(row.slot)) : request.last_token();
        }
        const std::int64_t position = row.begin + i;
        const auto page_index = static_cast<std::size_t>(position / limits.page_size);
        const PageId page = plan.pages.values[page_at_ + page_index];
        tokens_.push_back(token);
        positions_.push_back(static_cast<std::int32_t>(position));
        kv_slots_.push_back(
            std::int64_t{raw(page)} * limits.page_size + position % limits.page_size
        );
    }
    for (std::int64_t i = 0; i < row.num_scored; ++i) {
        const TokenId target = plan.targets.values[target_at_ + static_cast<std::size_t>(i)];
        if (!is_token(target, limits.vocab_len)) return bad("no such target:", raw(target));
    }
    if (row.num_routed > 0 && !limits.routes)
        return bad("routes of a model without experts; positions:", row.num_routed);
    add_routes(row);
    token_at_ += static_cast<std::size_t>(row.num_new);
    page_starts_.push_back(static_cast<std::int32_t>(page_at_));
    slots_.push_back(row.slot);
    page_at_ += static_cast<std::size_t>(row.num_pages);
    q_starts_.push_back(static_cast<std::int32_t>(token_at_));
    kv_lens_.push_back(static_cast<std::int32_t>(kv_len));
    kv_len_max_ = std::max(kv_len_max_, kv_lens_.back());
    q_len_max_ = std::max(q_len_max_, static_cast<std::int32_t>(row.num_new));
    add_logits(row, request, plan);
    target_at_ += static_cast<std::size_t>(row.num_scored);
    return Ok{};
}

// Records the row's tokens with given routes, which are its first, and those with reported routes,
// which are its last.
void PlannedStep::add_routes(const messages::PlanRow& row) {
    const auto first = static_cast<std::int32_t>(token_at_);
    for (std::int32_t i = 0; i < row.num_brought; ++i) brought_rows_.push_back(first + i);
    const std::int64_t num_new = row.num_new;
    for (std::int64_t i = num_new - row.num_routed; i < num_new; ++i)
        routed_rows_.push_back(first + static_cast<std::int32_t>(i));
}

void PlannedStep::add_logits(
    const messages::PlanRow& row, const RequestState& request, const messages::StepPlan& plan
) {
    const auto top = static_cast<std::size_t>(request.logprobs().top);
    const std::size_t num_ids = request.logprobs().ids.size();
    const auto add = [&](LogitRow logit_row, Sizes* sizes) {
        logit_row.slot = row.slot;
        logit_row.entry = sizes->entries;
        logit_row.top_begin = sizes->top;
        logit_row.ids_begin = sizes->ids;
        sizes->entries += 1;
        sizes->top += top;
        sizes->ids += num_ids;
        logit_rows_.push_back(logit_row);
    };
    const auto num_scored = static_cast<std::size_t>(row.num_scored);
    for (std::size_t i = 0; i < num_scored; ++i) {
        LogitRow score;
        score.kind = LogitRow::Kind::kScore;
        score.token_row = static_cast<std::int32_t>(token_at_ - num_scored + i);
        score.target = plan.targets.values[target_at_ + i];
        add(score, &scored_);
    }
    if (!row.output_index) return;
    samples_[static_cast<std::size_t>(raw(row.slot))] = true;
    for (std::int64_t i = 0; i < row.num_sampled(); ++i)
        add(sample_of(row, request, plan, i), &sampled_);
}

// Returns the row of logits that samples output `index` of the plan's row.
LogitRow PlannedStep::sample_of(
    const messages::PlanRow& row,
    const RequestState& request,
    const messages::StepPlan& plan,
    std::int64_t index
) {
    const std::int64_t num_after = row.num_drafted.value_or(0) - index;
    LogitRow sample;
    sample.token_row =
        static_cast<std::int32_t>(token_at_) - static_cast<std::int32_t>(num_after) - 1;
    sample.output_index = *row.output_index + index;
    const auto token_at = static_cast<std::size_t>(sample.token_row);
    sample.has_drafts = row.num_drafted.has_value();
    if (num_after > 0) sample.draft = plan.tokens.values[token_at + 1];
    if (index == 0 || !request.follows_tokens()) return sample;
    ahead_.push_back(index == 1 ? request : ahead_.back());
    ahead_.back().record_sampled(plan.tokens.values[token_at]);
    sample.ahead = &ahead_.back();
    return sample;
}

std::vector<bool> PlannedStep::counting_rows(std::span<const TokenId> ids) const {
    std::vector<bool> counts(logit_rows_.size(), true);
    for (std::size_t i = 0; i + 1 < counts.size(); ++i) {
        const std::optional<TokenId>& draft = logit_rows_[i].draft;
        if (draft && (!counts[i] || ids[i] != *draft)) counts[i + 1] = false;
    }
    return counts;
}

std::vector<std::int64_t> PlannedStep::num_right(std::span<const TokenId> ids) const {
    const std::vector<bool> counts = counting_rows(ids);
    std::vector<std::int64_t> nums;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        if (!logit_rows_[i].has_drafts) continue;
        const bool is_after_draft = i > 0 && logit_rows_[i - 1].draft.has_value();
        if (!is_after_draft) nums.push_back(0);
        if (is_after_draft && counts[i]) ++nums.back();
    }
    return nums;
}

StepBatch PlannedStep::batch(const messages::StepPlan& plan) const {
    return {
        .tokens = tokens_,
        .positions = positions_,
        .kv_slots = kv_slots_,
        .q_starts = q_starts_,
        .kv_lens = kv_lens_,
        .page_starts = page_starts_,
        .pages = plan.pages.values,
        .slots = slots_,
        .num_padded = num_padded_,
        .token_rows = token_rows_,
        .kv_len_max = kv_len_max_,
        .q_len_max = q_len_max_,
        .brought_rows = brought_rows_,
        .brought = plan.routes.values,
        .brought_row_bytes = brought_row_bytes_,
    };
}

std::vector<messages::NotFiniteRow> PlannedStep::not_finite_rows(
    std::span<const TokenId> ids, std::span<const std::uint8_t> marks
) const {
    using Kind = messages::NotFiniteKind;
    std::vector<messages::NotFiniteRow> found;
    const auto kind_of = [&](TokenId id) -> std::optional<Kind> {
        if (id == kernels::kNotFiniteDraw) return Kind::kLogits;
        if (id == kernels::kScoreNotFinite) return Kind::kScores;
        return std::nullopt;
    };
    const auto is_fine = [&](TokenId id) { return !kind_of(id); };
    if (std::ranges::all_of(ids, is_fine) && std::ranges::count(marks, 0) == std::ssize(marks))
        return found;
    const std::vector<bool> counts =
        ids.empty() ? std::vector<bool>{} : counting_rows(ids);  // without logits no draft
    std::size_t at = 0;  // rows of logits are in the order of their tokens
    for (std::size_t r = 0; r < slots_.size(); ++r) {
        std::optional<Kind> kind;
        for (std::int32_t t = q_starts_[r]; t < q_starts_[r + 1]; ++t) {
            std::optional<Kind> of_token;
            const bool has_logits = at < ids.size() && logit_rows_[at].token_row == t;
            if (!has_logits && !marks.empty() && marks[static_cast<std::size_t>(t)] != 0)
                of_token = Kind::kState;
            for (; at < ids.size() && logit_rows_[at].token_row == t; ++at)
                if (!of_token && counts[at]) of_token = kind_of(ids[at]);
            if (kind || !of_token) continue;
            kind = of_token;
            found.push_back(
                {.row = static_cast<std::int64_t>(r),
                 .position = positions_[static_cast<std::size_t>(t)],
                 .kind = *kind}
            );
        }
    }
    return found;
}

messages::StepResult PlannedStep::empty_result(const messages::StepPlan& plan, Rank rank) const {
    messages::StepResult result;
    result.step = plan.step;
    result.epoch = plan.epoch;
    result.rank = rank;
    if (raw(rank) != 0) return result;
    result.sampled.values.resize(sampled_.entries);
    result.logprobs.values.resize(sampled_.entries);
    result.ranks.values.resize(sampled_.entries);
    result.top_ids.values.resize(sampled_.top, TokenId{-1});
    result.top_logprobs.values.resize(sampled_.top);
    result.ids_logprobs.values.resize(sampled_.ids);
    result.scores.logprobs.values.resize(scored_.entries);
    result.scores.ranks.values.resize(scored_.entries);
    result.scores.top_ids.values.resize(scored_.top, TokenId{-1});
    result.scores.top_logprobs.values.resize(scored_.top);
    result.scores.ids_logprobs.values.resize(scored_.ids);
    return result;
}

}  // namespace pitstop::tp_worker
