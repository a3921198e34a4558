#include "tp_worker/model/sampler.h"

#include "tp_worker/model/logit_view.h"
#include "tp_worker/model/sorted_top.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace pitstop::tp_worker {
namespace {

constexpr std::int64_t kAlignment = 256;  // a GPU's workspaces

std::int64_t aligned(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Rows share a call up to so many bytes of counts and biases, or of top logits.
constexpr std::int64_t kShareBytes = std::int64_t{4} << 20;

std::int64_t edit_bytes(const RequestState& request, std::int64_t output_index) {
    return static_cast<std::int64_t>(
        request.counts().size_bytes() + request.biases(output_index).size_bytes()
    );
}

SampledRow row_of(const LogitRow& place, const RequestSlots& slots) {
    const RequestState& request = *slots[static_cast<std::size_t>(raw(place.slot))];
    SampledRow row{.place = &place, .request = &request};
    row.is_sample = place.kind == LogitRow::Kind::kSample;
    row.is_raw = !row.is_sample || request.logprobs().mode == messages::LogprobsMode::kRaw;
    row.is_edited = row.is_sample && request.has_edits(place.output_index);
    if (row.is_sample) row.draw = request.draw(place.output_index);
    return row;
}

}  // namespace

// Everything that lives as long as one call.
class Sampler::Call {
  public:
    Call(
        Sampler& sampler,
        View2<float> logits,
        std::span<const LogitRow> rows,
        const RequestSlots& slots
    );

    // Each start enqueues ops; its finish runs after the wait for them.
    void start_draws();
    void finish_draws(messages::StepResult* result);
    void start_reports();
    void finish_reports(messages::StepResult* result);

  private:
    void start_draws(LogitView& view);
    void start_draw(LogitView& view, std::size_t begin, std::size_t end);
    void edit(std::span<const std::size_t> rows, View2<float> edited);
    void start_reports(LogitView& view);
    void set_picks(LogitView& view);
    void start_tops(LogitView& view);
    void start_wide(LogitView& view, std::size_t k);
    void finish_reports(LogitView& view, messages::StepResult* result);

    [[nodiscard]] std::size_t end_of_run(const LogitView& view, std::size_t begin) const;
    [[nodiscard]] std::int64_t edit_bytes_of(std::size_t i) const {
        return edit_bytes(*rows_[i].request, rows_[i].place->output_index);
    }
    [[nodiscard]] bool is_finite(std::size_t i) const { return num_nonfinite_[i] == 0; }
    [[nodiscard]] bool is_drawn(const LogitView& view, std::size_t k) const {
        const SampledRow& row = rows_[view.rows[k]];
        return row.is_sample && row.is_edited == view.is_edited;
    }
    [[nodiscard]] bool is_reported(const LogitView& view, std::size_t k) const {
        const std::size_t i = view.rows[k];
        return is_finite(i) && rows_[i].reports_edited() == view.is_edited;
    }
    [[nodiscard]] std::size_t top_of(const LogitView& view, std::size_t k) const {
        if (!is_reported(view, k)) return 0;
        const std::int64_t top = rows_[view.rows[k]].request->logprobs().top;
        return static_cast<std::size_t>(std::min(top, sampler_.vocab_len_));
    }

