#include "tp_worker/model/sampler_call.h"

#include "kernels/word_runs.h"
#include "tp_worker/model/draw_support.h"
#include "tp_worker/model/sorted_top.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace pitstop::tp_worker {
namespace {

// Placeholders for what note_draws() writes into picks and softmax rows in each call
// (standing_arrays.h). No other pick or row has these values.
constexpr TokenId kIdDrawn{-1};
constexpr float kKeptMinDrawn = std::numeric_limits<float>::quiet_NaN();

SampledRow row_of(
    const LogitRow& place, const RequestSlots& slots, std::int64_t vocab_len, bool is_split
) {
    const RequestState& request =
        place.ahead != nullptr ? *place.ahead : *slots[static_cast<std::size_t>(raw(place.slot))];
    const messages::LogprobOptions& options = request.logprobs();
    SampledRow row{.place = &place, .request = &request};
    row.is_sample = place.kind == LogitRow::Kind::kSample;
    row.is_ranked = options.enabled;
    row.num_top = std::min(options.top, vocab_len);
    row.num_ids = options.ids.size();
    row.has_support = row.is_sample && options.support;
    row.is_raw = !row.is_sample || options.mode == messages::LogprobsMode::kRaw;
    row.is_truncated = row.is_sample && options.mode == messages::LogprobsMode::kTruncated;
    row.is_edited = row.is_sample && request.has_edits(place.output_index);
    if (row.is_sample) row.draw = request.draw(place.output_index);
    const bool truncates = kernels::is_truncating(row.draw, vocab_len);
    row.is_whole = !is_split || row.is_edited || truncates || row.num_top > 0 || row.num_ids > 0 ||
                   row.has_support;
    row.sums_parts = is_split && !row.reports_edited() && !(row.is_truncated && truncates);
    return row;
}

// Returns the bytes of the counts, biases and mask that a row is edited with.
std::int64_t edit_bytes_of(const SampledRow& row) {
    const RequestState& request = *row.request;
    return static_cast<std::int64_t>(
        request.counts().size_bytes() + request.biases(row.place->output_index).size_bytes() +
        request.mask().size_bytes()
    );
}

}  // namespace

Sampler::Call::Call(
    Sampler& sampler,
    const RowLogits& logits,
    std::span<const LogitRow> rows,
    const RequestSlots& slots
)
    : sampler_(sampler),
      transfers_(*sampler.transfers_),
      first_position_(sampler.num_calls_++),
      ids_(rows.size()),
      kept_mins_(sampler.is_root() ? rows.size() : 0) {
    for (const LogitRow& row : rows) {
        rows_.push_back(row_of(row, slots, sampler.vocab_len_, sampler.is_split()));
        if (rows_.back().is_sample) rows_.back().draw.position -= first_position_;
    }
    if (sampler.is_split()) ranks_.emplace(sampler, logits, rows_, first_position_);
    edited_.is_edited = true;
    if (sampler.is_root()) set_up_views(logits);
    place();
}

// With a single rank every row is whole.
void Sampler::Call::set_up_views(const RowLogits& logits) {
    const std::size_t begin = ranks_ ? ranks_->whole_begin() : 0;
    const std::size_t num = ranks_ ? ranks_->num_whole() : rows_.size();
    model_.logits = pitstop::rows(
        logits.whole, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(num)
    );
    model_.choices = sampler_.model_choices_;
    model_.rows.resize(num);
    std::iota(model_.rows.begin(), model_.rows.end(), begin);
    edited_.choices = sampler_.edited_choices_;
    for (const bool is_reported : {true, false}) {
        for (std::size_t i = 0; i < rows_.size(); ++i) {
            if (rows_[i].is_edited && rows_[i].reports_edited() == is_reported)
                edited_.rows.push_back(i);
        }
    }
    edited_.logits =
        pitstop::rows(sampler_.edited_, 0, static_cast<std::int64_t>(edited_.rows.size()));
    set_up(model_);
    set_up(edited_);
}

// Sets up the arrays that need no draw; the device adds the drawn ids and their kept_min.
void Sampler::Call::set_up(LogitView& view) {
    for (const std::size_t i : view.rows) view.draws.push_back(rows_[i].draw);
    for (std::size_t k = 0; k < view.rows.size(); ++k) {
        if (is_reported(view, k)) view.num_reported = k + 1;
    }
    view.softmax.resize(view.num_reported);
    view.stats.resize(view.num_reported);
    for (std::size_t k = 0; k < view.num_reported; ++k) {
        const SampledRow& row = rows_[view.rows[k]];
        if (!is_reported(view, k) || row.is_raw) continue;
        const float temperature = row.draw.temperature;
        view.softmax[k].temperature = temperature > 0.f ? temperature : 1.f;
        if (row.is_truncated) view.softmax[k].kept_min = kKeptMinDrawn;
    }
    set_picks(view);
}

void Sampler::Call::set_picks(LogitView& view) {
    for (const bool is_ranked : {true, false}) {
        for (std::size_t k = 0; k < view.num_reported; ++k) {
            const SampledRow& row = rows_[view.rows[k]];
            if (!is_reported(view, k) || row.is_ranked != is_ranked) continue;
            view.picks.push_back(
                {static_cast<std::int32_t>(k), row.is_sample ? kIdDrawn : row.place->target}
            );
        }
        if (is_ranked) view.num_before.resize(view.picks.size());
    }
    view.ids_begin = view.picks.size();
    for (std::size_t k = 0; k < view.num_reported; ++k) {
        if (!is_reported(view, k)) continue;
        for (const TokenId id : rows_[view.rows[k]].request->logprobs().ids)
            view.picks.push_back({static_cast<std::int32_t>(k), id});
    }
    view.picked.resize(view.picks.size());
}

// More picks than the standing arrays have room for are uploaded whole; the standing picks then
// stay unchanged.
void Sampler::Call::place_picks(LogitView& view) {
    const std::int64_t num_max = sampler_.sizes_.rows_max * kStandingPicks;
    const std::span<kernels::LogitPick> picks(view.picks);
    const bool stands = std::ssize(picks) <= num_max;
    view.device_picks = sampler_.standing_.place(stands ? picks : picks.first(0), num_max);
    if (!stands) view.device_picks = transfers_.in_writable(picks);
}

// Places uploads first, then downloads: one copy each way.
void Sampler::Call::place() {
    StandingArrays& standing = sampler_.standing_;
    const std::int64_t rows_max = sampler_.sizes_.rows_max;
    standing.begin_call();
    for (LogitView* view : {&model_, &edited_}) {
        view->device_draws = standing.place(std::span(view->draws), rows_max);
        view->device_softmax = standing.place(std::span(view->softmax), rows_max);
        place_picks(*view);
    }
    drawn_ = drawn_rows();
    device_drawn_ = standing.place(std::span(drawn_), rows_max);
    if (ranks_) ranks_->place_inputs(drawn_);
    const std::span<const std::int32_t> changes = standing.update();
    if (!changes.empty()) device_changes_ = transfers_.in(changes);
    device_ids_ = transfers_.out(std::span(ids_));
    device_kept_mins_ = transfers_.out(std::span(kept_mins_));
    for (LogitView* view : {&model_, &edited_}) {
        view->device_stats = transfers_.out(std::span(view->stats));
        view->device_picked = transfers_.out(std::span(view->picked));
        view->device_num_before = transfers_.out(std::span(view->num_before));
    }
    if (ranks_) ranks_->place_outputs();
    transfers_.keep();
}

// Returns where each row's choice will be, and the places that need its id. With several ranks the
// merge sets the token.
std::vector<kernels::DrawnRow> Sampler::Call::drawn_rows() const {
    std::vector<kernels::DrawnRow> drawn(rows_.size());
    for (const LogitView* view : {&model_, &edited_}) {
        std::size_t ranked_at = 0;
        std::size_t unranked_at = view->num_before.size();
        for (std::size_t k = 0; k < view->rows.size(); ++k) {
            const SampledRow& row = rows_[view->rows[k]];
            kernels::DrawnRow& one = drawn[view->rows[k]];
            if (is_drawn(*view, k)) one.choice = view->choices + k;
            if (k >= view->num_reported || !is_reported(*view, k)) continue;
            const std::size_t pick = row.is_ranked ? ranked_at++ : unranked_at++;
            if (!row.is_sample) continue;
            one.pick = view->device_picks + pick;
            if (row.is_truncated) one.softmax = view->device_softmax + k;
        }
    }
    const bool has_slots = sampler_.sizes_.num_slots > 0 && !ranks_;
    for (std::size_t i = 0; i < rows_.size() && has_slots; ++i) {
        if (rows_[i].draws_last()) drawn[i].token = sampler_.sampled_ + raw(rows_[i].place->slot);
    }
    return drawn;
}