    Sampler& sampler_;
    Transfers& transfers_;
    std::vector<SampledRow> rows_{};
    std::vector<std::int32_t> num_nonfinite_{};  // by row
    LogitView model_{};   // row i is row i of the call; all choices once the draws are finished
    LogitView edited_{};  // those with edits; first those that are reported from here
};

Sampler::Call::Call(
    Sampler& sampler, View2<float> logits, std::span<const LogitRow> rows, const RequestSlots& slots
)
    : sampler_(sampler), transfers_(*sampler.transfers_), num_nonfinite_(rows.size(), 0) {
    for (const LogitRow& row : rows) rows_.push_back(row_of(row, slots));
    model_.logits = logits;
    model_.rows.resize(rows.size());
    std::iota(model_.rows.begin(), model_.rows.end(), std::size_t{0});
    edited_.is_edited = true;
    for (const bool is_reported : {true, false}) {
        for (std::size_t i = 0; i < rows_.size(); ++i) {
            if (rows_[i].is_edited && rows_[i].reports_edited() == is_reported)
                edited_.rows.push_back(i);
        }
    }
    edited_.logits =
        pitstop::rows(sampler.edited_, 0, static_cast<std::int64_t>(edited_.rows.size()));
    for (LogitView* view : {&model_, &edited_}) view->choices.resize(view->rows.size());
}

void Sampler::Call::start_draws() {
    sampler_.make_room(static_cast<std::int64_t>(num_nonfinite_.size() * sizeof(std::int32_t)));
    sampler_.ops_->count_nonfinite({
        .logits = model_.logits,
        .counts = transfers_.out(std::span(num_nonfinite_)),
        .stream = sampler_.stream_,
    });
    start_draws(model_);
    start_draws(edited_);
}

// In runs of neighbours.
void Sampler::Call::start_draws(LogitView& view) {
    for (std::size_t begin = 0; begin < view.rows.size();) {
        const std::size_t end = end_of_run(view, begin);
        if (end > begin) start_draw(view, begin, end);
        begin = std::max(end, begin + 1);
    }
}

// Rows [begin, end) of the view are drawn from; of edited ones no more than their counts and biases
// fit, one at least.
std::size_t Sampler::Call::end_of_run(const LogitView& view, std::size_t begin) const {
    std::int64_t bytes = 0;
    std::size_t end = begin;
    while (end < view.rows.size() && is_drawn(view, end)) {
        if (view.is_edited) bytes += edit_bytes_of(view.rows[end]);
        if (end > begin && bytes > kShareBytes) break;
        ++end;
    }
    return end;
}

void Sampler::Call::start_draw(LogitView& view, std::size_t begin, std::size_t end) {
    const std::size_t num = end - begin;
    const std::span rows = std::span(view.rows).subspan(begin, num);
    const View2<float> logits = pitstop::rows(
        view.logits, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(num)
    );
    constexpr std::size_t kRowBytes = sizeof(kernels::PenaltyRow) + 3 * sizeof(std::int32_t) +
                                      sizeof(kernels::SampleRow) + sizeof(kernels::Choice);
    auto bytes = static_cast<std::int64_t>((num + 2) * kRowBytes);
    if (view.is_edited) {
        for (const std::size_t i : rows) bytes += edit_bytes_of(i);
    }
    sampler_.make_room(bytes);
    if (view.is_edited) edit(rows, logits);
    std::vector<kernels::SampleRow> draws;
    for (const std::size_t i : rows) draws.push_back(rows_[i].draw);
    const kernels::SampleRow* const there = transfers_.in(draws);
    transfers_.send();
    sampler_.ops_->sample({
        .logits = logits,
        .rows = there,
        .choices = transfers_.out(std::span(view.choices).subspan(begin, num)),
        .workspace = sampler_.sample_workspace_,
        .stream = sampler_.stream_,
    });
}

// The rows' logits after penalties and bias.
void Sampler::Call::edit(std::span<const std::size_t> rows, View2<float> edited) {
    std::vector<std::int32_t> row_index;
    std::vector<kernels::PenaltyRow> penalties;
    std::vector<std::int32_t> count_starts{0};
    std::vector<kernels::TokenCount> counts;
    std::vector<std::int32_t> bias_starts{0};
    std::vector<kernels::LogitBias> biases;
    for (const std::size_t i : rows) {
        const RequestState& request = *rows_[i].request;
        row_index.push_back(static_cast<std::int32_t>(i));
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
        .stream = sampler_.stream_,
    };
    transfers_.send();
    sampler_.ops_->gather_rows(gather);
    sampler_.ops_->penalties(change);
}

void Sampler::Call::finish_draws(messages::StepResult* result) {
    for (std::size_t k = 0; k < edited_.rows.size(); ++k)
        model_.choices[edited_.rows[k]] = edited_.choices[k];
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (!is_finite(i)) ++result->num_nonfinite;
        if (!rows_[i].is_sample) continue;
        const kernels::Choice& choice = model_.choices[i];
        const bool is_drawn = choice.score != -std::numeric_limits<float>::infinity();
        result->sampled.values[rows_[i].place->entry] = !is_finite(i) ? messages::kNotFinite
                                                        : is_drawn    ? choice.id
                                                                      : messages::kNothingLeft;
    }
}