Result<> Sampler::Call::enqueue() {
    if (device_changes_ != nullptr) {
        kernels::word_runs_cuda({
            .update = device_changes_,
            .words = sampler_.standing_.device_words(),
            .stream = sampler_.stream_,
        });
    }
    if (ranks_) {
        RETURN_IF_ERROR(ranks_->start());
    } else if (!draw_counts()) {
        sampler_.ops_->count_nonfinite({
            .logits = model_.logits,
            .counts = sampler_.num_nonfinite_,
            .stream = sampler_.stream_,
        });
    }
    start_draws(model_);
    start_draws(edited_);
    if (!model_.rows.empty()) {
        sampler_.ops_->note_draws({
            .rows = device_drawn_,
            .num_nonfinite = sampler_.num_nonfinite_,
            .num_rows = static_cast<std::int64_t>(rows_.size()),
            .ids = ranks_ ? sampler_.noted_ids_ : device_ids_,
            .kept_mins = device_kept_mins_,
            .stream = sampler_.stream_,
        });
    }
    if (ranks_) RETURN_IF_ERROR(ranks_->merge(device_ids_));
    const StatsOp op{sampler_.ops_, sampler_.stats_workspace_, sampler_.stream_};
    for (const LogitView* view : {&model_, &edited_})
        find_supports(*view, {rows_, ids_, kept_mins_}, op, supports_);
    start_reports(model_);
    start_reports(edited_);
    return Ok{};
}

// Returns whether the draws read every row as the model made it, and so can count non-finite
// values. With several ranks, the draws of the parts (RankCall) count them.
bool Sampler::Call::draw_counts() const {
    return !ranks_ && edited_.rows.empty() &&
           std::ranges::all_of(rows_, [](const SampledRow& row) { return row.is_sample; });
}

// Enqueues draws for runs of adjacent rows.
void Sampler::Call::start_draws(const LogitView& view) {
    for (std::size_t begin = 0; begin < view.rows.size();) {
        const std::size_t end = end_of_run(view, begin);
        const std::size_t num = end - begin;
        if (num > 0) {
            const View2<float> logits = pitstop::rows(
                view.logits, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(num)
            );
            if (view.is_edited) edit(std::span(view.rows).subspan(begin, num), logits);
            const std::span draws = std::span(view.draws).subspan(begin, num);
            sampler_.ops_->sample({
                .logits = logits,
                .rows = view.device_draws + begin,
                .first_position = first_position_,
                .may_truncate = std::ranges::any_of(
                    draws,
                    [&](const kernels::SampleRow& row) {
                        return kernels::is_truncating(row, sampler_.vocab_len_);
                    }
                ),
                .choices = view.choices + begin,
                .num_nonfinite = draw_counts() ? sampler_.num_nonfinite_ : nullptr,
                .workspace = sampler_.sample_workspace_,
                .arrivals = sampler_.arrivals_,
                .stream = sampler_.stream_,
            });
        }
        begin = std::max(end, begin + 1);
    }
}

// Returns the end of a run of rows that are drawn together. A run of edited rows ends
// when their counts and biases exceed kShareBytes, but has at least one row.
std::size_t Sampler::Call::end_of_run(const LogitView& view, std::size_t begin) const {
    std::int64_t bytes = 0;
    std::size_t end = begin;
    while (end < view.rows.size() && is_drawn(view, end)) {
        if (view.is_edited) bytes += edit_bytes_of(rows_[view.rows[end]]);
        if (end > begin && bytes > Sampler::kShareBytes) break;
        ++end;
    }
    return end;
}

// Makes the rows' logits after penalties, bias and masks.
void Sampler::Call::edit(std::span<const std::size_t> rows, View2<float> edited) {
    constexpr std::size_t kRowBytes = sizeof(kernels::PenaltyRow) + 4 * sizeof(std::int32_t);
    auto bytes = static_cast<std::int64_t>((rows.size() + 2) * kRowBytes);
    for (const std::size_t i : rows) bytes += edit_bytes_of(rows_[i]);
    sampler_.make_room(bytes);
    std::vector<std::int32_t> row_index;
    std::vector<kernels::PenaltyRow> penalties;
    std::vector<std::int32_t> count_starts{0};
    std::vector<kernels::TokenCount> counts;
    std::vector<std::int32_t> bias_starts{0};
    std::vector<kernels::LogitBias> biases;
    std::vector<std::int32_t> mask_of;
    std::vector<std::uint32_t> masks;
    std::int32_t num_masks = 0;
    for (const std::size_t i : rows) {
        const RequestState& request = *rows_[i].request;
        masks.insert(masks.end(), request.mask().begin(), request.mask().end());
        mask_of.push_back(request.mask().empty() ? -1 : num_masks++);
        row_index.push_back(static_cast<std::int32_t>(i - model_.rows.front()));
        penalties.push_back(request.penalty());
        counts.insert(counts.end(), request.counts().begin(), request.counts().end());
        count_starts.push_back(static_cast<std::int32_t>(counts.size()));
        const std::span of_row = request.biases(rows_[i].place->output_index);
        biases.insert(biases.end(), of_row.begin(), of_row.end());
        bias_starts.push_back(static_cast<std::int32_t>(biases.size()));
    }
    const kernels::GatherRowsArgs gather{
        .x = model_.logits,
        .row_index = transfers_.in(row_index),
        .y = edited,
        .stream = sampler_.stream_,
    };
    const kernels::PenaltyArgs change{
        .logits = edited,
        .rows = transfers_.in(penalties),
        .count_starts = transfers_.in(count_starts),
        .counts = transfers_.in(counts),
        .bias_starts = transfers_.in(bias_starts),
        .biases = transfers_.in(biases),
        .mask_of = num_masks > 0 ? transfers_.in(mask_of) : nullptr,
        .masks = num_masks > 0 ? transfers_.in(masks) : nullptr,
        .mask_words = num_masks > 0 ? std::ssize(masks) / num_masks : 0,
        .stream = sampler_.stream_,
    };
    transfers_.send();
    sampler_.ops_->gather_rows(gather);
    sampler_.ops_->penalties(change);
}

// Returns whether a row that is reported from this view needs softmax sums of the view.
bool Sampler::Call::sums_view(const LogitView& view) const {
    for (std::size_t k = 0; k < view.num_reported; ++k) {
        if (is_reported(view, k) && !rows_[view.rows[k]].sums_parts) return true;
    }
    return false;
}

void Sampler::Call::start_reports(LogitView& view) {
    if (view.num_reported == 0) return;
    if (sums_view(view)) {
        sampler_.ops_->softmax_stats({
            .logits = pitstop::rows(view.logits, 0, static_cast<std::int64_t>(view.num_reported)),
            .rows = view.device_softmax,
            .stats = view.device_stats,
            .workspace = sampler_.stats_workspace_,
            .stream = sampler_.stream_,
        });
    }
    sampler_.ops_->pick_logits({
        .logits = view.logits,
        .picks = view.device_picks,
        .num_picks = static_cast<std::int64_t>(view.picks.size()),
        .values = view.device_picked,
        .stream = sampler_.stream_,
    });
    if (!view.num_before.empty()) {
        sampler_.ops_->count_before({
            .logits = view.logits,
            .picks = view.device_picks,
            .values = view.device_picked,
            .num_picks = static_cast<std::int64_t>(view.num_before.size()),
            .counts = view.device_num_before,
            .stream = sampler_.stream_,
        });
    }
    start_tops(view);
}

// Enqueues one op for each run of adjacent rows that want equally many logprobs.
void Sampler::Call::start_tops(LogitView& view) {
    view.top_starts.assign(1, 0);
    for (std::size_t k = 0; k < view.num_reported; ++k)
        view.top_starts.push_back(view.top_starts.back() + top_of(view, k));
    view.top_ids.resize(view.top_starts.back());
    view.top_logits.resize(view.top_starts.back());
    for (std::size_t begin = 0; begin < view.num_reported;) {
        const std::size_t top = top_of(view, begin);
        std::size_t end = begin + 1;
        const auto row_bytes = static_cast<std::int64_t>(top * (sizeof(TokenId) + sizeof(float)));
        while (end < view.num_reported && top_of(view, end) == top &&
               static_cast<std::int64_t>(end - begin + 1) * row_bytes <= Sampler::kShareBytes)
            ++end;
        if (top > std::size_t{kernels::TopLogitsArgs::kTopMax}) {
            for (std::size_t k = begin; k < end; ++k) start_wide(view, k);
        } else if (top > 0) {
            const std::size_t first = view.top_starts[begin];
            const std::size_t size = view.top_starts[end] - first;
            const auto num = static_cast<std::int64_t>(end - begin);
            const auto cols = static_cast<std::int64_t>(top);
            const auto out = [&](auto& array) {
                return view2(transfers_.out(std::span(array).subspan(first, size)), num, cols);
            };
            sampler_.make_room(static_cast<std::int64_t>(size * (sizeof(TokenId) + sizeof(float))));
            sampler_.ops_->top_logits({
                .logits = pitstop::rows(view.logits, static_cast<std::int64_t>(begin), num),
                .ids = out(view.top_ids),
                .values = out(view.top_logits),
                .stream = sampler_.stream_,
            });
        }
        begin = end;
    }
}