void Sampler::Call::start_reports() {
    start_reports(model_);
    start_reports(edited_);
}

void Sampler::Call::start_reports(LogitView& view) {
    for (std::size_t k = 0; k < view.rows.size(); ++k) {
        if (is_reported(view, k)) view.num_reported = k + 1;
    }
    if (view.num_reported == 0) return;
    view.softmax.resize(view.num_reported);
    view.stats.resize(view.num_reported);
    for (std::size_t k = 0; k < view.num_reported; ++k) {
        if (!is_reported(view, k)) continue;
        const SampledRow& row = rows_[view.rows[k]];
        const messages::LogprobOptions& options = row.request->logprobs();
        const kernels::Choice& choice = model_.choices[view.rows[k]];
        if (!row.is_raw) {
            const float temperature = row.draw.temperature;
            view.softmax[k].temperature = temperature > 0.f ? temperature : 1.f;
            if (options.mode == messages::LogprobsMode::kTruncated)
                view.softmax[k].kept_min = choice.kept_min;
        }
    }
    set_picks(view);
    sampler_.make_room(static_cast<std::int64_t>(
        view.num_reported * (sizeof(kernels::SoftmaxRow) + sizeof(kernels::SoftmaxStats)) +
        view.picks.size() * (sizeof(kernels::LogitPick) + sizeof(float)) +
        view.num_before.size() * sizeof(std::int32_t)
    ));
    const kernels::SoftmaxRow* const rows = transfers_.in(view.softmax);
    const kernels::LogitPick* const picks = transfers_.in(view.picks);
    transfers_.send();
    sampler_.ops_->softmax_stats({
        .logits = pitstop::rows(view.logits, 0, static_cast<std::int64_t>(view.num_reported)),
        .rows = rows,
        .stats = transfers_.out(std::span(view.stats)),
        .workspace = sampler_.stats_workspace_,
        .stream = sampler_.stream_,
    });
    float* const picked = transfers_.out(std::span(view.picked));
    sampler_.ops_->pick_logits({
        .logits = view.logits,
        .picks = picks,
        .num_picks = static_cast<std::int64_t>(view.picks.size()),
        .values = picked,
        .stream = sampler_.stream_,
    });
    if (!view.num_before.empty()) {
        sampler_.ops_->count_before({
            .logits = view.logits,
            .picks = picks,
            .values = picked,
            .num_picks = static_cast<std::int64_t>(view.num_before.size()),
            .counts = transfers_.out(std::span(view.num_before)),
            .stream = sampler_.stream_,
        });
    }
    start_tops(view);
}