// Copies the whole row to the host, which sorts it.
void Sampler::Call::start_wide(LogitView& view, std::size_t k) {
    LogitView::Wide& wide = view.wide.emplace_back();
    wide.row = k;
    wide.logits.resize(static_cast<std::size_t>(sampler_.vocab_len_));
    const std::vector<std::int32_t> row_index{static_cast<std::int32_t>(k)};
    sampler_.make_room(sampler_.vocab_len_ * 4 + std::int64_t{sizeof(std::int32_t)});
    const std::int32_t* const there = transfers_.in(row_index);
    transfers_.send();
    sampler_.ops_->gather_rows({
        .x = view.logits,
        .row_index = there,
        .y = view2(transfers_.out(std::span(wide.logits)), 1, sampler_.vocab_len_),
        .stream = sampler_.stream_,
    });
}

void Sampler::Call::finish(messages::StepResult* result) {
    if (!sampler_.is_root()) return;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (rows_[i].is_sample) report_draw(*rows_[i].place, ids_[i], result);
        if (!rows_[i].is_whole && is_finite(i)) ranks_->finish(i, result);
        if (rows_[i].has_support) result->supports.push_back(std::move(supports_[i]));
    }
    finish_reports(model_, result);
    finish_reports(edited_, result);
}

void Sampler::Call::finish_reports(LogitView& view, messages::StepResult* result) {
    for (const LogitView::Wide& wide : view.wide) {
        if (!is_finite(view.rows[wide.row])) continue;
        const std::size_t first = view.top_starts[wide.row];
        const std::size_t size = view.top_starts[wide.row + 1] - first;
        sort_top(
            wide.logits,
            std::span(view.top_ids).subspan(first, size),
            std::span(view.top_logits).subspan(first, size)
        );
    }
    std::size_t ranked_at = 0;  // among the picks
    std::size_t unranked_at = view.num_before.size();
    std::size_t ids_at = view.ids_begin;
    for (std::size_t k = 0; k < view.num_reported; ++k) {
        if (!is_reported(view, k)) continue;
        const SampledRow& row = rows_[view.rows[k]];
        const std::size_t pick = row.is_ranked ? ranked_at++ : unranked_at++;
        const std::size_t first_id = ids_at;
        ids_at += row.num_ids;
        if (!is_finite(view.rows[k])) continue;
        const float inverse = 1.f / view.softmax[k].temperature;  // as the op scales
        const kernels::SoftmaxStats& stats =
            row.sums_parts ? ranks_->stats(view.rows[k]) : view.stats[k];
        const float kept_min =
            row.is_truncated ? kept_mins_[view.rows[k]] : kernels::SoftmaxRow{}.kept_min;
        const auto logprob_of = [&](float logit) {
            return kernels::logprob(logit * inverse, kept_min, stats);
        };
        const RowOutputs out = outputs_of(*row.place, result);
        if (row.is_ranked) *out.rank = view.num_before[pick] + 1;
        *out.logprob = logprob_of(view.picked[pick]);
        for (std::size_t j = 0; j < row.num_ids; ++j)
            out.ids_logprobs[j] = logprob_of(view.picked[first_id + j]);
        const std::size_t first = view.top_starts[k];
        for (std::size_t j = 0; first + j < view.top_starts[k + 1]; ++j) {
            out.top_ids[j] = view.top_ids[first + j];
            out.top_logprobs[j] = logprob_of(view.top_logits[first + j]);
        }
    }
}

}  // namespace pitstop::tp_worker