void Sampler::Call::set_picks(LogitView& view) {
    for (const bool is_ranked : {true, false}) {
        for (std::size_t k = 0; k < view.num_reported; ++k) {
            const SampledRow& row = rows_[view.rows[k]];
            if (!is_reported(view, k) || row.is_ranked() != is_ranked) continue;
            const TokenId choice = model_.choices[view.rows[k]].id;
            view.picks.push_back(
                {static_cast<std::int32_t>(k), row.is_sample ? choice : row.place->target}
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

// In runs of neighbours that want as many.
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
               static_cast<std::int64_t>(end - begin + 1) * row_bytes <= kShareBytes)
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

void Sampler::Call::finish_reports(messages::StepResult* result) {
    finish_reports(model_, result);
    finish_reports(edited_, result);
}

void Sampler::Call::finish_reports(LogitView& view, messages::StepResult* result) {
    for (const LogitView::Wide& wide : view.wide) {
        const std::size_t first = view.top_starts[wide.row];
        const std::size_t size = view.top_starts[wide.row + 1] - first;
        sort_top(
            wide.logits,
            std::span(view.top_ids).subspan(first, size),
            std::span(view.top_logits).subspan(first, size)
        );
    }
    std::size_t ranked_at = 0;  // in the picks
    std::size_t unranked_at = view.num_before.size();
    std::size_t ids_at = view.ids_begin;
    for (std::size_t k = 0; k < view.num_reported; ++k) {
        if (!is_reported(view, k)) continue;
        const SampledRow& row = rows_[view.rows[k]];
        const float inverse = 1.f / view.softmax[k].temperature;  // as the op scales
        const auto logprob_of = [&](float logit) {
            return kernels::logprob(logit * inverse, view.softmax[k].kept_min, view.stats[k]);
        };
        const RowOutputs out = outputs_of(*row.place, result);
        if (row.is_ranked()) *out.rank = view.num_before[ranked_at] + 1;
        *out.logprob = logprob_of(view.picked[row.is_ranked() ? ranked_at++ : unranked_at++]);
        const std::size_t num_ids = row.request->logprobs().ids.size();
        for (std::size_t j = 0; j < num_ids; ++j)
            out.ids_logprobs[j] = logprob_of(view.picked[ids_at++]);
        const std::size_t first = view.top_starts[k];
        for (std::size_t j = 0; first + j < view.top_starts[k + 1]; ++j) {
            out.top_ids[j] = view.top_ids[first + j];
            out.top_logprobs[j] = logprob_of(view.top_logits[first + j]);
        }
    }
}

std::int64_t Sampler::bytes(
    const kernels::Ops& ops, std::int64_t rows_max, std::int64_t vocab_len
) {
    return aligned(rows_max * vocab_len * 4) +
           aligned(ops.sample_workspace_bytes(rows_max, vocab_len)) +
           aligned(ops.softmax_stats_workspace_bytes(rows_max, vocab_len));
}

// More than any one call of make_room() asks for.
std::int64_t Sampler::transfer_bytes(std::int64_t rows_max, std::int64_t vocab_len) {
    constexpr auto kPicksMax = std::int64_t{1 + messages::kLogprobIdsMax};
    constexpr std::int64_t kPickBytes = sizeof(kernels::LogitPick) + sizeof(float);
    constexpr std::int64_t kRowBytes = 1024;  // of a row's settings, choice and sums, rounded up
    // Of one row that is more than its share: a count and a bias for each token.
    constexpr std::int64_t kEditBytes =
        std::int64_t{sizeof(kernels::TokenCount)} + std::int64_t{sizeof(kernels::LogitBias)};
    return kShareBytes + vocab_len * kEditBytes +
           (rows_max + 4) * (kPicksMax * kPickBytes + kRowBytes);
}

Result<Sampler> Sampler::make(const Args& args) {
    const std::int64_t num_bytes = bytes(args.device.ops(), args.rows_max, args.vocab_len);
    ASSIGN_OR_RETURN(Arena memory, args.device.reserve("sampler", num_bytes));
    RETURN_IF_ERROR(memory.commit());
    return Sampler(args, std::move(memory));
}

Sampler::Sampler(const Args& args, Arena memory)
    : ops_(&args.device.ops()),
      stream_(args.device.stream()),
      transfers_(args.transfers),
      vocab_len_(args.vocab_len),
      memory_(std::move(memory)) {
    std::byte* at = memory_.data();
    edited_ = view2(reinterpret_cast<float*>(at), args.rows_max, vocab_len_);
    at += aligned(args.rows_max * vocab_len_ * 4);
    sample_workspace_ = {at, ops_->sample_workspace_bytes(args.rows_max, vocab_len_)};
    at += aligned(sample_workspace_.bytes);
    stats_workspace_ = {at, ops_->softmax_stats_workspace_bytes(args.rows_max, vocab_len_)};
}

void Sampler::run(
    View2<float> logits,
    std::span<const LogitRow> rows,
    const RequestSlots& slots,
    messages::StepResult* result
) {
    CHECK(logits.rows == static_cast<std::int64_t>(rows.size()) && logits.rows <= edited_.rows);
    CHECK(logits.cols == vocab_len_);
    Call call(*this, logits, rows, slots);
    call.start_draws();
    transfers_->wait();
    call.finish_draws(result);
    call.start_reports();
    transfers_->wait();
    call.finish_reports(result);
}

// Rounded up by two alignments an array: what a call asks for is never a close fit.
void Sampler::make_room(std::int64_t transfer_bytes) {
    constexpr std::int64_t kArraysMax = 8;
    if (transfers_->bytes_left() < transfer_bytes + kArraysMax * Transfers::kAlignment) {
        transfers_->wait();
    }
}

}  // namespace pitstop::tp_worker
